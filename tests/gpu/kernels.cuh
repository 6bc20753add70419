/*
 * The kernels that the test programs share. A kernel that spins ends after `limit_s` at the latest:
 * a hang under test fails a check, and the machine stays usable.
 */
#ifndef GPU_KERNELS_CUH
#define GPU_KERNELS_CUH

#include <cstddef>
#include <cstdint>

static __device__ __forceinline__ uint64_t device_ns() {
    uint64_t t;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
    return t;
}

/* Keeps its stream busy for this time, with one thread. */
static __global__ void spin_ns(uint64_t ns) {
    uint64_t end = device_ns() + ns;
    while (device_ns() < end)
        __nanosleep(200);
}

/* Spins until *flag reaches `value`. Adds 1 to *gave_up if that takes too long. */
static __global__ void spin_until(volatile int *flag, int value, int *gave_up, int limit_s) {
    uint64_t end = device_ns() + (uint64_t)limit_s * 1000000000u;
    while (*flag < value) {
        if (device_ns() > end) {
            atomicAdd(gave_up, 1);
            return;
        }
        __nanosleep(200);
    }
}

static __global__ void set_flag(volatile int *flag, int value) {
    *flag = value;
    __threadfence_system();
}

static __host__ __device__ __forceinline__ uint32_t pattern(uint32_t seed, size_t i) {
    uint32_t x = seed ^ ((uint32_t)i * 0x9e3779b1u);
    x ^= x >> 15;
    return x * 0x85ebca6bu;
}

static __global__ void fill(uint32_t *p, size_t n, uint32_t seed) {
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n;
         i += (size_t)gridDim.x * blockDim.x)
        p[i] = pattern(seed, i);
}

static __global__ void verify(const uint32_t *p, size_t n, uint32_t seed, unsigned long long *bad) {
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n;
         i += (size_t)gridDim.x * blockDim.x)
        if (p[i] != pattern(seed, i))
            atomicAdd(bad, 1ull);
}

static inline unsigned grid_for(size_t n) {
    size_t blocks = (n + 255) / 256;
    return (unsigned)(blocks == 0 ? 1 : blocks > 1024 ? 1024 : blocks);
}

#endif
