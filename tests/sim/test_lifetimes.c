/*
 * Tests which addresses and handles are reused at once, which object keeps another alive, and
 * threads whose calls overlap the end of a context.
 */
#include "test_sim.h"

#include <pthread.h>
#include <stdatomic.h>

/* ---- handles and addresses ------------------------------------------------------------------- */

static void test_a_context_handle_comes_back_at_once(void **state) {
    CUcontext first, next;

    (void)state;
    OK(cuCtxCreate_v2(&first, 0, 0));
    OK(cuCtxDestroy_v2(first));
    FAILS(CUDA_ERROR_INVALID_CONTEXT, cuCtxSetCurrent(first));
    OK(cuCtxCreate_v2(&next, 0, 1)); /* on another device, too */
    assert_ptr_equal(first, next);
    CUdevice device;
    OK(cuCtxGetDevice(&device));
    assert_int_equal(device, 1);
}

static void test_a_handle_on_a_stack_stays_dead(void **state) {
    CUcontext first, next, popped;
    CUdeviceptr p;

    (void)state;
    OK(cuCtxCreate_v2(&first, 0, 0));
    OK(cuCtxPushCurrent_v2(first)); /* pushed twice: one is left on the stack */
    OK(cuCtxDestroy_v2(first));
    OK(cuCtxGetCurrent(&popped));
    assert_ptr_equal(popped, first);
    FAILS(CUDA_ERROR_CONTEXT_IS_DESTROYED, cuMemAlloc_v2(&p, 64));
    OK(cuCtxCreate_v2(&next, 0, 0));
    assert_ptr_not_equal(first, next);
    OK(cuCtxDestroy_v2(next));
    OK(cuCtxPopCurrent_v2(&popped));
    assert_ptr_equal(popped, first);
    OK(cuCtxCreate_v2(&next, 0, 0));
    assert_ptr_equal(first, next);
}

static void *leave_it_current(void *handle) {
    OK(cuCtxSetCurrent(handle));
    return NULL;
}

static void test_a_thread_that_ends_releases_its_contexts(void **state) {
    CUcontext first, next;
    pthread_t thread;

    (void)state;
    OK(cuCtxCreate_v2(&first, 0, 0));
    pthread_create(&thread, NULL, leave_it_current, first);
    pthread_join(thread, NULL);
    OK(cuCtxDestroy_v2(first));
    OK(cuCtxCreate_v2(&next, 0, 0));
    assert_ptr_equal(first, next);
}

static void test_an_address_comes_back_at_once(void **state) {
    static const size_t sizes[] = {512, 5000, 600000, GRANULE, 3 * GRANULE, 20 * GRANULE};
    CUdeviceptr before, p, behind, again;

    (void)state;
    for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++) {
        OK(cuMemAlloc_v2(&before, sizes[i]));
        OK(cuMemAlloc_v2(&p, sizes[i]));
        OK(cuMemAlloc_v2(&behind, sizes[i]));
        OK(cuMemFree_v2(before));
        OK(cuMemFree_v2(p)); /* not at the end of the merged run */
        OK(cuMemAlloc_v2(&again, sizes[i]));
        assert_int_equal(p, again);
        OK(cuMemFree_v2(behind));
        OK(cuMemFree_v2(p));
        OK(cuMemAlloc_v2(&again, sizes[i]));
        assert_int_equal(p, again);
        OK(cuMemFree_v2(again));
    }
}

static void test_addresses_go_to_other_contexts_and_devices(void **state) {
    CUcontext other;
    CUdeviceptr p, q;
    int owner;

    (void)state;
    OK(cuMemAlloc_v2(&p, 10 * GRANULE));
    OK(cuMemFree_v2(p));
    OK(cuCtxCreate_v2(&other, 0, 0));
    OK(cuMemAlloc_v2(&q, 10 * GRANULE));
    assert_int_equal(p, q);
    OK(cuCtxDestroy_v2(other)); /* this frees the block */
    OK(cuCtxCreate_v2(&other, 0, 1));
    OK(cuMemAlloc_v2(&q, 10 * GRANULE));
    assert_int_equal(p, q);
    OK(cuPointerGetAttribute(&owner, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, q));
    assert_int_equal(owner, 1);
    assert_int_equal(sim_used_memory(1), 10 * GRANULE);
    OK(cuMemFree_v2(q));
    OK(cuMemAllocManaged(&q, 4096, CU_MEM_ATTACH_GLOBAL)); /* managed memory lies elsewhere */
    assert_int_not_equal(p, q);
}

