/*
 * The operations that both backends share: events, barriers and waits, and the bytes that the
 * device has left. driver/context/device_backend.c sets up the struct that they work on.
 *
 * source/backend.h describes each operation, its lock and its errors. Invariant: no call of the
 * library ends a stream capture of the program. A driver call that could do so runs in relaxed
 * capture mode, or not at all while a capture is active.
 */
#ifndef GPUCACHE_BACKEND_COMMON_H
#define GPUCACHE_BACKEND_COMMON_H

#include "driver/context/device_backend.h"
#include "live/flight.h"
#include "stacks/requester.h"
#include "trace/trace.h"

extern const struct backend_kind segments_kind; /* segments.c; vmm.h has the other one */

/** Converts a code of the driver for the pool: keeps 0 and sticky errors. Returns -EBUSY for all
 * others, because the next call may succeed. */
int device_backend_answer(CUresult r);

/** Returns the present time in ns, or 0 if neither flight recorder nor trace needs it. */
uint64_t device_backend_begin(void);

/** Adds an event to the flight recorder and to the trace. `since`: result of device_backend_begin()
 * before the operation. */
void device_backend_show(const struct device_backend *own, enum flight_kind kind, uint64_t address,
                         uint64_t bytes, uint64_t since);

uint64_t device_backend_available(struct backend *backend, uint64_t *others);
void device_backend_begin_growth(struct backend *backend);
void device_backend_end_growth(struct backend *backend, bool gave_back);
uint64_t device_backend_wait_for_in_flight(struct backend *backend);
bool device_backend_release_others(struct backend *backend, uint64_t bytes, bool wait);
int device_backend_record(struct backend *backend, unsigned slot);
int device_backend_query(struct backend *backend, unsigned slot);
int device_backend_barrier(struct backend *backend, unsigned slot);
int device_backend_wait(struct backend *backend, unsigned slot);
int device_backend_health(struct backend *backend);
int device_backend_thread_refused(struct backend *backend);
bool device_backend_is_sticky(int code);
bool device_backend_captured(struct backend *backend);
int device_backend_synchronize(struct backend *backend);
void device_backend_watch_idle(struct backend *backend);
bool device_backend_reclaim(struct backend *backend, bool all);
bool device_backend_pass_barriers(struct backend *backend);
void device_backend_allocated(struct backend *backend, uint64_t address, uint64_t bytes);
void device_backend_freed(struct backend *backend, uint64_t address, uint64_t bytes);

/** The operations that both backends share, as initialisers of a struct backend_ops. */
#define DEVICE_BACKEND_OPS                                                                         \
    .begin_growth = device_backend_begin_growth, .end_growth = device_backend_end_growth,          \
    .wait_for_in_flight = device_backend_wait_for_in_flight,                                       \
    .available = device_backend_available, .release_others = device_backend_release_others,        \
    .record = device_backend_record, .query = device_backend_query,                                \
    .barrier = device_backend_barrier, .wait = device_backend_wait,                                \
    .health = device_backend_health, .thread_refused = device_backend_thread_refused,              \
    .is_sticky = device_backend_is_sticky, .captured = device_backend_captured,                    \
    .synchronize = device_backend_synchronize, .watch_idle = device_backend_watch_idle,            \
    .reclaim_deferred = device_backend_reclaim, .pass_barriers = device_backend_pass_barriers,     \
    .allocated = device_backend_allocated, .freed = device_backend_freed,                          \
    .requester = requester_here

#endif
