/*
 * Tests contexts, peers, and context events: the work that a record captures and a wait orders.
 */
#include "test_sim.h"

#include <pthread.h>

static void test_primary_context_comes_and_goes(void **state) {
    CUcontext primary, again;
    CUdeviceptr p;
    unsigned flags;
    int active;

    (void)state;
    OK(cuDevicePrimaryCtxRetain(&primary, 0));
    OK(cuCtxSetCurrent(primary));
    OK(cuMemAlloc_v2(&p, 64));
    OK(cuDevicePrimaryCtxReset_v2(0));
    OK(cuDevicePrimaryCtxGetState(0, &flags, &active));
    assert_int_equal(active, 0);
    FAILS(CUDA_ERROR_CONTEXT_IS_DESTROYED, cuMemFree_v2(p));
    OK(cuDevicePrimaryCtxRetain(&again, 0));
    assert_ptr_equal(primary, again);
    FAILS(CUDA_ERROR_INVALID_VALUE, cuMemFree_v2(p));
    OK(cuDevicePrimaryCtxRelease_v2(0));
    OK(cuDevicePrimaryCtxRelease_v2(0));
    FAILS(CUDA_ERROR_INVALID_CONTEXT, cuDevicePrimaryCtxRelease_v2(0));
    FAILS(CUDA_ERROR_CONTEXT_IS_DESTROYED, cuMemAlloc_v2(&p, 64));
}

static void test_destroying_a_context_frees_its_memory(void **state) {
    CUcontext other;
    CUdeviceptr p;
    uint64_t used = sim_used_memory(0);

    (void)state;
    OK(cuCtxCreate_v2(&other, 0, 0));
    OK(cuMemAlloc_v2(&p, 10 << 20));
    OK(cuMemAlloc_v2(&p, 10));
    OK(cuCtxDestroy_v2(other));
    assert_int_equal(sim_used_memory(0), used);
    FAILS(CUDA_ERROR_INVALID_VALUE, cuMemFree_v2(p));
    OK(cuCtxGetCurrent(&other));
    assert_ptr_equal(other, context);
}

static void test_peer_access_has_to_be_enabled(void **state) {
    CUcontext second;
    CUdeviceptr p;

    (void)state;
    OK(cuMemAlloc_v2(&p, 4096));
    OK(cuCtxCreate_v2(&second, 0, 1));
    load_kernels();
    FAILS(CUDA_ERROR_PEER_ACCESS_NOT_ENABLED, cuCtxDisablePeerAccess(context));
    OK(cuCtxEnablePeerAccess(context, 0));
    FAILS(CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED, cuCtxEnablePeerAccess(context, 0));
    launch_fill(NULL, p, 3, 10);
    OK(cuCtxSynchronize());
    assert_int_equal(read_u32(p), 3);
    OK(cuCtxDisablePeerAccess(context));
    launch_fill(NULL, p, 4, 10);
    FAILS(CUDA_ERROR_ILLEGAL_ADDRESS, cuCtxSynchronize());
}

/* Tests which work counts as the context's for a free and a record. */
static void test_peer_copies_count_and_peer_kernels_do_not(void **state) {
    CUcontext second;
    CUdeviceptr p, q, there;
    CUevent event;
    CUstream s;

    (void)state;
    OK(cuMemAlloc_v2(&p, 4096));
    OK(cuMemAlloc_v2(&q, 4096));
    OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    OK(cuCtxCreate_v2(&second, 0, 1));
    load_kernels();
    OK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
    OK(cuMemAlloc_v2(&there, 4096));
    OK(cuCtxEnablePeerAccess(context, 0));
    launch_fill(s, q, 1, 10);
    OK(cuCtxRecordEvent(context, event));
    OK(cuEventSynchronize(event));
    OK(cuMemFree_v2(p));
    assert_int_equal(sim_pending_work(), 1); /* the kernel of device 1 */
    OK(cuMemcpyPeerAsync(there, second, q, context, 64, s));
    OK(cuCtxRecordEvent(context, event));
    FAILS(CUDA_ERROR_NOT_READY, cuEventQuery(event));
    OK(cuMemFree_v2(q));
    assert_int_equal(sim_pending_work(), 0);
}

/* ---- context events -------------------------------------------------------------------------- */

static void test_record_captures_every_stream(void **state) {
    CUstream blocking, streams[5] = {a, b, NULL, CU_STREAM_PER_THREAD};
    CUevent event;

    (void)state;
    OK(cuStreamCreate(&blocking, CU_STREAM_DEFAULT));
    streams[4] = blocking;
    OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    for (int i = 0; i < 5; i++) {
        launch_spin(streams[i], flag, 1);
        OK(cuCtxRecordEvent(context, event));
        sim_step(100);
        FAILS(CUDA_ERROR_NOT_READY, cuEventQuery(event));
        *(uint32_t *)flag = 1;
        sim_step(100);
        OK(cuEventQuery(event));
        *(uint32_t *)flag = 0;
    }
}

