/*
 * capture [case]: stream capture with allocations around and inside it. In every mode, from the
 * capturing thread and from another: what the calls answer, whether the capture survives, and
 * whether graphs replay right.
 */
#include <cuda.h>
#include <cuda_runtime.h>
#include <thread>
#include <vector>

#include "check.h"
#include "codes.h"
#include "kernels.cuh"

static const cudaStreamCaptureMode modes[] = {
    cudaStreamCaptureModeGlobal, cudaStreamCaptureModeThreadLocal, cudaStreamCaptureModeRelaxed};
static const char *const mode_names[] = {"global", "thread-local", "relaxed"};

static cudaStream_t new_stream() {
    cudaStream_t s;
    CHECK(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    return s;
}

static void warm() {
    fill<<<1, 1>>>(nullptr, 0, 0);
    verify<<<1, 1>>>(nullptr, 0, 0, nullptr);
    spin_ns<<<1, 1>>>(1);
    CHECK(cudaDeviceSynchronize());
}

enum what {
    malloc_new,
    malloc_cached,
    malloc_large,
    malloc_zero,
    free_small,
    free_large,
    free_null,
    free_twice,
    free_interior,
    pitch,
    info,
    async_pair,
    free_of_async,
    what_count
};
static const char *const what_names[] = {"malloc",
                                         "malloc of a size just freed",
                                         "malloc 256 MiB",
                                         "malloc 0",
                                         "free",
                                         "free 64 MiB",
                                         "free NULL",
                                         "double free",
                                         "interior free",
                                         "pitch",
                                         "info",
                                         "async malloc and free, other stream",
                                         "free of async memory"};

static void *small, *large, *twice, *ordered, *got;
static cudaStream_t aside;

static int act(what w) {
    size_t a, b;
    int code;
    got = nullptr;
    switch (w) {
    case malloc_new:
        return cudaMalloc(&got, 777216);
    case malloc_cached:
        return cudaMalloc(&got, 4096);
    case malloc_large:
        return cudaMalloc(&got, 256 << 20);
    case malloc_zero:
        return cudaMalloc(&got, 0);
    case free_small:
        code = cudaFree(small);
        small = code ? small : nullptr;
        return code;
    case free_large:
        code = cudaFree(large);
        large = code ? large : nullptr;
        return code;
    case free_null:
        return cudaFree(nullptr);
    case free_twice:
        return cudaFree(twice);
    case free_interior:
        return cudaFree((char *)small + 512);
    case pitch:
        return cudaMallocPitch(&got, &a, 1000, 10);
    case info:
        return cudaMemGetInfo(&a, &b);
    case async_pair:
        code = cudaMallocAsync(&got, 4096, aside);
        if (!code) {
            code = cudaFreeAsync(got, aside);
            got = nullptr;
        }
        return code;
    case free_of_async:
        code = cudaFree(ordered);
        ordered = code ? ordered : nullptr;
        return code;
    default:
        return -1;
    }
}

static void case_codes() {
    warm();
    aside = new_stream();
    for (int w = 0; w < what_count; w++)
        for (int m = 0; m < 3; m++)
            for (int where = 0; where < 3; where++) {
                cudaStream_t s = new_stream();
                CHECK(cudaMalloc(&small, 1 << 20));
                CHECK(cudaMalloc(&large, 64 << 20));
                CHECK(cudaMalloc(&twice, 4096));
                CHECK(cudaFree(twice));
                CHECK(cudaMallocAsync(&ordered, 4096, aside));
                CHECK(cudaDeviceSynchronize());
                CHECK(cudaStreamBeginCapture(s, modes[m]));
                fill<<<1, 32, 0, s>>>((uint32_t *)small, 0, 0);
                int code = -1, launch = (int)cudaGetLastError();
                auto body = [&] {
                    cudaStreamCaptureMode relaxed = cudaStreamCaptureModeRelaxed;
                    if (where == 2)
                        CHECK(cudaThreadExchangeStreamCaptureMode(&relaxed));
                    code = act((what)w);
                    (void)cudaGetLastError();
                    if (where == 2)
                        CHECK(cudaThreadExchangeStreamCaptureMode(&relaxed));
                };
                if (where == 1)
                    std::thread(body).join();
                else
                    body();
                cudaGraph_t graph = nullptr;
                int end = (int)cudaStreamEndCapture(s, &graph);
                printf("%s, %s capture, %s: launch %d, code %d, end %d\n", what_names[w],
                       mode_names[m],
                       where == 0   ? "same thread"
                       : where == 1 ? "other thread"
                                    : "same thread, relaxed for the call",
                       launch, code, end);
                (void)cudaGetLastError();
                if (graph)
                    CHECK(cudaGraphDestroy(graph));
                CHECK(cudaStreamDestroy(s));
                CHECK(cudaFree(got));
                CHECK(cudaFree(small));
                CHECK(cudaFree(large));
                CHECK(cudaFree(ordered));
                CHECK(cudaDeviceSynchronize());
            }
}

/* Memory allocated before, during and after the capture is all in use when the graph is replayed.
 */
static void case_replay() {
    warm();
    cudaStream_t s = new_stream(), other = new_stream();
    unsigned long long *bad, wrong;
    CHECK(cudaMalloc(&bad, 8));
    CHECK(cudaMemset(bad, 0, 8));
    const size_t n = 1 << 20;
    long replays = 0;
    for (int round = 0; round < 12; round++) {
        std::vector<uint32_t *> in(4), scratch;
        uint32_t *before;
        CHECK(cudaMalloc(&before, n * 4));
        CHECK(cudaStreamBeginCapture(s, cudaStreamCaptureModeRelaxed));
        for (size_t i = 0; i < in.size(); i++) {
            CHECK(cudaMalloc(&in[i], n * 4));
            fill<<<grid_for(n), 256, 0, s>>>(in[i], n, (uint32_t)(round * 10 + i));
            /* freed and allocated during the capture, used at once on a stream without a capture
             */
            uint32_t *p;
            CHECK(cudaMalloc(&p, n * 4));
            fill<<<grid_for(n), 256, 0, other>>>(p, n, 99);
            verify<<<grid_for(n), 256, 0, other>>>(p, n, 99, bad);
            CHECK(cudaFree(p));
        }
        fill<<<grid_for(n), 256, 0, s>>>(before, n, 5);
        for (size_t i = 0; i < in.size(); i++)
            verify<<<grid_for(n), 256, 0, s>>>(in[i], n, (uint32_t)(round * 10 + i), bad);
        verify<<<grid_for(n), 256, 0, s>>>(before, n, 5, bad);
        cudaGraph_t graph;
        cudaGraphExec_t exec;
        CHECK(cudaStreamEndCapture(s, &graph));
        CHECK(cudaGraphInstantiateWithFlags(&exec, graph, 0));
        for (int k = 0; k < 5; k++) {
            CHECK(cudaGraphLaunch(exec, s));
            uint32_t *p;
            CHECK(cudaMalloc(&p, n * 4));
            fill<<<grid_for(n), 256, 0, other>>>(p, n, 7);
            verify<<<grid_for(n), 256, 0, other>>>(p, n, 7, bad);
            CHECK(cudaFree(p));
            replays++;
        }
        for (uint32_t *p : in)
            CHECK(cudaFree(p)); /* the last replay may still run */
        CHECK(cudaFree(before));
        CHECK(cudaGraphExecDestroy(exec));
        CHECK(cudaGraphDestroy(graph));
    }
    CHECK(cudaDeviceSynchronize());
    CHECK(cudaMemcpy(&wrong, bad, 8, cudaMemcpyDeviceToHost));
    printf("%ld replays, %llu words wrong\n", replays, wrong);
    CHECK(cudaFree(bad));
}

static void case_memory_nodes() {
    warm();
    cudaStream_t s = new_stream();
    unsigned long long *bad, wrong;
    CHECK(cudaMalloc(&bad, 8));
    CHECK(cudaMemset(bad, 0, 8));
    CHECK(cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal));
    uint32_t *p;
    codes("cudaMallocAsync in capture %d", {(int)cudaMallocAsync(&p, 1 << 22, s)});
    fill<<<64, 256, 0, s>>>(p, 1 << 20, 3);
    verify<<<64, 256, 0, s>>>(p, 1 << 20, 3, bad);
    codes(", cudaFreeAsync %d", {(int)cudaFreeAsync(p, s)});
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    codes(", end %d", {(int)cudaStreamEndCapture(s, &graph)});
    size_t nodes = 0;
    CHECK(cudaGraphGetNodes(graph, nullptr, &nodes));
    printf(", %zu nodes", nodes);
    CHECK(cudaGraphInstantiateWithFlags(&exec, graph, 0));
    for (int i = 0; i < 20; i++) {
        void *q;
        CHECK(cudaGraphLaunch(exec, s));
        CHECK(cudaMalloc(&q, 1 << (12 + i % 10)));
        CHECK(cudaFree(q));
    }
    CHECK(cudaStreamSynchronize(s));
    CHECK(cudaMemcpy(&wrong, bad, 8, cudaMemcpyDeviceToHost));
    printf(", %llu words wrong", wrong);
    codes(", trim %d\n", {(int)cudaDeviceGraphMemTrim(0)});
    CHECK(cudaGraphExecDestroy(exec));
    CHECK(cudaGraphDestroy(graph));
    /* a graph that leaves its memory to the program, which frees it with cudaFree */
    CHECK(cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal));
    CHECK(cudaMallocAsync(&p, 1 << 22, s));
    CHECK(cudaStreamEndCapture(s, &graph));
    CHECK(cudaGraphInstantiateWithFlags(&exec, graph, 0));
    CHECK(cudaGraphLaunch(exec, s));
    CHECK(cudaStreamSynchronize(s));
    codes("memory of a graph: cudaFree %d, again %d, last error %d\n",
          {(int)cudaFree(p), (int)cudaFree(p), (int)cudaGetLastError()});
    CHECK(cudaGraphExecDestroy(exec));
    CHECK(cudaGraphDestroy(graph));
    CHECK(cudaFree(bad));
}

