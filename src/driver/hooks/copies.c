/*
 * Hooks of copies, fills and queries, which allocate nothing. They are generated from the
 * NOTICED, BOUNDED and ORDERED rows of entry_points.def. Called with no lock held.
 *
 *   NOTICED   calls the driver, and records a fault that the driver reports (fault.h).
 *   BOUNDED   also refuses a call that exceeds the block in which it begins (bounds.h).
 *   ORDERED   as BOUNDED, and waits for work of other contexts before the call (cross_context.h).
 *
 * If the driver answers CUDA_ERROR_INVALID_VALUE to a call that exceeds no block, the hook gives
 * the current device access to the VMM pages of all pools and imports. If there are any, the hook
 * repeats the call once.
 */
#include "backend/vmm.h"
#include "base/likely.h"
#include "driver/context/context.h"
#include "driver/context/fault.h"
#include "driver/hooks/bounds.h"
#include "driver/hooks/cross_context.h"
#include "driver/hooks/hook.h"
#include "driver/ipc/ipc_pages.h"
#include "process/helper.h"

/*
 * Gives the current device access to the VMM pages of all pools and all imported blocks. Returns
 * true if there are any: the caller then repeats the call. Natively every context can copy and
 * fill cuMemAlloc memory of every device; VMM pages need cuMemSetAccess first.
 */
static __attribute__((noinline, cold)) bool get_access(void) {
    if (!process_is_started())
        return false;
    bool imported = ipc_pages_access_all();
    return (vmm_touches(0, UINT64_MAX) && context_access_all()) || imported;
}

/* Runs `call`, and repeats it once if the driver may have lacked access to VMM pages. */
#define WITH_ACCESS(call)                                                                          \
    __extension__({                                                                                \
        CUresult answered = (call);                                                                \
        if (unlikely(answered == CUDA_ERROR_INVALID_VALUE) && get_access())                        \
            answered = (call);                                                                     \
        answered;                                                                                  \
    })

/* Returns the answer to the program. If the call `exceeds` its block, `answer` is for an empty copy
 * instead: an error of the driver wins over CUDA_ERROR_INVALID_VALUE. */
static inline CUresult account_copy(CUresult answer, bool exceeds) {
    return exceeds && answer == CUDA_SUCCESS ? CUDA_ERROR_INVALID_VALUE : fault_notice(answer);
}

/* Enters a call. `beyond` is a call of a function in bounds.h: it sets `pools`. If the
 * copy or fill exceeds its block, the function empties the call and returns true. */
#define ENTER_BOUNDED(beyond)                                                                      \
    helper_start_requested();                                                                      \
    struct pool *pools[2] = {NULL, NULL};                                                          \
    (void)pools; /* unused by fills */                                                             \
    bool exceeds = unlikely(beyond)
#define ENTER_ORDERED(beyond)                                                                      \
    ENTER_BOUNDED(beyond);                                                                         \
    if (!exceeds)                                                                                  \
        cross_context_wait_if_any(pools);                                                          \
    NOTHING

#define NOTICED(symbol, since, parameters, arguments)                                              \
    HOOK(hook_##symbol, parameters, helper_start_requested(), REAL(symbol) arguments,              \
         fault_notice(answer))
#define BOUNDED(symbol, since, parameters, arguments, beyond)                                      \
    HOOK(hook_##symbol, parameters, ENTER_BOUNDED(beyond),                                         \
         exceeds ? REAL(symbol) arguments : WITH_ACCESS(REAL(symbol) arguments),                   \
         account_copy(answer, exceeds))
#define ORDERED(symbol, since, parameters, arguments, beyond)                                      \
    HOOK(hook_##symbol, parameters, ENTER_ORDERED(beyond),                                         \
         exceeds ? REAL(symbol) arguments : WITH_ACCESS(REAL(symbol) arguments),                   \
         account_copy(answer, exceeds))
#include "driver/table/entry_points.def"
