/*
 * The shape of an entry that takes memory past the pool, and of one that gives it back.
 */
#ifndef GPUCACHE_DRIVER_TAKE_H
#define GPUCACHE_DRIVER_TAKE_H

#include "driver/device.h"
#include "driver/outside.h"
#include "process/process.h"

/* The current context's device, if the books of this process can be kept. */
static inline struct device *here(void) {
    return process_ready() ? device_current() : NULL;
}

/* Runs `call` if the limit allows `bytes` more, and enters what it gave under `key`. */
#define TAKE(kind, place, bytes, call, key)                                                        \
    do {                                                                                           \
        struct device *where = (place);                                                            \
        struct outside_call taking;                                                                \
        if (!outside_begin(&taking, kind, where, bytes)) {                                         \
            return CUDA_ERROR_OUT_OF_MEMORY;                                                       \
        }                                                                                          \
        CUresult answer = (call);                                                                  \
        if (outside_make_room(answer, where)) {                                                    \
            answer = (call);                                                                       \
        }                                                                                          \
        return outside_end(&taking, answer, answer == CUDA_SUCCESS ? (uint64_t)(key) : 0, 0);      \
    } while (0)

#define GIVE(space, key, call)                                                                     \
    do {                                                                                           \
        struct ledger_row *giving = outside_leave_begin(space, (uint64_t)(key), 0);                \
        CUresult answer = (call);                                                                  \
        outside_leave_end(giving, answer == CUDA_SUCCESS);                                         \
        return answer;                                                                             \
    } while (0)

#endif
