#include "driver/fault.h"

#include "driver/across.h"
#include "driver/bounds.h"
#include "driver/context.h"
#include "driver/entries.h"
#include "driver/ipc_pages.h"
#include "pool/pool.h"
#include "process/helper.h"

bool fault_is_deadly(CUresult code) {
    return (code >= CUDA_ERROR_ILLEGAL_ADDRESS && code <= CUDA_ERROR_LAUNCH_TIMEOUT &&
            code != CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES) ||
           (code >= CUDA_ERROR_ASSERT && code <= CUDA_ERROR_LAUNCH_FAILED &&
            code != CUDA_ERROR_TOO_MANY_PEERS &&
            code != CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED &&
            code != CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED) ||
           code == CUDA_ERROR_ECC_UNCORRECTABLE || code == CUDA_ERROR_NVLINK_UNCORRECTABLE;
}

void fault_look(CUresult code) {
    struct pool *pool = fault_is_deadly(code) ? context_pool() : NULL;
    /* An event's query may tell of another context than the current one. */
    struct backend *backend = pool ? pool_backend(pool) : NULL;
    if (pool && fault_is_deadly((CUresult)backend->ops->health(backend))) {
        pool_break(pool, (int)code);
    }
}

CUresult fault_of(struct pool *pool) {
    return pool ? (CUresult)pool_broken(pool) : CUDA_SUCCESS;
}

/*
 * Natively any device's memory is copied and filled from any context. Pages, only where their device has been
 * given access: with the first call that needs it.
 */
static __attribute__((noinline, cold)) bool may_be_out_of_reach(void) {
    if (atomic_load(&process_state) != PROCESS_STARTED) {
        return false;
    }
    bool imported = ipc_pages_reach_all();
    return context_reach_all() || imported;
}

#define NOTICED(symbol, since, parameters, arguments)                                              \
    CUresult hook_##symbol parameters {                                                            \
        helper_start_wanted();                                                                     \
        CUresult r = REAL(symbol) arguments;                                                       \
        if (__builtin_expect(r == CUDA_ERROR_INVALID_VALUE, 0) && may_be_out_of_reach()) {         \
            r = REAL(symbol) arguments;                                                            \
        }                                                                                          \
        return fault_notice(r);                                                                    \
    }
#define LOOKED_AT(symbol, parameters, arguments, beyond, before)                                   \
    CUresult hook_##symbol parameters {                                                            \
        struct pool *pools[2] = {NULL, NULL};                                                      \
        (void)pools; /* of a fill */                                                               \
        helper_start_wanted();                                                                     \
        bool refused = beyond; /* which makes it a call for nothing */                             \
        if (__builtin_expect(refused, 0)) {                                                        \
            CUresult nothing = REAL(symbol) arguments;                                             \
            return nothing == CUDA_SUCCESS ? CUDA_ERROR_INVALID_VALUE : fault_notice(nothing);     \
        }                                                                                          \
        before;                                                                                    \
        CUresult r = REAL(symbol) arguments;                                                       \
        if (__builtin_expect(r == CUDA_ERROR_INVALID_VALUE, 0) && may_be_out_of_reach()) {         \
            r = REAL(symbol) arguments;                                                            \
        }                                                                                          \
        return fault_notice(r);                                                                    \
    }
#define BOUNDED(symbol, since, parameters, arguments, beyond)                                      \
    LOOKED_AT(symbol, parameters, arguments, beyond, (void)0)
#define ORDERED(symbol, since, parameters, arguments, beyond)                                      \
    LOOKED_AT(symbol, parameters, arguments, beyond, across_look(pools))
#include "driver/entry_points.def"
