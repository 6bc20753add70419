/*
 * Keeps one stream for each measuring thread during all measurements. Allocators keep
 * a record of each stream, so the cost of a new stream would be measured too.
 */
#ifndef GPU_BENCH_STREAMS_H
#define GPU_BENCH_STREAMS_H

#include <cuda_runtime_api.h>
#include <mutex>
#include <vector>

#include "../gpu/check.h"

namespace bench {

static thread_local cudaStream_t own_stream;
static std::vector<cudaStream_t> idle_streams;
static std::mutex idle_streams_lock;

static inline void take_stream() {
    std::lock_guard<std::mutex> hold(idle_streams_lock);
    if (idle_streams.empty()) {
        CHECK(cudaStreamCreateWithFlags(&own_stream, cudaStreamNonBlocking));
        return;
    }
    own_stream = idle_streams.back();
    idle_streams.pop_back();
}

static inline void return_stream() {
    std::lock_guard<std::mutex> hold(idle_streams_lock);
    idle_streams.push_back(own_stream);
}

/* The base of an allocator whose threads each have a stream of their own. */
struct on_own_stream {
    void enter() {
        CHECK(cudaSetDevice(0));
        take_stream();
    }
    void leave() {
        return_stream();
    }
    void synchronise() {
        CHECK(cudaDeviceSynchronize());
    }
};

} // namespace bench

#endif