/* Several threads capture at the same time in thread-local mode. Another thread allocates and
 * frees. */
static void case_several() {
    warm();
    std::vector<std::thread> pool;
    std::vector<unsigned long long> wrong(4);
    std::vector<int> failed(4);
    for (int t = 0; t < 4; t++)
        pool.emplace_back([&, t] {
            cudaStream_t s = new_stream();
            unsigned long long *bad;
            CHECK(cudaMalloc(&bad, 8));
            CHECK(cudaMemsetAsync(bad, 0, 8, s));
            const size_t n = 1 << 16;
            for (int round = 0; round < 40; round++) {
                uint32_t *p;
                CHECK(cudaMalloc(&p, n * 4));
                if (t == 3) {
                    fill<<<64, 256, 0, s>>>(p, n, (uint32_t)round);
                    verify<<<64, 256, 0, s>>>(p, n, (uint32_t)round, bad);
                } else {
                    cudaGraph_t graph = nullptr;
                    cudaGraphExec_t exec;
                    CHECK(cudaStreamBeginCapture(s, cudaStreamCaptureModeThreadLocal));
                    fill<<<64, 256, 0, s>>>(p, n, (uint32_t)round);
                    verify<<<64, 256, 0, s>>>(p, n, (uint32_t)round, bad);
                    if (cudaStreamEndCapture(s, &graph) != cudaSuccess) {
                        failed[t]++;
                        (void)cudaGetLastError();
                    } else {
                        CHECK(cudaGraphInstantiateWithFlags(&exec, graph, 0));
                        CHECK(cudaGraphLaunch(exec, s));
                        CHECK(cudaGraphLaunch(exec, s));
                        CHECK(cudaGraphExecDestroy(exec));
                        CHECK(cudaGraphDestroy(graph));
                    }
                }
                CHECK(cudaFree(p));
            }
            CHECK(cudaMemcpyAsync(&wrong[t], bad, 8, cudaMemcpyDeviceToHost, s));
            CHECK(cudaStreamSynchronize(s));
            CHECK(cudaFree(bad));
        });
    for (auto &t : pool)
        t.join();
    for (int t = 0; t < 4; t++)
        printf("thread %d: %d captures failed, %llu words wrong\n", t, failed[t], wrong[t]);
}

