/* contexts [case]: uses several contexts and threads, and destroys contexts with live memory. */
#include <cuda_runtime.h>
#include <thread>
#include <vector>

#include "driver/table/cuda_abi.h"
#include "check.h"
#include "codes.h"
#include "kernels.cuh"

static CUdevice device;

static CUcontext new_context() {
    CUcontext c;
    CHECK(cuInit(0));
    CHECK(cuDeviceGet(&device, 0));
    CHECK(cuCtxCreate_v2(&c, 0, device));
    return c;
}

/* Fills, checks and frees blocks in the current context. Returns the number of wrong words. */
static unsigned long long exercise(uint32_t seed, int rounds = 20) {
    cudaStream_t s;
    CUdeviceptr bad;
    unsigned long long wrong = 0;
    CHECK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    CHECK(cuMemAlloc(&bad, 8));
    CHECK(cudaMemsetAsync((void *)bad, 0, 8, s));
    for (int i = 0; i < rounds; i++) {
        CUdeviceptr p;
        size_t n = (size_t)1000 << i % 11;
        CHECK(cuMemAlloc(&p, n * 4));
        fill<<<grid_for(n), 256, 0, s>>>((uint32_t *)p, n, seed + i);
        if (i % 3 == 0)
            spin_ns<<<1, 1, 0, s>>>(200000);
        verify<<<grid_for(n), 256, 0, s>>>((uint32_t *)p, n, seed + i, (unsigned long long *)bad);
        CHECK(cudaGetLastError());
        CHECK(cuMemFree(p));
    }
    CHECK(cudaMemcpyAsync(&wrong, (void *)bad, 8, cudaMemcpyDeviceToHost, s));
    CHECK(cudaStreamSynchronize(s));
    CHECK(cuMemFree(bad));
    CHECK(cudaStreamDestroy(s));
    return wrong;
}

static void case_push_pop() {
    CUcontext a = new_context(), b = new_context(), seen;
    CUdeviceptr in_a, in_b;
    CHECK(cuMemAlloc(&in_b, 1 << 20));
    CHECK(cuCtxPushCurrent(a));
    CHECK(cuMemAlloc(&in_a, 1 << 20));
    CHECK(cuPointerGetAttribute(&seen, CU_POINTER_ATTRIBUTE_CONTEXT, in_a));
    printf("allocated with a pushed: in %s;", seen == a ? "a" : seen == b ? "b" : "another");
    CHECK(cuCtxPopCurrent(&seen));
    printf(" popped %s;", seen == a ? "a" : "another");
    codes(" a's memory freed in b %d, again %d;", {(int)cuMemFree(in_a), (int)cuMemFree(in_a)});
    CHECK(cuPointerGetAttribute(&seen, CU_POINTER_ATTRIBUTE_CONTEXT, in_b));
    printf(" the other's context is %s", seen == b ? "b" : "another");
    CHECK(cuCtxSetCurrent(nullptr));
    codes(", freed with none current %d\n", {(int)cuMemFree(in_b)});
    CHECK(cuCtxSetCurrent(a));
    printf("a: %llu wrong,", exercise(1));
    CHECK(cuCtxSetCurrent(b));
    printf(" b: %llu wrong\n", exercise(2));
    CHECK(cuCtxDestroy(b));
    CHECK(cuCtxDestroy(a));
}

/* Blocks allocated in one context are freed while the other is current, with work of both in
 * flight. */
static void case_crossed() {
    CUcontext c[2] = {new_context(), new_context()};
    cudaStream_t s[2];
    CUdeviceptr bad[2];
    unsigned long long wrong[2];
    for (int i = 0; i < 2; i++) {
        CHECK(cuCtxSetCurrent(c[i]));
        CHECK(cudaStreamCreateWithFlags(&s[i], cudaStreamNonBlocking));
        CHECK(cuMemAlloc(&bad[i], 8));
        CHECK(cuMemsetD8(bad[i], 0, 8));
    }
    for (int round = 0; round < 200; round++) {
        int i = round % 2;
        size_t n = (size_t)4096 << round % 8;
        CUdeviceptr p;
        CHECK(cuCtxSetCurrent(c[i]));
        CHECK(cuMemAlloc(&p, n * 4));
        fill<<<grid_for(n), 256, 0, s[i]>>>((uint32_t *)p, n, (uint32_t)round);
        if (round % 5 == 0)
            spin_ns<<<1, 1, 0, s[i]>>>(500000);
        verify<<<grid_for(n), 256, 0, s[i]>>>((uint32_t *)p, n, (uint32_t)round,
                                              (unsigned long long *)bad[i]);
        CHECK(cudaGetLastError());
        CHECK(cuCtxSetCurrent(c[1 - i]));
        CHECK(cuMemFree(p));
    }
    for (int i = 0; i < 2; i++) {
        CHECK(cuCtxSetCurrent(c[i]));
        CHECK(cuCtxSynchronize());
        CHECK(cuMemcpyDtoH(&wrong[i], bad[i], 8));
        CHECK(cuCtxDestroy(c[i]));
    }
    printf("%llu and %llu words wrong\n", wrong[0], wrong[1]);
}

