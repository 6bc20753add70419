/*
 * alloc_mix [threads] [steps] [most_mib] [seed]: random allocations over several streams, every
 * block's contents checked.
 *
 * A kernel fills each block. Just before the free another kernel checks it, and may still wait
 * behind a slow kernel when the free is called. If the memory is reused too early, the new block's
 * data fail the check. Every eighth block is handed to the next thread and freed there.
 */
#include <cmath>
#include <cuda_runtime.h>
#include <mutex>
#include <thread>
#include <vector>

#include "check.h"
#include "kernels.cuh"

struct block {
    uint32_t *p;
    size_t bytes;
    uint32_t seed;
    int stream;
};

struct mailbox {
    std::mutex lock;
    std::vector<block> blocks;
};

struct worker {
    uint64_t random;
    cudaStream_t streams[4];
    unsigned long long *bad;
    std::vector<block> live;
    size_t live_bytes;
    unsigned long long allocs, frees, bytes, wrong;
};

static void check_and_free(worker &w, block b) {
    cudaStream_t s = w.streams[b.stream];
    uint64_t random =
        b.seed; /* not the worker's seed: the scheduler decides when a block is passed on */
    if (rng(&random) % 4 == 0)
        spin_ns<<<1, 1, 0, s>>>(20000 + rng(&random) % 300000);
    verify<<<grid_for(b.bytes / 4), 256, 0, s>>>(b.p, b.bytes / 4, b.seed, w.bad);
    CHECK(cudaGetLastError());
    CHECK(cudaFree(b.p));
    w.frees++;
}

static void work(worker &w, mailbox &in, mailbox &out, long steps, double most) {
    const size_t live_most = (size_t)2 << 30;
    CHECK(cudaSetDevice(0));
    w.streams[0] = nullptr;
    CHECK(cudaStreamCreate(&w.streams[1]));
    CHECK(cudaStreamCreateWithFlags(&w.streams[2], cudaStreamNonBlocking));
    CHECK(cudaStreamCreateWithFlags(&w.streams[3], cudaStreamNonBlocking));
    CHECK(cudaMalloc(&w.bad, sizeof *w.bad));
    CHECK(cudaMemset(w.bad, 0, sizeof *w.bad));
    CHECK(cudaDeviceSynchronize());
    for (long i = 0; i < steps; i++) {
        uint64_t r = rng(&w.random);
        size_t bytes =
            (size_t)std::exp2(8 + (double)(r >> 40) / (1 << 24) * (std::log2(most) - 8)) &
            ~(size_t)3;
        while (!w.live.empty() && (w.live.size() >= 48 || w.live_bytes + bytes > live_most)) {
            size_t at = rng(&w.random) % w.live.size();
            block b = w.live[at];
            w.live[at] = w.live.back();
            w.live.pop_back();
            w.live_bytes -= b.bytes;
            check_and_free(w, b);
        }
        block b = {nullptr, bytes, (uint32_t)rng(&w.random), (int)(r % 4)};
        CHECK(cudaMalloc(&b.p, bytes));
        fill<<<grid_for(bytes / 4), 256, 0, w.streams[b.stream]>>>(b.p, bytes / 4, b.seed);
        CHECK(cudaGetLastError());
        w.allocs++;
        w.bytes += bytes;
        if (i % 64 == 63) {
            uint32_t first;
            CHECK(cudaMemcpyAsync(&first, b.p, 4, cudaMemcpyDeviceToHost, w.streams[b.stream]));
            CHECK(cudaStreamSynchronize(w.streams[b.stream]));
            w.wrong += first != pattern(b.seed, 0);
        }
        if (i % 8 == 7) {
            CHECK(cudaStreamSynchronize(w.streams[b.stream]));
            std::lock_guard<std::mutex> hold(out.lock);
            out.blocks.push_back(b);
        } else {
            w.live.push_back(b);
            w.live_bytes += bytes;
        }
        std::vector<block> given;
        if (i % 8 == 3) {
            std::lock_guard<std::mutex> hold(in.lock);
            given.swap(in.blocks);
        }
        for (const block &g : given)
            check_and_free(w, g);
    }
    for (const block &b : w.live)
        check_and_free(w, b);
}

int main(int argc, char **argv) {
    long threads = arg_long(argc, argv, 1, 1), steps = arg_long(argc, argv, 2, 400),
         most = arg_long(argc, argv, 3, 512), seed = arg_long(argc, argv, 4, 1);
    std::vector<worker> workers(threads);
    std::vector<mailbox> boxes(threads);
    std::vector<std::thread> pool;
    CHECK(cudaFree(nullptr));
    double start = now_s();
    for (long t = 0; t < threads; t++) {
        workers[t].random = (uint64_t)seed * 1000003u + (uint64_t)t;
        pool.emplace_back([&, t] {
            work(workers[t], boxes[t], boxes[(t + 1) % threads], steps, (double)most * 1048576.0);
        });
    }
    for (auto &t : pool)
        t.join();
    unsigned long long allocs = 0, frees = 0, bytes = 0, bad = 0, wrong = 0;
    for (long t = 0; t < threads; t++)
        for (const block &b : boxes[t].blocks)
            check_and_free(workers[t], b);
    CHECK(cudaDeviceSynchronize());
    print_time("per_step", (now_s() - start) * 1e6 / (double)(steps * threads), "us");
    for (worker &w : workers) {
        unsigned long long b;
        CHECK(cudaMemcpy(&b, w.bad, sizeof b, cudaMemcpyDeviceToHost));
        CHECK(cudaFree(w.bad));
        allocs += w.allocs, frees += w.frees, bytes += w.bytes, bad += b, wrong += w.wrong;
    }
    printf("%llu allocations, %llu frees, %llu bytes, %llu words wrong, %llu copies wrong\n",
           allocs, frees, bytes, bad, wrong);
    return bad != 0 || wrong != 0;
}
