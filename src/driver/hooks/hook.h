/*
 * The shape of a hook. A hook replaces one entry of the driver and has four steps, in this order:
 *
 *   enter     looks up what the call concerns, charges memory, takes locks. May refuse the call:
 *             the hook then asks the driver about the arguments, and an error of the driver wins.
 *   original  calls the driver's entry, REAL(symbol), and stores its `answer`. RETRY() repeats the
 *             call after the driver ran out of memory. A pool may answer instead of the driver.
 *   account   tells the answer to the ledger, contexts, captures and pools, or corrects what the
 *             driver wrote for a block. Functions of this step return the answer: account_...(),
 *             fault_notice(), driver_pool_waited(), unpooled_end(), unpooled_free_end(). A short
 *             step stands in the hook itself.
 *   leave     returns the answer.
 *
 * A hook leaves out a step that has nothing to do. No macro returns from a hook
 * (tests/unit/macros.py).
 */
#ifndef GPUCACHE_DRIVER_HOOKS_HOOK_H
#define GPUCACHE_DRIVER_HOOKS_HOOK_H

#include "driver/context/current.h"
#include "driver/context/fault.h"
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
 * Returns the device of device_current(), but NULL if the context is in an error state: the driver
 * then does not read the memory that the program's arguments point to, and the hook must not
 * either.
 */
static inline struct device *device_current_if_healthy(void) {
    return current_health() == CUDA_SUCCESS ? device_current() : NULL;
}

/*
 * Bit that is set in the size of a call that the limit refuses. The driver still has to check the
 * arguments. It checks them before it refuses so many bytes, and takes no memory
 * (tests/sim/probe-h200.txt).
 */
#define IMPOSSIBLE_BYTES ((size_t)1 << 50)

/*
 * Returns the answer to a call that the limit of the device refuses, and counts an out-of-memory
 * error. `native` is the driver's answer about the arguments: another error of the driver, perhaps
 * a fault, wins.
 */
static inline CUresult refused(struct device *device, CUresult native) {
    if (native != CUDA_SUCCESS && native != CUDA_ERROR_OUT_OF_MEMORY)
        return fault_notice(native);
    device_count_oom(device, true);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

#endif
