/*
 * Hooks of copies, fills, waits and queries, which allocate nothing. They are generated from the
 * NOTICED, BOUNDED and ORDERED rows of entry_points.def. Called with no lock held.
 *
 *   NOTICED   calls the driver, and records a fault that the driver reports (fault.h).
 *   BOUNDED   also refuses a call that leaves the block it begins in (bounds.h).
 *   ORDERED   also waits for work of other contexts, before the call (cross_context.h).
 *
 * If the driver answers CUDA_ERROR_INVALID_VALUE, the hook gives the current device access to the
 * VMM pages of all pools, and repeats the call.
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
 * Gives the current device access to the VMM pages of all pools and all imported blocks. Returns
 * true if there are any, so that the call is worth another try. Natively every context can copy and
 * fill cuMemAlloc memory of every device; VMM pages need cuMemSetAccess first.
 */
static __attribute__((noinline, cold)) bool get_access(void) {
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
        if (__builtin_expect(r == CUDA_ERROR_INVALID_VALUE, 0) && get_access()) {                  \
            r = REAL(symbol) arguments;                                                            \
        }                                                                                          \
        return fault_notice(r);                                                                    \
    }
#define LOOKED_AT(symbol, parameters, arguments, beyond, before)                                   \
    CUresult hook_##symbol parameters {                                                            \
        struct pool *pools[2] = {NULL, NULL};                                                      \
        (void)pools; /* unused by fills */                                                         \
        helper_start_wanted();                                                                     \
        bool refused = beyond; /* sets the extent of a refused call to zero */                     \
        if (__builtin_expect(refused, 0)) {                                                        \
            CUresult nothing = REAL(symbol) arguments;                                             \
            return nothing == CUDA_SUCCESS ? CUDA_ERROR_INVALID_VALUE : fault_notice(nothing);     \
        }                                                                                          \
        before;                                                                                    \
        CUresult r = REAL(symbol) arguments;                                                       \
        if (__builtin_expect(r == CUDA_ERROR_INVALID_VALUE, 0) && get_access()) {                  \
            r = REAL(symbol) arguments;                                                            \
        }                                                                                          \
        return fault_notice(r);                                                                    \
    }
#define BOUNDED(symbol, since, parameters, arguments, beyond)                                      \
    LOOKED_AT(symbol, parameters, arguments, beyond, (void)0)
#define ORDERED(symbol, since, parameters, arguments, beyond)                                      \
    LOOKED_AT(symbol, parameters, arguments, beyond, cross_context_look(pools))
#include "driver/table/entry_points.def"