static void test_record_does_not_capture_later_work(void **state) {
    CUevent event;

    (void)state;
    OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    OK(cuCtxRecordEvent(context, event));
    launch_spin(a, flag, 1);
    OK(cuEventSynchronize(event));
    *(uint32_t *)flag = 1;
}

static void *launch_in_thread(void *at) {
    OK(cuCtxSetCurrent(context));
    launch_fill(b, (CUdeviceptr)(uintptr_t)at, 9, 1);
    return NULL;
}

/* All work submitted after the wait runs after the work that the event captured. */
static void test_wait_orders_all_future_work(void **state) {
    CUstream later;
    CUevent event;
    CUdeviceptr p, pool_block;
    CUgraph graph;
    CUgraphExec exec;
    pthread_t thread;
    CUcontext none;

    (void)state;
    OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    OK(cuMemAlloc_v2(&p, 4096));
    OK(cuMemsetD32_v2(p, 0, 16));
    OK(cuStreamBeginCapture_v2(b, CU_STREAM_CAPTURE_MODE_GLOBAL));
    launch_fill(b, p, 9, 1);
    OK(cuStreamEndCapture(b, &graph));
    OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
    OK(cuCtxSynchronize());
    launch_spin(a, flag, 1);
    OK(cuCtxPopCurrent_v2(&none)); /* works without a current context */
    OK(cuCtxRecordEvent(context, event));
    OK(cuCtxWaitEvent(context, event));
    OK(cuCtxPushCurrent_v2(context));
    OK(cuStreamCreate(&later, CU_STREAM_NON_BLOCKING));
    launch_fill(b, p, 9, 1);
    launch_fill(later, p + 4, 9, 1);
    launch_fill(NULL, p + 8, 9, 1);
    launch_fill(CU_STREAM_PER_THREAD, p + 12, 9, 1);
    OK(cuMemsetD32Async(p + 16, 9, 1, b));
    OK(cuGraphLaunch(exec, later));
    OK(cuMemAllocAsync(&pool_block, 4, later));
    launch_fill(later, pool_block, 9, 1);
    pthread_create(&thread, NULL, launch_in_thread, (void *)(uintptr_t)(p + 20));
    pthread_join(thread, NULL);
    uint64_t pending = sim_pending_work();
    sim_step(1000);
    assert_int_equal(sim_pending_work(), pending);
    for (unsigned i = 0; i < 6; i++)
        assert_int_equal(read_u32(p + 4 * i), 0);
    *(uint32_t *)flag = 1;
    OK(cuCtxSynchronize());
    for (unsigned i = 0; i < 6; i++)
        assert_int_equal(read_u32(p + 4 * i), 9);
    OK(cuGraphExecDestroy(exec));
    OK(cuGraphDestroy(graph));
}

static void test_wait_accepts_another_contexts_event_and_record_does_not(void **state) {
    CUcontext second;
    CUevent event;

    (void)state;
    OK(cuCtxCreate_v2(&second, 0, 1));
    OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    FAILS(CUDA_ERROR_INVALID_HANDLE, cuCtxRecordEvent(context, event));
    OK(cuCtxRecordEvent(second, event));
    OK(cuCtxWaitEvent(context, event));
    FAILS(CUDA_ERROR_INVALID_CONTEXT, cuCtxRecordEvent(NULL, event));
    FAILS(CUDA_ERROR_INVALID_CONTEXT, cuCtxWaitEvent(NULL, event));
}

static void test_late_records_hang_and_others_do_not(void **state) {
    (void)state;
    assert_int_equal(run_scene("native free before"), 0);
    assert_int_equal(run_scene("barrier on time"), 0);
    assert_int_equal(run_scene("barrier late"), SIM_HANG_STATUS);
    assert_int_equal(run_scene("free in another thread"), SIM_HANG_STATUS);
}

