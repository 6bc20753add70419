/* Functions that facts_order.cu and facts_memory.cu share. */
#ifndef GPU_FACTS_H
#define GPU_FACTS_H

#include <algorithm>
#include <cstring>
#include <cuda_runtime.h>
#include <string>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <vector>

#include "check.h"
#include "codes.h"
#include "driver/table/cuda_abi.h"
#include "kernels.cuh"

static inline CUcontext primary() {
    CHECK(cudaFree(0));
    CUcontext ctx;
    CHECK(cuCtxGetCurrent(&ctx));
    return ctx;
}

static inline CUevent new_event() {
    CUevent ev;
    CHECK(cuEventCreate(&ev, CU_EVENT_DISABLE_TIMING));
    return ev;
}

static inline cudaStream_t new_stream() {
    cudaStream_t s;
    CHECK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    return s;
}

static inline void spin_ms(cudaStream_t s, int ms) {
    spin_ns<<<1, 1, 0, s>>>((uint64_t)ms * 1000000u);
    CHECK(cudaGetLastError());
}

static inline void warm() {
    spin_ns<<<1, 1>>>(1);
    CHECK(cudaDeviceSynchronize());
}

template <class F> static double mean_ns(int n, F f) {
    double t = now_s();
    for (int i = 0; i < n; i++)
        f();
    return (now_s() - t) * 1e9 / n;
}

template <class F> static double took_ms(F f) {
    double t = now_s();
    f();
    return (now_s() - t) * 1e3;
}

static inline bool same(bool yes) {
    printf("%s", yes ? "the same" : "another");
    return yes;
}

/* Polls until the event is complete. Returns the time that it took. */
static inline double until_ready_ms(CUevent ev, double limit_ms = 5000) {
    double t = now_s();
    while (cuEventQuery(ev) != CUDA_SUCCESS)
        if ((now_s() - t) * 1e3 > limit_ms)
            return -1;
    return (now_s() - t) * 1e3;
}

static inline void quantiles(const char *what, std::vector<double> v, const char *unit) {
    std::sort(v.begin(), v.end());
    auto at = [&](double q) { return v[(size_t)(q * (double)(v.size() - 1))]; };
    printf("  %-58s p50 %.3g  p90 %.3g  p99 %.3g  max %.3g %s\n", what, at(0.5), at(0.9), at(0.99),
           v.back(), unit);
}

#endif