static void case_threads() {
    CHECK(cudaFree(nullptr));
    std::vector<void *> blocks(400);
    std::thread([&] {
        for (size_t i = 0; i < blocks.size(); i++) {
            CHECK(cudaMalloc(&blocks[i], 100 << i % 15));
            CHECK(cudaMemset(blocks[i], 1, 100));
        }
    }).join();
    std::thread([&] {
        for (size_t i = 0; i < 200; i++)
            CHECK(cudaFree(blocks[i]));
    }).join();
    for (size_t i = 200; i < blocks.size(); i++)
        CHECK(cudaFree(blocks[i]));
    std::vector<std::thread> pool;
    std::vector<unsigned long long> wrong(8);
    for (int t = 0; t < 8; t++)
        pool.emplace_back([&, t] {
            CHECK(cudaSetDevice(0));
            wrong[t] = exercise((uint32_t)t * 100, 60);
        });
    unsigned long long sum = 0;
    for (int t = 0; t < 8; t++) {
        pool[t].join();
        sum += wrong[t];
    }
    printf("%llu words wrong; freed twice from two threads: ", sum);
    void *p;
    int first = -1, second = -1;
    CHECK(cudaMalloc(&p, 1 << 20));
    std::thread([&] { first = cudaFree(p); }).join();
    std::thread([&] { second = cudaFree(p); }).join();
    printf("%d %d\n", first, second);
}

static void case_destroy() {
    unsigned long long wrong = 0;
    for (int round = 0; round < 4; round++) {
        CUcontext c = new_context();
        CUdeviceptr held[16];
        for (auto &p : held)
            CHECK(cuMemAlloc(&p, 8 << 20));
        wrong += exercise((uint32_t)round);
        CHECK(cuMemFree(held[3]));
        CHECK(cuCtxDestroy(c));
        CUcontext next = new_context();
        codes("destroyed with memory: freeing it in the next context %d",
              {(int)cuMemFree(held[5])});
        CUdeviceptr base;
        size_t size;
        codes(", address range %d", {(int)cuMemGetAddressRange(&base, &size, held[5])});
        wrong += exercise((uint32_t)round + 50);
        codes(", then without any %d, alloc %d\n",
              {(int)cuCtxDestroy(next), (int)cuMemAlloc(&base, 100)});
    }
    printf("%llu words wrong\n", wrong);
}

static void case_reset() {
    unsigned long long wrong = 0;
    void *kept, *p;
    for (int round = 0; round < 4; round++) {
        CHECK(cudaMalloc(&kept, 32 << 20));
        wrong += exercise((uint32_t)round);
        CHECK(cudaMalloc(&p, 4096));
        spin_ns<<<1, 1>>>(20000000);
        codes("cudaDeviceReset %d", {(int)cudaDeviceReset()});
        codes(", free of what was before %d %d, last error %d",
              {(int)cudaFree(kept), (int)cudaFree(p), (int)cudaGetLastError()});
        codes(", malloc %d, free %d\n", {(int)cudaMalloc(&p, 4096), (int)cudaFree(p)});
        wrong += exercise((uint32_t)round + 50);
    }
    size_t free_bytes, total;
    CHECK(cudaDeviceReset());
    CHECK(cudaMemGetInfo(&free_bytes, &total));
    printf("%llu words wrong\n", wrong);
}

static void case_primary() {
    CHECK(cuInit(0));
    CHECK(cuDeviceGet(&device, 0));
    unsigned long long wrong = 0;
    CUdeviceptr p, old;
    for (int round = 0; round < 3; round++) {
        CUcontext c;
        unsigned flags;
        int active;
        CHECK(cuDevicePrimaryCtxRetain(&c, device));
        CHECK(cuDevicePrimaryCtxRetain(&c, device));
        CHECK(cuCtxSetCurrent(c));
        CHECK(cuMemAlloc(&old, 16 << 20));
        codes("released once %d, still alloc %d",
              {(int)cuDevicePrimaryCtxRelease(device), (int)cuMemAlloc(&p, 4096)});
        codes(", free %d", {(int)cuMemFree(p)});
        wrong += exercise((uint32_t)round);
        /* the runtime may hold the context too */
        codes(", released %d\n", {round == 2 ? (int)cuDevicePrimaryCtxReset(device)
                                             : (int)cuDevicePrimaryCtxRelease(device)});
        CHECK(cuDevicePrimaryCtxGetState(device, &flags, &active));
        printf("active %d", active);
        CHECK(cuDevicePrimaryCtxRetain(&c, device));
        CHECK(cuCtxSetCurrent(c));
        codes(", retained again: alloc %d", {(int)cuMemAlloc(&p, 16 << 20)});
        printf("\n");
        CHECK(cuMemFree(p));
        CHECK(cuDevicePrimaryCtxRelease(device));
    }
    printf("%llu words wrong\n", wrong);
}

int main(int argc, char **argv) {
    static const struct {
        const char *name;
        void (*run)();
    } cases[] = {{"push_pop", case_push_pop}, {"crossed", case_crossed}, {"threads", case_threads},
                 {"destroy", case_destroy},   {"reset", case_reset},     {"primary", case_primary}};
    return run_cases(argc, argv, cases);
}
