/*
 * Tests the scheduler: required order is kept, other work is reordered. Tests the process's end.
 */
#include "test_sim.h"

#include <pthread.h>

static char order[64];
static size_t order_length;

static void CUDA_CB note(void *letter) {
    order[order_length++] = *(const char *)letter;
}

static void run_letters(uint64_t seed) {
    static const char letters[] = "abcdefghijkl";
    CUstream streams[4];

    order_length = 0;
    sim_set_seed(seed);
    for (int i = 0; i < 4; i++)
        OK(cuStreamCreate(&streams[i], CU_STREAM_NON_BLOCKING));
    for (int i = 0; i < 12; i++)
        OK(cuLaunchHostFunc(streams[i % 4], note, (void *)&letters[i]));
    OK(cuCtxSynchronize());
    order[order_length] = 0;
    for (int i = 0; i < 4; i++)
        OK(cuStreamDestroy_v2(streams[i]));
}

static void test_a_seed_is_a_schedule(void **state) {
    char first[64];
    int different = 0;

    (void)state;
    run_letters(7);
    strcpy(first, order);
    assert_int_equal(strlen(first), 12);
    for (uint64_t seed = 0; seed < 50; seed++) {
        run_letters(seed);
        different += strcmp(order, first) != 0;
        for (int i = 0; i < 4; i++) /* in each stream in order */
            assert_true(strchr(order, "abcd"[i]) < strchr(order, "efgh"[i]) &&
                        strchr(order, "efgh"[i]) < strchr(order, "ijkl"[i]));
    }
    assert_true(different > 40);
    run_letters(7);
    assert_string_equal(order, first);
}

static void test_legacy_stream_is_ordered_with_blocking_streams(void **state) {
    CUstream blocking;
    CUdeviceptr p;

    (void)state;
    OK(cuMemAlloc_v2(&p, 4096));
    OK(cuStreamCreate(&blocking, CU_STREAM_DEFAULT));
    for (uint64_t seed = 1; seed < 50; seed++) {
        sim_set_seed(seed);
        launch_fill(blocking, p, 1, 64);
        launch_fill(NULL, p, 2, 64);
        launch_fill(blocking, p + 128, 3, 32);
        OK(cuStreamSynchronize(NULL)); /* stands for all blocking streams */
        assert_int_equal(sim_pending_work(), 0);
        assert_int_equal(read_u32(p + 4), 2);
        assert_int_equal(read_u32(p + 252), 3);
    }
    launch_spin(a, flag, 1);
    launch_fill(NULL, p, 7, 1);
    OK(cuStreamSynchronize(NULL)); /* does not wait for non-blocking streams */
    *(uint32_t *)flag = 1;
}

static void test_events_order_streams(void **state) {
    CUevent event;
    CUdeviceptr p;
    float ms;

    (void)state;
    OK(cuEventCreate(&event, 0));
    OK(cuEventQuery(event));
    OK(cuMemAlloc_v2(&p, 4096));
    for (uint64_t seed = 1; seed < 50; seed++) {
        sim_set_seed(seed);
        launch_fill(a, p, 1, 256);
        OK(cuEventRecord(event, a));
        OK(cuStreamWaitEvent(b, event, 0));
        launch_fill(b, p, 2, 256);
        OK(cuStreamSynchronize(b));
        assert_int_equal(read_u32(p + 1020), 2);
    }
    OK(cuEventElapsedTime(&ms, event, event));
}

static void test_values_can_be_waited_for(void **state) {
    (void)state;
    OK(cuStreamWaitValue32_v2(a, flag, 5, CU_STREAM_WAIT_VALUE_GEQ));
    launch_set(a, flag + 64, 1);
    OK(cuStreamWriteValue32_v2(b, flag, 6, 0));
    OK(cuStreamSynchronize(a));
    assert_int_equal(read_u32(flag + 64), 1);
}