/* ---- green contexts -------------------------------------------------------------------------- */

static CUcontext make_green(CUgreenCtx *green, CUdevice device) {
    CUdevResource all;
    CUdevResourceDesc desc;
    CUcontext view;

    OK(cuDeviceGetDevResource(device, &all, CU_DEV_RESOURCE_TYPE_SM));
    OK(cuDevResourceGenerateDesc(&desc, &all, 1));
    OK(cuGreenCtxCreate(green, desc, device, CU_GREEN_CTX_DEFAULT_STREAM));
    OK(cuCtxFromGreenCtx(&view, *green));
    return view;
}

static int is_active(CUdevice device) {
    unsigned flags;
    int active;

    OK(cuDevicePrimaryCtxGetState(device, &flags, &active));
    return active;
}

static void test_a_green_context_holds_its_primary_context(void **state) {
    CUcontext primary, view, again, owner;
    CUgreenCtx first, second;
    CUdeviceptr p, q;

    (void)state;
    assert_int_equal(is_active(1), 0);
    view = make_green(&first, 1);
    make_green(&second, 1);
    assert_int_equal(is_active(1), 1);
    OK(cuDevicePrimaryCtxRetain(&primary, 1));
    assert_ptr_not_equal(primary, view);
    OK(cuCtxPushCurrent_v2(view));
    OK(cuMemAlloc_v2(&p, 4096));
    OK(cuMemAlloc_v2(&q, 4096));
    OK(cuPointerGetAttribute(&owner, CU_POINTER_ATTRIBUTE_CONTEXT, p));
    assert_ptr_equal(owner, primary);
    OK(cuDevicePrimaryCtxRelease_v2(1));
    assert_int_equal(is_active(1), 1);
    OK(cuGreenCtxDestroy(first));
    FAILS(CUDA_ERROR_CONTEXT_IS_DESTROYED, cuMemFree_v2(p));
    OK(cuCtxPopCurrent_v2(NULL));
    assert_int_equal(is_active(1), 1);
    OK(cuMemFree_v2(p)); /* the second green context keeps it */
    OK(cuGreenCtxDestroy(second));
    assert_int_equal(is_active(1), 0);
    FAILS(CUDA_ERROR_INVALID_VALUE, cuMemFree_v2(q));
    assert_int_equal(sim_used_memory(1), 0);
    FAILS(CUDA_ERROR_INVALID_CONTEXT, cuDevicePrimaryCtxRelease_v2(1));
    OK(cuDevicePrimaryCtxRetain(&again, 1));
    assert_ptr_equal(primary, again);
    FAILS(CUDA_ERROR_INVALID_VALUE, cuMemFree_v2(q));
}

static void test_a_reset_ends_green_contexts(void **state) {
    CUcontext primary;
    CUgreenCtx green;
    CUcontext view = make_green(&green, 1), again;
    CUdeviceptr p;
    CUstream inside;

    (void)state;
    OK(cuGreenCtxStreamCreate(&inside, green, CU_STREAM_NON_BLOCKING, 0));
    OK(cuStreamBeginCapture_v2(inside, CU_STREAM_CAPTURE_MODE_GLOBAL));
    FAILS(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, cuMemAlloc_v2(&p, 64));
    OK(cuDevicePrimaryCtxReset_v2(1));
    OK(cuMemAlloc_v2(&p, 64)); /* the capture ended as well */
    FAILS(CUDA_ERROR_CONTEXT_IS_DESTROYED, cuCtxPushCurrent_v2(view));
    OK(cuDevicePrimaryCtxRetain(&primary,
                                1)); /* the primary context is alive again, the view is not */
    FAILS(CUDA_ERROR_CONTEXT_IS_DESTROYED, cuCtxPushCurrent_v2(view));
    OK(cuGreenCtxDestroy(green));
    assert_int_equal(is_active(1), 1);
    OK(cuCtxPushCurrent_v2(primary));
    OK(cuMemAlloc_v2(&p, 64));
    again = make_green(&green, 1);
    assert_ptr_equal(view, again); /* handles of views are reused too */
    OK(cuGreenCtxDestroy(green));
}

