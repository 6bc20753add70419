/*
 * Replaced copies, fills, waits and queries that allocate nothing: the NOTICED, BOUNDED and ORDERED
 * rows of entry_points.def. Each replacement calls the driver and looks at the result (fault.h).
 *
 *      BOUNDED   refused if the call goes past the end of a block (bounds.h)
 *      ORDERED   as BOUNDED, and first waits for work of other contexts (across.h)
 *
 * A call that the driver refuses with CUDA_ERROR_INVALID_VALUE is made again after this device got
 * access to the VMM pages of all pools. Without locks.
 */
#include "backend/vmm.h"
#include "driver/context/context.h"
#include "driver/context/fault.h"
#include "driver/hooks/bounds.h"
#include "driver/hooks/cross_context.h"
#include "driver/ipc/ipc_pages.h"
#include "driver/table/entries.h"
#include "process/helper.h"

/*
 * Natively any device's memory is copied and filled from any context. Pages, only where their device has been
 * given access: with the first call that needs it.
 */
static __attribute__((noinline, cold)) bool may_be_out_of_reach(void) {
    if (atomic_load(&process_state) != PROCESS_STARTED) {
        return false;
    }
    bool imported = ipc_pages_access_all();
    return (vmm_touches(0, UINT64_MAX) && context_access_all()) || imported;
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
    LOOKED_AT(symbol, parameters, arguments, beyond, cross_context_look(pools))
#include "driver/table/entry_points.def"
