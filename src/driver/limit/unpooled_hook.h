/*
 * The shape of an entry that takes memory past the pool, and of one that gives it back.
 */
#ifndef GPUCACHE_DRIVER_LIMIT_UNPOOLED_HOOK_H
#define GPUCACHE_DRIVER_LIMIT_UNPOOLED_HOOK_H

#include "driver/limit/retry.h"
#include "driver/limit/unpooled.h"
#include "driver/state/device.h"
#include "driver/table/entries.h"
#include "process/process.h"

/* The current context's device, if the books of this process can be kept. */
static inline struct device *here(void) {
    return process_ready() ? device_current() : NULL;
}

/* The same, if the driver would go on to read what the program's arguments point to. */
static inline struct device *here_and_well(void) {
    int least, greatest;
    bool well = REAL(cuCtxGetStreamPriorityRange)(&least, &greatest) == CUDA_SUCCESS;
    return well ? here() : NULL;
}

/*
 * What is wrong with a call's arguments is the driver's to find, also where the limit refuses: it is
 * asked for more than there is (docs/cuda-facts.md: arguments are checked first), which takes nothing.
 */
#define TOO_MUCH ((size_t)1 << 50)

/* The limit has refused; `judged` is what the driver thinks of the call. */
static inline CUresult refused(CUresult judged) {
    return judged == CUDA_SUCCESS ? CUDA_ERROR_OUT_OF_MEMORY : judged;
}

/* Runs `call` if the limit allows `size` more, and enters what it gave under `key`. Else `judge` says
 * what the driver thinks of its arguments. */
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

#define GIVE(space, key, call)                                                                     \
    do {                                                                                           \
        struct ledger_row *giving = unpooled_leave_begin(space, (uint64_t)(key), 0);               \
        CUresult answer = (call);                                                                  \
        unpooled_leave_end(giving, answer == CUDA_SUCCESS);                                        \
        return answer;                                                                             \
    } while (0)

#endif
