/*
 * The shape of a hook. A hook replaces one entry of the driver and has four steps, in this order:
 *
 *   enter     looks up what the call concerns, charges memory, takes locks. May refuse the call:
 *             then the hook returns an error, and asks the driver first whether it has another.
 *   original  calls the driver's entry, REAL(symbol), and stores its `answer`. RETRY() repeats the
 *             call after the driver ran out of memory. A pool may answer in place of the driver.
 *   account   tells the answer to the ledger, contexts, captures and pools, or corrects what the
 *             driver wrote for a block. Functions of this step are account_...(), fault_notice()
 *             and unpooled_end(). They return the answer for the program.
 *   leave     returns the answer.
 *
 * A step that has nothing to do is left out. No macro returns from a hook (tests/unit/macros.py).
 */
#ifndef GPUCACHE_DRIVER_HOOKS_HOOK_H
#define GPUCACHE_DRIVER_HOOKS_HOOK_H

#include "driver/context/current.h"
#include "driver/limit/retry.h"
#include "driver/limit/unpooled.h"
#include "driver/state/device.h"
#include "driver/table/entries.h"
#include "process/process.h"

/*
 * Defines a hook in that shape, for rows of entry_points.def that share their steps. `enter` may
 * declare variables, and `account` is an expression of `answer`. `name` is hook_##symbol, pasted by
 * the caller: macros of cuda.h would replace a symbol that is passed on.
 */
#define HOOK(name, parameters, enter, original, account)                                           \
    CUresult name parameters {                                                                     \
        enter;                                                                                     \
        CUresult answer = (original);                                                              \
        return account;                                                                            \
    }

/* The step of a hook that does nothing before the call. */
#define NOTHING (void)0

/*
 * Returns the device of the current context. NULL if there is none, or if this process is not
 * counted.
 */
static inline struct device *here(void) {
    return process_ready() ? device_current() : NULL;
}

/*
 * Returns the same device, but NULL if the context is in an error state. Then the driver does not
 * go on to read what the program's arguments point to.
 */
static inline struct device *here_and_well(void) {
    return current_health() == CUDA_SUCCESS ? here() : NULL;
}

/*
 * The driver checks the arguments of a call, also if the limit refuses. A call that asks for
 * TOO_MUCH bytes takes nothing, because arguments are checked first (docs/cuda-facts.md).
 */
#define TOO_MUCH ((size_t)1 << 50)

/*
 * Returns the answer to a call that the limit refuses. `judged` is the driver's answer about the
 * arguments.
 */
static inline CUresult refused(CUresult judged) {
    return judged == CUDA_SUCCESS ? CUDA_ERROR_OUT_OF_MEMORY : judged;
}

#endif