/* The same results were measured on an H100 (tests/gpu/facts_held.cu). */
static void
test_records_in_idle_streams_are_held_up_and_asking_the_stream_passes_them_over(void **state) {
    CUstream busy, idle[2];
    CUevent waited, records[2], before;

    (void)state;
    OK(cuStreamCreate(&busy, CU_STREAM_NON_BLOCKING));
    OK(cuEventCreate(&waited, CU_EVENT_DISABLE_TIMING));
    OK(cuEventCreate(&before, CU_EVENT_DISABLE_TIMING));
    OK(cuEventRecord(before, busy));
    OK(cuCtxSynchronize());
    for (unsigned i = 0; i < 2; i++) {
        OK(cuStreamCreate(&idle[i], i ? CU_STREAM_DEFAULT : CU_STREAM_NON_BLOCKING));
        OK(cuEventCreate(&records[i], CU_EVENT_DISABLE_TIMING));
    }
    for (uint32_t turn = 1; turn <= 20; turn++) {
        sim_set_seed(turn);
        launch_spin(busy, flag, turn);
        OK(cuCtxRecordEvent(context, waited));
        OK(cuCtxWaitEvent(context, waited));
        for (unsigned i = 0; i < 2; i++) {
            OK(cuStreamWaitEvent(idle[i], before, 0));
            OK(cuEventRecord(records[i], idle[i]));
            OK(cuStreamQuery(idle[i]));
            OK(cuStreamSynchronize(idle[i]));
            assert_int_equal(cuEventQuery(records[i]), CUDA_ERROR_NOT_READY);
        }
        *(uint32_t *)(uintptr_t)flag = turn; /* every stream stands behind the wait */
        OK(cuEventSynchronize(waited));
        OK(cuEventQuery(records[0]));
        OK(cuEventQuery(records[1]));
    }
    launch_spin(NULL, flag + 4, 1);
    OK(cuEventRecord(records[1], idle[1]));
    OK(cuStreamSynchronize(idle[1]));
    assert_int_equal(cuEventQuery(records[1]), CUDA_ERROR_NOT_READY);
    launch_set(busy, flag + 4, 1);
    OK(cuEventSynchronize(records[1]));
    OK(cuCtxSynchronize());
}

/* Memory of cuMemAlloc has an owner; mapped memory has none. */
static void test_synchronous_copies_wait_for_the_owners_null_stream(void **state) {
    CUmemGenericAllocationHandle page;
    CUdeviceptr p, mapped;
    CUcontext second;
    uint32_t value = 0;

    (void)state;
    OK(cuMemAlloc_v2(&p, 4096));
    OK(cuMemCreate(&page, GRANULE, &page_prop, 0));
    OK(cuMemAddressReserve(&mapped, GRANULE, 0, 0, 0));
    OK(cuMemMap(mapped, GRANULE, 0, page, 0));
    OK(cuMemSetAccess(mapped, GRANULE, &page_access, 1));
    OK(cuMemsetD32_v2(p, 0, 1));
    OK(cuMemsetD32_v2(mapped, 0, 1));
    OK(cuCtxSynchronize());
    OK(cuCtxCreate_v2(&second, 0, 0));
    for (uint32_t turn = 1; turn <= 20; turn++) {
        OK(cuCtxSetCurrent(context));
        launch_spin(NULL, flag, turn);
        OK(cuMemsetD32_v2(p, turn, 1));
        OK(cuMemsetD32_v2(mapped, turn, 1));
        OK(cuCtxSetCurrent(second));
        OK(cuMemcpyDtoHAsync_v2(&value, p, 4, NULL));
        assert_int_equal(value, turn == 1 ? 0 : 1000);
        OK(cuMemcpyDtoH_v2(&value, mapped, 4));
        assert_int_equal(value, turn - 1);
        launch_set(b, flag, turn);
        OK(cuMemcpyDtoH_v2(&value, p, 4));
        assert_int_equal(value, turn);
        OK(cuMemcpyDtoH_v2(&value, mapped, 4));
        assert_int_equal(value, turn);
        OK(cuCtxSetCurrent(context));
        launch_spin(NULL, flag, 100 + turn);
        OK(cuMemsetD32_v2(p, turn, 1));
        launch_set(b, flag, 100 + turn);
        OK(cuCtxSetCurrent(second));
        value = 1000;
        OK(cuMemcpyHtoD_v2(p, &value, 4));
        OK(cuCtxSetCurrent(context));
        OK(cuCtxSynchronize());
        assert_int_equal(read_u32(p), 1000);
    }
}

int test_contexts(void) {
    static const struct CMUnitTest tests[] = {
        TEST(test_primary_context_comes_and_goes),
        TEST(test_destroying_a_context_frees_its_memory),
        TEST(test_peer_access_has_to_be_enabled),
        TEST(test_peer_copies_count_and_peer_kernels_do_not),
        TEST(test_record_captures_every_stream),
        TEST(test_record_does_not_capture_later_work),
        TEST(test_wait_orders_all_future_work),
        TEST(test_wait_accepts_another_contexts_event_and_record_does_not),
        TEST(test_late_records_hang_and_others_do_not),
        TEST(test_records_in_idle_streams_are_held_up_and_asking_the_stream_passes_them_over),
        TEST(test_synchronous_copies_wait_for_the_owners_null_stream),
    };

    return cmocka_run_group_tests_name("contexts", tests, NULL, NULL);
}
