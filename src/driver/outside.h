/*
 * Memory that passes by the pool: the ledger of everything the program took from the driver in
 * another way.
 *
 * Each entry is found by what the program will hand back (a pointer, an array, a handle), in a
 * space of its own, because the numbers of different spaces may collide. An entry is charged to its
 * device's limit before the driver is asked (outside_begin), and refunded when the driver has taken
 * it back.
 */
#ifndef GPUCACHE_DRIVER_OUTSIDE_H
#define GPUCACHE_DRIVER_OUTSIDE_H

#include "driver/device.h"

#include <cuda.h>

#include <stdbool.h>
#include <stdint.h>

enum outside_kind {
    OUTSIDE_NATIVE, /* cuMemAlloc that the pool did not serve; booked like a block of the pool */
    OUTSIDE_STREAM_ORDERED,
    OUTSIDE_MANAGED,
    OUTSIDE_VIRTUAL,
    OUTSIDE_ARRAY,
    OUTSIDE_PINNED_HOST,
    OUTSIDE_IPC_IMPORTED,
    OUTSIDE_HANDLE_IMPORTED, /* virtual memory of another process; booked with the former */
    OUTSIDE_MAPPING,         /* a mapped range, which keeps its memory alive; no bytes of its own */
};

enum outside_space {
    OUTSIDE_POINTER,
    OUTSIDE_ARRAYS,
    OUTSIDE_HANDLES,
    OUTSIDE_HOST,
    OUTSIDE_RANGES
};

/** Whether the limit allows `bytes` more of a kind on the device; true charges them. A NULL device
 * allows everything. */
bool outside_begin(enum outside_kind kind, struct device *device, uint64_t bytes);

/** True if the driver had no memory for the call, and the pools have given some back for another try. */
bool outside_make_room(CUresult answer, struct device *device);

/** After the driver's answer to what outside_begin() allowed: enters it, or takes the charge back.
 * Returns the answer. */
CUresult outside_end(CUresult answer, enum outside_kind kind, struct device *device, uint64_t bytes,
                     uint64_t key);

/** Enters what is neither charged nor refused here; false if `key` is there already. `value` of
 * stream-ordered memory is its struct mempool. */
bool outside_enter(enum outside_kind kind, struct device *device, uint64_t bytes, uint64_t key,
                   uint64_t value);

/** What `key` stands for has turned out to be `bytes` long, if that is more than was known. */
void outside_grow(enum outside_space space, uint64_t key, uint64_t bytes);

/** The driver has taken back what `key` stands for. Nothing if nobody knows it. */
void outside_leave(enum outside_space space, uint64_t key);

/** A context has ended: whatever was its own, and not the process's, is gone with it. */
void outside_forget(CUcontext context);

/** One more or one less that keeps an entry: at zero it leaves. `value` of a mapping is the handle
 * it maps. */
void outside_hold(enum outside_space space, uint64_t key);

/** What is known of `key`: 0 bytes and value if nothing. */
struct outside_entry {
    uint64_t bytes, value;
};
struct outside_entry outside_find(enum outside_space space, uint64_t key);
struct device *outside_device(enum outside_space space, uint64_t key);
void outside_set_value(enum outside_space space, uint64_t key, uint64_t value);

#endif
