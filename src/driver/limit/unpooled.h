/*
 * Memory that passes by the pool: the ledger of everything the program took from the driver in
 * another way.
 *
 * Each row is found by what the program will hand back (a pointer, an array, a handle), in a space of its own, because the numbers of
 * different spaces may collide. It is charged to its device's limit before the driver is asked, and refunded when the driver has taken
 * it back.
 *
 * What the driver has taken back it may give out again at once, to another thread, before the first one comes back from the call. And a
 * context may end while a call in it is under way. So every call that takes or gives stands between two of ours:
 *
 *      taking   unpooled_begin: charged, and noted      driver      unpooled_end: entered and booked, if the context is still alive
 *      giving   unpooled_leave_begin: not found any     driver      unpooled_leave_end: out of the books; or found again, if the
 *               more, but still in the books                       driver has refused
 */
#ifndef GPUCACHE_DRIVER_LIMIT_UNPOOLED_H
#define GPUCACHE_DRIVER_LIMIT_UNPOOLED_H

#include "driver/limit/unpooled_kind.h"
#include "driver/state/device.h"

#include <cuda.h>

#include <stdbool.h>
#include <stdint.h>

struct context;
struct ledger_row;

/** A call that takes memory, while it is under way. */
struct unpooled_call {
    enum unpooled_kind kind;
    struct device *device;
    CUcontext context;
    uint64_t bytes;
    uint32_t stack; /* that asks; set by who knows it */
    bool over;      /* the context has ended meanwhile */
    struct unpooled_call *next;
};

/** Whether the limit allows `bytes` more of a kind on the device; true charges them, and *call is to be ended. A NULL device allows
 * everything, and nothing is booked. */
bool unpooled_begin(struct unpooled_call *call, enum unpooled_kind kind, struct device *device,
                    uint64_t bytes);

/** After the driver's answer: enters what it gave, or takes the charge back. Returns the answer. */
CUresult unpooled_end(struct unpooled_call *call, CUresult answer, uint64_t key, uint64_t value);

/** Enters what is neither charged nor refused here. False: not entered. `value` of stream-ordered memory is its struct mempool. */
bool unpooled_enter(enum unpooled_kind kind, struct device *device, uint64_t bytes, uint64_t key,
                    uint64_t value);

/** The driver is about to take back what `key` stands for; with `bytes`, all that begins in so many from there. NULL: nobody knows it. */
struct ledger_row *unpooled_leave_begin(enum unpooled_space space, uint64_t key, uint64_t bytes);

/** It has, or it has not; nothing for NULL. */
void unpooled_leave_end(struct ledger_row *row, bool left);

/** Both at once, where nobody can be given `key` in between. */
void unpooled_leave(enum unpooled_space space, uint64_t key);

/** A context has ended: whatever was its own, and not the process's, is gone with it. */
void unpooled_forget(const struct context *context);

/** One more that keeps the memory behind a handle; NULL: nobody knows it. */
struct ledger_row *unpooled_hold(uint64_t handle);

/** After the driver's answer to a mapping: it goes on holding `memory`, which was held for it before, until it leaves. */
void unpooled_mapped(CUresult answer, struct ledger_row *memory, uint64_t offset, uint64_t key,
                     uint64_t bytes);

/** What is known of `key`, also while the driver is asked to take it back: 0 bytes and value if nothing. */
struct unpooled_entry {
    uint64_t bytes, value;
};
struct unpooled_entry unpooled_find(enum unpooled_space space, uint64_t key);

#endif
