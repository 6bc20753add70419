/*
 * Tests the control interface (sim.h), and green contexts.
 */
#include "test_sim.h"

#include <pthread.h>
#include <stdatomic.h>

static int triple(struct sim_launch *l, void **params) {
    uint32_t *at = *(uint32_t **)params[0];

    if (!sim_accessible(l, (CUdeviceptr)at, 4))
        return SIM_FAULT;
    *at = *at * 3 + *(const unsigned char *)params[1];
    return l->progress++ < 1 ? SIM_MORE : SIM_DONE;
}

static void test_kernels_can_be_registered(void **state) {
    static const size_t sizes[] = {8, 1};
    CUmodule module;
    CUfunction function;
    unsigned char one = 1;

    (void)state;
    assert_int_equal(sim_register_kernel("triple", triple, 2, sizes), 0);
    OK(cuModuleLoadData(&module, "x"));
    OK(cuModuleGetFunction(&function, module, "triple"));
    FAILS(CUDA_ERROR_NOT_FOUND, cuModuleGetFunction(&function, module, "no such kernel"));
    OK(cuModuleGetFunction(&function, module, "triple"));
    OK(cuMemsetD32_v2(flag, 5, 1));
    launch(function, NULL, (void *[]){&flag, &one});
    one = 99; /* arguments were copied */
    OK(cuCtxSynchronize());
    assert_int_equal(read_u32(flag), 49);
}

static void test_faults_can_be_injected_and_calls_counted(void **state) {
    CUdeviceptr p;
    uint64_t before = sim_calls("cuMemAlloc_v2");

    (void)state;
    assert_int_equal(sim_fail("cuMemAlloc_v2", 1, CUDA_ERROR_OUT_OF_MEMORY, 2), 0);
    assert_int_equal(sim_fail("no such entry", 0, CUDA_ERROR_UNKNOWN, 1), -1);
    OK(cuMemAlloc_v2(&p, 64));
    FAILS(CUDA_ERROR_OUT_OF_MEMORY, cuMemAlloc_v2(&p, 64));
    FAILS(CUDA_ERROR_OUT_OF_MEMORY, cuMemAlloc_v2(&p, 64));
    OK(cuMemAlloc_v2(&p, 64));
    assert_int_equal(sim_calls("cuMemAlloc_v2") - before, 4);
    assert_int_equal(run_scene("fail by environment"), 0);
}

/* Records, waits and queries can fail, sometimes or always. Other calls succeed. */
static void test_records_waits_and_queries_can_fail(void **state) {
    CUevent event;

    (void)state;
    fresh_with("GPUCACHE_SIM_FAIL", "cuCtxRecordEvent:1:2:-1,cuCtxWaitEvent:0:801:1,"
                                    "cuEventQuery:0:999:2,cuGreenCtxRecordEvent:0:801:-1");
    OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    OK(cuCtxRecordEvent(context, event));
    launch_spin(a, flag, 1);
    for (int i = 0; i < 3; i++)
        FAILS(CUDA_ERROR_OUT_OF_MEMORY, cuCtxRecordEvent(context, event));
    FAILS(CUDA_ERROR_NOT_SUPPORTED, cuCtxWaitEvent(context, event));
    FAILS(CUDA_ERROR_NOT_SUPPORTED, cuGreenCtxRecordEvent(NULL, event));
    FAILS(CUDA_ERROR_UNKNOWN, cuEventQuery(event));
    FAILS(CUDA_ERROR_UNKNOWN, cuEventQuery(event));
    OK(cuEventSynchronize(event)); /* the records that failed captured nothing */
    OK(cuEventQuery(event));
    OK(cuCtxWaitEvent(context, event));
    launch_set(b, flag, 1);
    OK(cuCtxSynchronize());
}

static _Atomic int returned;

static void *allocate_here(void *unused) {
    CUdeviceptr p;

    OK(cuCtxSetCurrent(context));
    OK(cuMemAlloc_v2(&p, GRANULE));
    returned = 1;
    return unused;
}

/* Returns the number of rounds in which the effect of a call is seen before it returns. */
static int seen_before_return(const char *percent) {
    int seen = 0;

    fresh_with("GPUCACHE_SIM_SWITCH", percent);
    for (int round = 0; round < 30; round++) {
        uint64_t used = sim_used_memory(0); /* this call never switches threads */
        pthread_t thread;
        returned = 0;
        pthread_create(&thread, NULL, allocate_here, NULL);
        while (sim_used_memory(0) == used)
            ;
        usleep(1000); /* enough for a return without a switch */
        seen += !returned;
        pthread_join(thread, NULL);
    }
    return seen;
}

static void test_threads_can_be_switched_before_a_call_returns(void **state) {
    (void)state;
    setenv("GPUCACHE_SIM_SWITCH_US", "20000", 1);
    int always = seen_before_return("100"), never = seen_before_return("0");
    unsetenv("GPUCACHE_SIM_SWITCH_US");
    assert_true(always >= never + 3); /* half of the switches only yield, some sleep very briefly */
}

static void test_counts_are_written_at_the_end(void **state) {
    char path[] = "/tmp/sim-counts-XXXXXX", line[128];
    int fd = mkstemp(path), found = 0;

    (void)state;
    assert_true(fd >= 0);
    setenv("GPUCACHE_SIM_COUNTS", path, 1);
    assert_int_equal(run_scene("counts"), 0);
    unsetenv("GPUCACHE_SIM_COUNTS");
    FILE *file = fdopen(fd, "r");
    while (fgets(line, sizeof(line), file))
        found += strcmp(line, "cuMemAlloc_v2 4\n") == 0;
    fclose(file);
    unlink(path);
    assert_int_equal(found, 1);
}

static void test_green_contexts_are_contexts(void **state) {
    CUdevResource all, share;
    CUdevResourceDesc desc;
    CUgreenCtx green;
    CUcontext inside;
    CUstream s;
    CUdeviceptr p;
    unsigned groups = 1;

    (void)state;
    OK(cuDeviceGetDevResource(0, &all, CU_DEV_RESOURCE_TYPE_SM));
    OK(cuDevSmResourceSplitByCount(&share, &groups, &all, NULL, 0, 16));
    OK(cuDevResourceGenerateDesc(&desc, &share, 1));
    OK(cuGreenCtxCreate(&green, desc, 0, CU_GREEN_CTX_DEFAULT_STREAM));
    OK(cuCtxFromGreenCtx(&inside, green));
    OK(cuGreenCtxStreamCreate(&s, green, CU_STREAM_NON_BLOCKING, 0));
    OK(cuCtxPushCurrent_v2(inside));
    OK(cuMemAlloc_v2(&p, 64));
    OK(cuMemsetD8Async(p, 1, 64, s));
    OK(cuCtxSynchronize());
    OK(cuCtxPopCurrent_v2(NULL));
    OK(cuGreenCtxDestroy(green));
}

int test_control(void) {
    static const struct CMUnitTest tests[] = {
        TEST(test_kernels_can_be_registered),
        TEST(test_faults_can_be_injected_and_calls_counted),
        TEST(test_records_waits_and_queries_can_fail),
        TEST(test_threads_can_be_switched_before_a_call_returns),
        TEST(test_counts_are_written_at_the_end),
        TEST(test_green_contexts_are_contexts),
    };

    return cmocka_run_group_tests_name("control", tests, NULL, NULL);
}