/* Memory is still reused after captures that were invalidated, abandoned or built by hand. */
static void case_afterwards() {
    warm();
    cudaStream_t s = new_stream();
    void *p, *q;
    cudaGraph_t graph = nullptr;
    CHECK(cudaMalloc(&p, 1 << 20));
    CHECK(cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal));
    codes("stream destroyed while it captures %d, last error %d\n",
          {(int)cudaStreamDestroy(s), (int)cudaGetLastError()});
    s = new_stream();
    CHECK(cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal));
    codes("device synchronised in a capture %d, end %d, last error %d\n",
          {(int)cudaDeviceSynchronize(), (int)cudaStreamEndCapture(s, &graph),
           (int)cudaGetLastError()});
    codes("begin twice %d", {(int)cudaStreamBeginCapture(s, cudaStreamCaptureModeRelaxed)});
    codes(" %d, end %d, end again %d, last error %d\n",
          {(int)cudaStreamBeginCapture(s, cudaStreamCaptureModeRelaxed),
           (int)cudaStreamEndCapture(s, &graph), (int)cudaStreamEndCapture(s, &graph),
           (int)cudaGetLastError()});
    codes("legacy stream: begin %d, last error %d\n",
          {(int)cudaStreamBeginCapture(nullptr, cudaStreamCaptureModeRelaxed),
           (int)cudaGetLastError()});
#if CUDART_VERSION >= 12030
    CHECK(cudaGraphCreate(&graph, 0));
    codes("to a graph: begin %d",
          {(int)cudaStreamBeginCaptureToGraph(s, graph, nullptr, nullptr, 0,
                                              cudaStreamCaptureModeRelaxed)});
    codes(", malloc %d, free %d", {(int)cudaMalloc(&q, 1 << 20), (int)cudaFree(p)});
    cudaGraph_t same;
    codes(", end %d\n", {(int)cudaStreamEndCapture(s, &same)});
    CHECK(cudaFree(q));
#endif
    for (int i = 0; i < 200; i++) {
        CHECK(cudaMalloc(&p, 4096 << i % 12));
        CHECK(cudaMemsetAsync(p, i, 4096, s));
        CHECK(cudaFree(p));
    }
    codes("afterwards: sync %d, last error %d\n",
          {(int)cudaDeviceSynchronize(), (int)cudaGetLastError()});
}

int main(int argc, char **argv) {
    static const struct {
        const char *name;
        void (*run)();
    } cases[] = {{"codes", case_codes},
                 {"replay", case_replay},
                 {"memory_nodes", case_memory_nodes},
                 {"several", case_several},
                 {"afterwards", case_afterwards}};
    return run_cases(argc, argv, cases);
}
