#include "driver/context/fault.h"

#include "driver/context/context.h"
#include "driver/context/current.h"
#include "driver/context/registry.h"
#include "driver/table/cuda_abi.h"
#include "driver/table/entries.h"
#include "pool/pool.h"

/*
 * cuda.h says of these codes that further work returns the same error until the process ends. Most
 * of them lie in two ranges of numbers. The ranges also contain a few errors that are no faults.
 */
bool fault_is_sticky(CUresult code) {
    switch ((unsigned)code) {
    case CUDA_ERROR_ECC_UNCORRECTABLE:
    case CUDA_ERROR_NVLINK_UNCORRECTABLE:
    case CUDA_ERROR_CONTAINED:
    case CUDA_ERROR_TENSOR_MEMORY_LEAK:
    case CUDA_ERROR_MPS_CLIENT_TERMINATED:
    case CUDA_ERROR_EXTERNAL_DEVICE:
        return true;
    }
    return (code >= CUDA_ERROR_ILLEGAL_ADDRESS && code <= CUDA_ERROR_LAUNCH_TIMEOUT &&
            code != CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES) ||
           (code >= CUDA_ERROR_ASSERT && code <= CUDA_ERROR_LAUNCH_FAILED &&
            code != CUDA_ERROR_TOO_MANY_PEERS &&
            code != CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED &&
            code != CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
}

/* Asks the driver whether the context has a fault, unless another thread's call may be ending it:
 * the driver would answer only after that call. */
static void ask(struct context *context, void *unused) {
    (void)unused;
    if (!registry_may_end(context) && current_push(context->handle) == CUDA_SUCCESS) {
        pool_health(context->pool);
        current_pop();
    }
}

/* Asks every context that has a pool: a stream or an event may report another context's fault. Asks
 * the current context also while another thread's call may be ending it, because that call may
 * leave the context alive. */
void fault_record(CUresult code) {
    CUcontext current = NULL;
    if (fault_is_sticky(code)) {
        context_each(ask, NULL);
        REAL(cuCtxGetCurrent)(&current);
        struct pool *pool = context_pool_of(current); /* NULL without a context */
        if (pool)
            pool_health(pool);
    }
}

CUresult fault_of(struct pool *pool) {
    return pool ? (CUresult)pool_broken(pool) : CUDA_SUCCESS;
}
