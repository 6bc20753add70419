/*
 * Tests the calls that captures forbid, and how captures end.
 */
#include "test_sim.h"

#include <pthread.h>

#define IN_CAPTURE(mode, error, call)                                                              \
    do {                                                                                           \
        CUgraph made;                                                                              \
        OK(cuStreamBeginCapture_v2(a, mode));                                                      \
        FAILS(error, call);                                                                        \
        bool destroyed = (error) >= 900;                                                           \
        FAILS(destroyed ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : CUDA_SUCCESS,                    \
              cuStreamEndCapture(a, &made));                                                       \
        if (!destroyed)                                                                            \
            OK(cuGraphDestroy(made));                                                              \
    } while (0)

static void test_captures_forbid_the_same_calls_as_natively(void **state) {
    static const CUstreamCaptureMode modes[] = {CU_STREAM_CAPTURE_MODE_GLOBAL,
                                                CU_STREAM_CAPTURE_MODE_THREAD_LOCAL,
                                                CU_STREAM_CAPTURE_MODE_RELAXED};
    CUevent event;
    CUdeviceptr p;
    size_t x, y;

    (void)state;
    OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    for (int i = 0; i < 3; i++) {
        CUresult unsafe = i == 2 ? CUDA_SUCCESS : CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
        OK(cuMemAlloc_v2(&p, 64));
        IN_CAPTURE(modes[i], unsafe, cuMemFree_v2(p));
        IN_CAPTURE(modes[i], unsafe, cuMemAlloc_v2(&p, 64));
        IN_CAPTURE(modes[i], unsafe, cuEventQuery(event));
        IN_CAPTURE(modes[i], unsafe, cuStreamQuery(b));
        IN_CAPTURE(modes[i], unsafe, cuMemAllocAsync(&p, 64, b));
        IN_CAPTURE(modes[i], CUDA_SUCCESS, cuMemAllocAsync(&p, 64, a));
        IN_CAPTURE(modes[i], CUDA_SUCCESS, cuMemGetInfo_v2(&x, &y));
        IN_CAPTURE(modes[i], 900, cuCtxSynchronize());
        IN_CAPTURE(modes[i], 900, cuCtxRecordEvent(context, event));
        IN_CAPTURE(modes[i], 900, cuCtxWaitEvent(context, event));
        IN_CAPTURE(modes[i], 900, cuStreamSynchronize(a));
        IN_CAPTURE(modes[i], CUDA_ERROR_ILLEGAL_STATE, cuStreamBeginCapture_v2(a, modes[i]));
    }
    OK(cuEventRecord(event, b));
    OK(cuCtxSynchronize());
    IN_CAPTURE(modes[0], CUDA_ERROR_STREAM_CAPTURE_ISOLATION, cuStreamWaitEvent(a, event, 0));
    FAILS(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, cuStreamBeginCapture_v2(NULL, modes[0]));
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    OK(cuThreadExchangeStreamCaptureMode(&mode));
    assert_int_equal(mode, CU_STREAM_CAPTURE_MODE_GLOBAL);
    IN_CAPTURE(modes[0], CUDA_SUCCESS, cuMemAlloc_v2(&p, 64));
    IN_CAPTURE(modes[0], CUDA_SUCCESS, cuEventQuery(event));
    OK(cuThreadExchangeStreamCaptureMode(&mode));
}

static CUresult query_result;

static void *query_in_thread(void *event) {
    OK(cuCtxSetCurrent(context));
    query_result = cuEventQuery(event);
    return NULL;
}

static void test_other_threads_are_bound_by_global_captures_only(void **state) {
    CUevent event;
    CUgraph graph;
    pthread_t thread;

    (void)state;
    OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    for (int mode = 0; mode < 3; mode++) {
        OK(cuStreamBeginCapture_v2(a, (CUstreamCaptureMode)mode));
        pthread_create(&thread, NULL, query_in_thread, event);
        pthread_join(thread, NULL);
        assert_int_equal(query_result, mode == CU_STREAM_CAPTURE_MODE_GLOBAL ? 900 : 0);
        FAILS(mode == CU_STREAM_CAPTURE_MODE_GLOBAL ? 901 : 0, cuStreamEndCapture(a, &graph));
    }
}

static void test_legacy_stream_during_a_blocking_capture(void **state) {
    CUstream blocking;
    CUstreamCaptureStatus status;
    CUgraph graph;

    (void)state;
    OK(cuStreamCreate(&blocking, CU_STREAM_DEFAULT));
    OK(cuStreamBeginCapture_v2(blocking, CU_STREAM_CAPTURE_MODE_RELAXED));
    FAILS(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, cuStreamIsCapturing(NULL, &status));
    OK(cuStreamIsCapturing(blocking, &status));
    assert_int_equal(status, CU_STREAM_CAPTURE_STATUS_ACTIVE);
    FAILS(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, cuMemsetD8_v2(flag, 0, 1));
    FAILS(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, cuStreamEndCapture(blocking, &graph));
}

