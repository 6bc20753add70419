/* Tests which error codes of the driver end a context for good: NVIDIA's cuda.h says so of each. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "driver/context/context.h"
#include "driver/context/fault.h"
#include "driver/context/registry.h"
#include "driver/table/cuda_abi.h"
#include "driver/table/entries.h"

/* fault_record() needs the next four; no test calls it. */
struct real_entries real_entries;

struct pool *context_pool_of(CUcontext handle) {
    (void)handle;
    return NULL;
}

bool registry_may_end(const struct context *context) {
    return context->ending > 0;
}

void context_each(void (*function)(struct context *context, void *with), void *with) {
    (void)function;
    (void)with;
}

static void check_each(const int *codes, size_t count, bool deadly) {
    for (size_t i = 0; i < count; i++)
        if (fault_is_sticky((CUresult)codes[i]) != deadly)
            fail_msg("error %d is %s", codes[i], deadly ? "not deadly" : "deadly");
}

static void faults_are_deadly(void **state) {
    (void)state;
    static const int codes[] = {
        CUDA_ERROR_ECC_UNCORRECTABLE,
        CUDA_ERROR_NVLINK_UNCORRECTABLE,
        CUDA_ERROR_CONTAINED,
        CUDA_ERROR_ILLEGAL_ADDRESS,
        CUDA_ERROR_LAUNCH_TIMEOUT,
        CUDA_ERROR_ASSERT,
        CUDA_ERROR_HARDWARE_STACK_ERROR,
        CUDA_ERROR_ILLEGAL_INSTRUCTION,
        CUDA_ERROR_MISALIGNED_ADDRESS,
        CUDA_ERROR_INVALID_ADDRESS_SPACE,
        CUDA_ERROR_INVALID_PC,
        CUDA_ERROR_LAUNCH_FAILED,
        CUDA_ERROR_TENSOR_MEMORY_LEAK,
        CUDA_ERROR_MPS_CLIENT_TERMINATED,
        CUDA_ERROR_EXTERNAL_DEVICE,
    };
    check_each(codes, sizeof codes / sizeof *codes, true);
}

static void errors_that_are_no_faults_are_not_deadly(void **state) {
    (void)state;
    static const int codes[] = {
        CUDA_SUCCESS,
        CUDA_ERROR_INVALID_VALUE,
        CUDA_ERROR_OUT_OF_MEMORY,
        CUDA_ERROR_NOT_READY,
        CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES,
        CUDA_ERROR_TOO_MANY_PEERS,
        CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED,
        CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED,
        CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE,
        CUDA_ERROR_STREAM_CAPTURE_INVALIDATED,
        CUDA_ERROR_CONTEXT_IS_DESTROYED,
        CUDA_ERROR_UNKNOWN,
    };
    check_each(codes, sizeof codes / sizeof *codes, false);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(faults_are_deadly),
        cmocka_unit_test(errors_that_are_no_faults_are_not_deadly),
    };
    return cmocka_run_group_tests_name("fault", tests, NULL, NULL);
}