/* Records and waits of the primary context include work of green contexts. Those of a green context
 * do not include the primary context's. */
static void test_a_primary_contexts_order_includes_green_work(void **state) {
    CUcontext primary, view;
    CUgreenCtx green;
    CUevent event, own;
    CUstream inside, outside;
    CUdeviceptr at;
    CUgraph graph;

    (void)state;
    OK(cuDevicePrimaryCtxRetain(&primary, 0));
    view = make_green(&green, 0);
    OK(cuCtxPushCurrent_v2(primary));
    load_kernels();
    OK(cuMemAlloc_v2(&at, 4096));
    OK(cuMemsetD32_v2(at, 0, 1024));
    OK(cuCtxSynchronize());
    OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    OK(cuEventCreate(&own, CU_EVENT_DISABLE_TIMING));
    OK(cuStreamCreate(&outside, CU_STREAM_NON_BLOCKING));
    OK(cuGreenCtxStreamCreate(&inside, green, CU_STREAM_NON_BLOCKING, 0));
    launch_spin(inside, at, 1);
    OK(cuCtxRecordEvent(primary, event));
    sim_step(100);
    FAILS(CUDA_ERROR_NOT_READY, cuEventQuery(event));
    OK(cuMemsetD32Async(at, 1, 1, outside));
    OK(cuCtxSynchronize());
    OK(cuMemsetD32_v2(at, 0, 1));
    OK(cuCtxSynchronize());
    launch_spin(outside, at, 1);
    OK(cuGreenCtxRecordEvent(green, own));
    OK(cuEventSynchronize(own)); /* not behind the primary context's work */
    OK(cuCtxRecordEvent(primary, event));
    OK(cuCtxWaitEvent(primary, event));
    launch_fill(inside, at + 8, 7, 1);
    sim_step(100);
    assert_int_equal(read_u32(at + 8), 0);
    *(uint32_t *)at = 1;
    OK(cuCtxSynchronize());
    OK(cuStreamSynchronize(inside));
    assert_int_equal(read_u32(at + 8), 7);
    OK(cuStreamBeginCapture_v2(outside, CU_STREAM_CAPTURE_MODE_RELAXED));
    OK(cuGreenCtxRecordEvent(green, own));
    OK(cuStreamEndCapture(outside, &graph));
    OK(cuStreamBeginCapture_v2(inside, CU_STREAM_CAPTURE_MODE_RELAXED));
    FAILS(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, cuCtxRecordEvent(primary, event));
    FAILS(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, cuStreamEndCapture(inside, &graph));
    launch(fault, inside, NULL);
    FAILS(CUDA_ERROR_ILLEGAL_ADDRESS, cuStreamSynchronize(inside));
    FAILS(CUDA_ERROR_ILLEGAL_ADDRESS, cuMemAlloc_v2(&at, 64));
    OK(cuStreamDestroy_v2(inside));
    OK(cuGreenCtxDestroy(green));
    (void)view;
}

/* ---- ends while other threads call ------------------------------------------------------------
 */

static _Atomic int answer;

static void *retain_here(void *unused) {
    CUcontext primary;

    answer = -1;
    OK(cuDevicePrimaryCtxRetain(&primary, 0));
    OK(cuCtxSetCurrent(primary));
    answer = (int)cuMemAlloc_v2(&(CUdeviceptr){0}, 64);
    return unused;
}

static void *release_here(void *unused) {
    OK(cuDevicePrimaryCtxRelease_v2(0));
    return unused;
}

static void *destroy_here(void *handle) {
    OK(cuCtxDestroy_v2(handle));
    return NULL;
}