/* Compares random copies in streams with events to the same copies without streams. */
static void test_dependencies_hold_in_every_schedule(void **state) {
    enum { SLOTS = 8, STEPS = 40, STREAMS = 4 };
    CUstream streams[STREAMS];
    CUevent events[SLOTS];
    CUdeviceptr slots;
    uint32_t expected[SLOTS], seed = 1;

    (void)state;
    OK(cuMemAlloc_v2(&slots, SLOTS * 512));
    for (int i = 0; i < STREAMS; i++)
        OK(cuStreamCreate(&streams[i], CU_STREAM_NON_BLOCKING));
    for (int i = 0; i < SLOTS; i++)
        OK(cuEventCreate(&events[i], CU_EVENT_DISABLE_TIMING));
    sim_set_eager(30);
    for (unsigned round = 0; round < 200; round++) {
        sim_set_seed(round + 1);
        OK(cuMemsetD32_v2(slots, 1, SLOTS * 128));
        OK(cuCtxSynchronize());
        for (int i = 0; i < SLOTS; i++)
            expected[i] = 1;
        for (int step = 0; step < STEPS; step++) {
            seed = seed * 1664525 + 1013904223;
            unsigned to = seed >> 8 & 7, x = seed >> 12 & 7, y = seed >> 16 & 7;
            CUstream s = streams[seed >> 20 & 3];
            CUdeviceptr pt = slots + 512 * to, px = slots + 512 * x, py = slots + 512 * y;
            uint64_t count = 128;
            /* each slot's event follows its last use, and every use waits for all three */
            OK(cuStreamWaitEvent(s, events[to], 0));
            OK(cuStreamWaitEvent(s, events[x], 0));
            OK(cuStreamWaitEvent(s, events[y], 0));
            launch(add, s, (void *[]){&pt, &px, &py, &count});
            OK(cuEventRecord(events[to], s));
            OK(cuEventRecord(events[x], s));
            OK(cuEventRecord(events[y], s));
            expected[to] = expected[x] + expected[y];
        }
        OK(cuCtxSynchronize());
        for (unsigned i = 0; i < SLOTS; i++)
            for (unsigned j = 0; j < 128; j++)
                assert_int_equal(read_u32(slots + 512 * i + 4 * j), expected[i]);
    }
}

static int called; /* set by a host function, in another thread */

static void CUDA_CB call_driver(void *unused) {
    CUdeviceptr p;

    (void)unused;
    int result = cuMemAlloc_v2(&p, 64) == CUDA_ERROR_NOT_PERMITTED ? 1 : 2;
    __atomic_store_n(&called, result, __ATOMIC_SEQ_CST);
}

static void test_work_goes_on_while_nobody_calls(void **state) {
    (void)state;
    setenv("GPUCACHE_SIM_IDLE_MS", "5", 1);
    sim_reset();
    start();
    called = 0;
    OK(cuLaunchHostFunc(a, call_driver, NULL));
    for (int i = 0; i < 2000 && !__atomic_load_n(&called, __ATOMIC_SEQ_CST); i++)
        usleep(1000);
    assert_int_equal(__atomic_load_n(&called, __ATOMIC_SEQ_CST), 1);
    OK(cuStreamSynchronize(a)); /* the next test resets the streams: the function must be over */
}

static void test_process_life(void **state) {
    (void)state;
    assert_int_equal(run_scene("before init"), 0);
    assert_int_equal(run_scene("after exit"), 42);
    assert_int_equal(run_scene("forked child"), 0);
}

static void *thread_of_many(void *number) {
    unsigned me = (unsigned)(uintptr_t)number;
    CUstream s;
    CUdeviceptr p, errors;

    OK(cuCtxSetCurrent(context));
    OK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
    OK(cuMemAlloc_v2(&errors, 4));
    OK(cuMemsetD32Async(errors, 0, 1, s));
    for (unsigned i = 0; i < 200; i++) {
        uint64_t count = 64 + i;
        uint32_t value = me << 16 | i;
        OK(cuMemAlloc_v2(&p, count * 4));
        launch_fill(s, p, value, count);
        launch(check, s, (void *[]){&p, &value, &count, &errors});
        OK(cuMemFree_v2(p));
    }
    OK(cuStreamSynchronize(s));
    return (void *)(uintptr_t)read_u32(errors);
}

static void test_threads_share_a_context(void **state) {
    pthread_t threads[6];
    void *errors;

    (void)state;
    sim_set_eager(50);
    for (unsigned i = 0; i < 6; i++)
        pthread_create(&threads[i], NULL, thread_of_many, (void *)(uintptr_t)(i + 1));
    for (unsigned i = 0; i < 6; i++) {
        pthread_join(threads[i], &errors);
        assert_null(errors);
    }
}

int test_streams(void) {
    static const struct CMUnitTest tests[] = {
        TEST(test_a_seed_is_a_schedule),
        TEST(test_legacy_stream_is_ordered_with_blocking_streams),
        TEST(test_events_order_streams),
        TEST(test_values_can_be_waited_for),
        TEST(test_dependencies_hold_in_every_schedule),
        TEST(test_work_goes_on_while_nobody_calls),
        TEST(test_process_life),
        TEST(test_threads_share_a_context),
    };

    return cmocka_run_group_tests_name("streams", tests, NULL, NULL);
}
