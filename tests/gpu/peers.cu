/* peers: tests peer access and peer copies of two GPUs, and memory that is freed while a queued
 * copy of the other device still reads it. */
#include <cuda_runtime.h>
#include <vector>

#include "check.h"
#include "codes.h"
#include "kernels.cuh"

static unsigned long long *bad[2];
static cudaStream_t stream[2];

static void on(int device) {
    CHECK(cudaSetDevice(device));
}

static void begin(bool access) {
    for (int d = 0; d < 2; d++) {
        on(d);
        CHECK(cudaStreamCreateWithFlags(&stream[d], cudaStreamNonBlocking));
        CHECK(cudaMalloc(&bad[d], 8));
        CHECK(cudaMemset(bad[d], 0, 8));
        if (access)
            codes("enable %d, twice %d, last error %d\n",
                  {(int)cudaDeviceEnablePeerAccess(1 - d, 0),
                   (int)cudaDeviceEnablePeerAccess(1 - d, 0), (int)cudaGetLastError()});
    }
}

static void end() {
    for (int d = 0; d < 2; d++) {
        unsigned long long wrong;
        on(d);
        CHECK(cudaDeviceSynchronize());
        CHECK(cudaMemcpy(&wrong, bad[d], 8, cudaMemcpyDeviceToHost));
        CHECK(cudaFree(bad[d]));
        printf("device %d: %llu words wrong\n", d, wrong);
    }
}

/* Frees the source while its copy is queued behind a slow kernel of the other device, and reuses
 * the memory at once. */
static void copies(bool access) {
    begin(access);
    for (int round = 0; round < 60; round++) {
        int from = round % 2, to = 1 - from;
        size_t n = (size_t)16384 << round % 9;
        uint32_t *source, *target, *next;
        on(from);
        CHECK(cudaMalloc(&source, n * 4));
        fill<<<grid_for(n), 256, 0, stream[from]>>>(source, n, (uint32_t)round);
        CHECK(cudaStreamSynchronize(stream[from]));
        on(to);
        CHECK(cudaMalloc(&target, n * 4));
        spin_ns<<<1, 1, 0, stream[to]>>>(2000000);
        CHECK(cudaMemcpyPeerAsync(target, to, source, from, n * 4, stream[to]));
        verify<<<grid_for(n), 256, 0, stream[to]>>>(target, n, (uint32_t)round, bad[to]);
        on(from);
        CHECK(cudaFree(source));
        CHECK(cudaMalloc(&next, n * 4));
        fill<<<grid_for(n), 256, 0, stream[from]>>>(next, n, 12345);
        verify<<<grid_for(n), 256, 0, stream[from]>>>(next, n, 12345, bad[from]);
        CHECK(cudaFree(target)); /* with the other device current */
        CHECK(cudaFree(next));
    }
    end();
}

static void case_copies() {
    copies(false);
}

static void case_copies_with_access() {
    copies(true);
}

/* Kernels of one device read and write memory of the other one. The program synchronises before the
 * free, as it must natively. */
static void case_access() {
    begin(true);
    for (int round = 0; round < 60; round++) {
        int owner = round % 2, user = 1 - owner;
        size_t n = (size_t)1000 << round % 10;
        uint32_t *p;
        on(owner);
        CHECK(cudaMalloc(&p, n * 4));
        on(user);
        fill<<<grid_for(n), 256, 0, stream[user]>>>(p, n, (uint32_t)round);
        CHECK(cudaStreamSynchronize(stream[user]));
        on(owner);
        verify<<<grid_for(n), 256, 0, stream[owner]>>>(p, n, (uint32_t)round, bad[owner]);
        CHECK(cudaFree(p));
    }
    on(0);
    uint32_t *p;
    CHECK(cudaMalloc(&p, 1 << 20));
    codes("disable %d, twice %d, last error %d\n",
          {(int)cudaDeviceDisablePeerAccess(1), (int)cudaDeviceDisablePeerAccess(1),
           (int)cudaGetLastError()});
    CHECK(cudaFree(p));
    end();
}

/* Enables peer access after the memory was allocated, freed and cached. */
static void case_enabled_late() {
    begin(false);
    on(0);
    std::vector<uint32_t *> cached(8);
    for (auto &p : cached)
        CHECK(cudaMalloc(&p, 3 << 20));
    for (size_t i = 0; i < 4; i++)
        CHECK(cudaFree(cached[i]));
    on(1);
    CHECK(cudaDeviceEnablePeerAccess(0, 0));
    on(0);
    for (size_t i = 0; i < 4; i++)
        CHECK(cudaMalloc(&cached[i], 3 << 20));
    const size_t n = (3 << 20) / 4;
    on(1);
    for (size_t i = 0; i < cached.size(); i++) {
        fill<<<grid_for(n), 256, 0, stream[1]>>>(cached[i], n, (uint32_t)i);
        verify<<<grid_for(n), 256, 0, stream[1]>>>(cached[i], n, (uint32_t)i, bad[1]);
    }
    CHECK(cudaStreamSynchronize(stream[1]));
    for (auto &p : cached)
        CHECK(cudaFree(p)); /* device 0's memory with device 1 current */
    end();
}

int main(int argc, char **argv) {
    static const struct {
        const char *name;
        void (*run)();
    } cases[] = {{"copies", case_copies},
                 {"copies_with_access", case_copies_with_access},
                 {"access", case_access},
                 {"enabled_late", case_enabled_late}};
    return run_cases(argc, argv, cases);
}