static void *free_here(void *address) {
    OK(cuCtxSetCurrent(context));
    answer = -1;
    answer = (int)cuMemFree_v2((CUdeviceptr)(uintptr_t)address);
    return NULL;
}

/* The release waits for the context's work. A thread that retains during the wait gets the next
 * generation of the context. */
static void test_a_retain_during_the_last_release_comes_after_it(void **state) {
    CUcontext primary;
    pthread_t releases, retains;
    uint32_t *there;
    size_t free_bytes, total;

    (void)state;
    OK(cuMemAllocHost_v2((void **)&there, 4));
    *there = 0;
    OK(cuDevicePrimaryCtxRetain(&primary, 0));
    OK(cuCtxPushCurrent_v2(primary));
    load_kernels();
    launch_spin(NULL, (CUdeviceptr)there, 1);
    pthread_create(&releases, NULL, release_here, NULL);
    while (cuMemGetInfo_v2(&free_bytes, &total) != CUDA_ERROR_CONTEXT_IS_DESTROYED)
        usleep(100); /* until the release has begun */
    answer = 0;
    pthread_create(&retains, NULL, retain_here, NULL);
    while (answer == 0) /* until it is about to retain */
        usleep(100);
    usleep(20000);
    assert_int_equal(answer, -1);
    __atomic_store_n(there, 1, __ATOMIC_SEQ_CST);
    pthread_join(releases, NULL);
    pthread_join(retains, NULL);
    assert_int_equal(answer, 0);
    assert_int_equal(is_active(0), 1);
}

/* A free waits for the device while another thread ends the context. The memory is freed once. */
static void test_a_free_during_the_contexts_end_frees_nothing_twice(void **state) {
    CUcontext other;
    CUdeviceptr p;
    uint32_t *there;
    pthread_t frees, ends;
    size_t free_bytes, total;

    (void)state;
    OK(cuCtxCreate_v2(&other, 0, 1));
    OK(cuMemAllocHost_v2((void **)&there, 4));
    for (int round = 0; round < 30; round++) {
        uint64_t used = sim_used_memory(0);
        *there = 0;
        OK(cuCtxCreate_v2(&context, 0, 0));
        load_kernels();
        OK(cuMemAlloc_v2(&p, 5 * GRANULE));
        launch_spin(NULL, (CUdeviceptr)there, 1);
        answer = 0;
        pthread_create(&frees, NULL, free_here, (void *)(uintptr_t)p);
        while (answer == 0) /* until it is about to free */
            usleep(100);
        usleep(2000);
        pthread_create(&ends, NULL, destroy_here, context);
        while (cuMemGetInfo_v2(&free_bytes, &total) != CUDA_ERROR_CONTEXT_IS_DESTROYED)
            usleep(100); /* as soon as the end has begun */
        OK(cuCtxSetCurrent(other));
        __atomic_store_n(there, 1, __ATOMIC_SEQ_CST);
        pthread_join(frees, NULL);
        pthread_join(ends, NULL);
        if (answer != CUDA_SUCCESS)
            assert_int_equal(answer, CUDA_ERROR_CONTEXT_IS_DESTROYED);
        assert_int_equal(sim_used_memory(0), used);
    }
}

int test_lifetimes(void) {
    static const struct CMUnitTest tests[] = {
        TEST(test_a_context_handle_comes_back_at_once),
        TEST(test_a_handle_on_a_stack_stays_dead),
        TEST(test_a_thread_that_ends_releases_its_contexts),
        TEST(test_an_address_comes_back_at_once),
        TEST(test_addresses_go_to_other_contexts_and_devices),
        TEST(test_a_green_context_holds_its_primary_context),
        TEST(test_a_reset_ends_green_contexts),
        TEST(test_a_primary_contexts_order_includes_green_work),
        TEST(test_a_retain_during_the_last_release_comes_after_it),
        TEST(test_a_free_during_the_contexts_end_frees_nothing_twice),
    };

    return cmocka_run_group_tests_name("lifetimes", tests, NULL, NULL);
}