static void test_the_context_of_a_stream_during_a_blocking_capture(void **state) {
    CUstream blocking;
    CUstreamCaptureStatus status;
    CUcontext own;
    CUgraph graph;

    (void)state;
    OK(cuStreamCreate(&blocking, CU_STREAM_DEFAULT));
    OK(cuStreamBeginCapture_v2(blocking, CU_STREAM_CAPTURE_MODE_RELAXED));
    OK(cuStreamGetCtx(CU_STREAM_PER_THREAD, &own));
    OK(cuStreamIsCapturing(blocking, &status));
    assert_int_equal(status, CU_STREAM_CAPTURE_STATUS_ACTIVE);
    FAILS(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, cuStreamGetCtx(CU_STREAM_LEGACY, &own));
    FAILS(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, cuStreamEndCapture(blocking, &graph));
}

static void test_a_captured_fork_becomes_a_graph_that_runs(void **state) {
    CUevent forked, joined;
    CUgraph graph;
    CUgraphExec exec;
    CUdeviceptr p, scratch;
    uint64_t count = 64;
    size_t nodes = 0;

    (void)state;
    OK(cuMemAlloc_v2(&p, 4096));
    OK(cuEventCreate(&forked, CU_EVENT_DISABLE_TIMING));
    OK(cuEventCreate(&joined, CU_EVENT_DISABLE_TIMING));
    OK(cuStreamBeginCapture_v2(a, CU_STREAM_CAPTURE_MODE_GLOBAL));
    OK(cuMemAllocAsync(&scratch, 256, a));
    launch_fill(a, scratch, 3, count);
    OK(cuEventRecord(forked, a));
    OK(cuStreamWaitEvent(b, forked, 0));
    launch_fill(b, p, 4, count);
    OK(cuEventRecord(joined, b));
    launch_fill(a, p + 1024, 5, count);
    OK(cuStreamWaitEvent(a, joined, 0));
    launch(add, a, (void *[]){&(CUdeviceptr){p + 2048}, &p, &scratch, &count});
    OK(cuMemFreeAsync(scratch, a));
    OK(cuStreamEndCapture(a, &graph));
    OK(cuGraphGetNodes(graph, NULL, &nodes));
    assert_int_equal(nodes, 6);
    assert_int_equal(sim_pending_work(), 0);
    OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
    OK(cuGraphDestroy(graph));
    for (uint64_t seed = 1; seed < 50; seed++) {
        sim_set_seed(seed);
        OK(cuMemsetD32_v2(p, 0, 1024));
        OK(cuCtxSynchronize());
        OK(cuGraphLaunch(exec, b));
        OK(cuStreamSynchronize(b));
        assert_int_equal(read_u32(p + 2048 + 252), 7);
        assert_int_equal(read_u32(p + 1024), 5);
    }
    OK(cuGraphExecDestroy(exec));
    OK(cuStreamBeginCapture_v2(a, CU_STREAM_CAPTURE_MODE_GLOBAL));
    OK(cuEventRecord(forked, a));
    OK(cuStreamWaitEvent(b, forked, 0));
    launch_fill(b, p, 4, count);
    FAILS(CUDA_ERROR_STREAM_CAPTURE_UNMATCHED, cuStreamEndCapture(b, &graph));
    FAILS(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, cuStreamEndCapture(a, &graph));
    OK(cuStreamBeginCapture_v2(a, CU_STREAM_CAPTURE_MODE_GLOBAL));
    OK(cuEventRecord(forked, a));
    OK(cuStreamWaitEvent(b, forked, 0));
    launch_fill(b, p, 4, count);
    FAILS(CUDA_ERROR_STREAM_CAPTURE_UNJOINED, cuStreamEndCapture(a, &graph));
}

int test_captures(void) {
    static const struct CMUnitTest tests[] = {
        TEST(test_captures_forbid_the_same_calls_as_natively),
        TEST(test_other_threads_are_bound_by_global_captures_only),
        TEST(test_legacy_stream_during_a_blocking_capture),
        TEST(test_the_context_of_a_stream_during_a_blocking_capture),
        TEST(test_a_captured_fork_becomes_a_graph_that_runs),
    };

    return cmocka_run_group_tests_name("captures", tests, NULL, NULL);
}
