/*
 * Bodies of hooks that allocate unpooled memory, and of hooks that free it. The hooks of
 * hooks/virtual.c, bypass.c and array.c use them, with no lock held.
 */
#ifndef GPUCACHE_DRIVER_LIMIT_UNPOOLED_HOOK_H
#define GPUCACHE_DRIVER_LIMIT_UNPOOLED_HOOK_H

#include "driver/context/current.h"
#include "driver/limit/retry.h"
#include "driver/limit/unpooled.h"
#include "driver/state/device.h"
#include "driver/table/entries.h"
#include "process/process.h"

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

/*
 * Runs `call` if the limit allows `size` more bytes on the device `place`, and adds a row under
 * `key`. Else returns the driver's answer about the arguments, from `judge`. Returns from the hook.
 */
#define TAKE(kind, place, size, judge, call, key)                                                  \
    do {                                                                                           \
        struct device *where = (place);                                                            \
        struct unpooled_call taking;                                                               \
        if (!unpooled_begin(&taking, kind, where, size)) {                                         \
            return refused(judge);                                                                 \
        }                                                                                          \
        CUresult answer = RETRY_FOR(taking.bytes, where, call);                                    \
        return unpooled_end(&taking, answer, answer == CUDA_SUCCESS ? (uint64_t)(key) : 0, 0);     \
    } while (0)

/*
 * Runs `call`, which frees the memory of `key`, and removes its row if the driver freed it. Returns
 * from the hook.
 */
#define GIVE(space, key, call)                                                                     \
    do {                                                                                           \
        struct ledger_row *giving = unpooled_leave_begin(space, (uint64_t)(key), 0);               \
        CUresult answer = (call);                                                                  \
        unpooled_leave_end(giving, answer == CUDA_SUCCESS);                                        \
        return answer;                                                                             \
    } while (0)

#endif
