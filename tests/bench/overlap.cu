/*
 * overlap malloc|async [rounds] [ms]: in each round, four streams run one kernel each, of `ms`
 * milliseconds. Its memory is allocated just before the launch and freed just after it. A round
 * takes the time of one kernel if the kernels overlap, else the time of four.
 */
#include <cuda_runtime.h>
#include <string>

#include "../gpu/check.h"
#include "../gpu/kernels.cuh"

static __global__ void work_on(uint32_t *p, uint64_t ns) {
    uint64_t end = device_ns() + ns;
    while (device_ns() < end)
        __nanosleep(500);
    *p = (uint32_t)ns;
}

int main(int argc, char **argv) {
    bool async = argc > 1 && std::string(argv[1]) == "async";
    long rounds = arg_long(argc, argv, 2, 40), ms = arg_long(argc, argv, 3, 2);
    cudaStream_t s[4];
    for (auto &x : s)
        CHECK(cudaStreamCreateWithFlags(&x, cudaStreamNonBlocking));
    cudaMemPool_t pool;
    uint64_t most = UINT64_MAX;
    CHECK(cudaDeviceGetDefaultMemPool(&pool, 0));
    CHECK(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &most));
    uint32_t *p;
    for (size_t bytes : {(size_t)64 << 10, (size_t)32 << 20}) {
        double best = 1e9;
        for (int repeat = 0; repeat < 3; repeat++) {
            CHECK(cudaDeviceSynchronize());
            double start = now_s();
            for (long r = 0; r < rounds; r++)
                for (auto &x : s) {
                    CHECK(async ? cudaMallocAsync(&p, bytes, x) : cudaMalloc(&p, bytes));
                    work_on<<<1, 1, 0, x>>>(p, (uint64_t)ms * 1000000u);
                    CHECK(cudaGetLastError());
                    CHECK(async ? cudaFreeAsync(p, x) : cudaFree(p));
                }
            CHECK(cudaDeviceSynchronize());
            double took = (now_s() - start) * 1e3;
            best = took < best ? took : best;
        }
        print_time(bytes < 1 << 20 ? "small" : "large", best, "ms");
    }
    printf("%ld rounds of 4 kernels of %ld ms\n", rounds, ms);
    return 0;
}
