/*
 * What both backends have in common: a context with its device, the events that order its work, and what
 * the device has left.
 *
 * Every call of ours runs in relaxed capture mode, so that it cannot end a capture of the program.
 */
#ifndef GPUCACHE_BACKEND_DEVICE_BACKEND_H
#define GPUCACHE_BACKEND_DEVICE_BACKEND_H

#include "live/flight.h"
#include "source/backend.h"
#include "trace/trace.h"

#include <cuda.h>

struct device;

struct device_backend {
    struct backend backend; /* first: the pool's view */
    CUcontext context;
    struct device *device;
    CUevent events[BACKEND_SLOTS];
    CUevent probe; /* never recorded: asked to learn what the driver thinks of a call during a
                      capture */
    _Atomic uint64_t returning; /* bytes released that the driver may not have yet */
};

/**
 * Sets up for the current context, whose handle is `context`. 0, or the driver's code: then nothing
 * of the driver's is left behind. Under the pool's lock, if there is one.
 */
int device_backend_start(struct device_backend *own, const struct backend_ops *ops,
                         CUcontext context, struct device *device);

/** The context lives, but gets no pool: what was made for it goes. */
void device_backend_stop(struct device_backend *own);

/** The context has ended, and what was made for it with it. Under the pool's lock. */
void device_backend_end(struct device_backend *own);

/** What the pool makes of the driver's answer: only a code that stays is for ever. */
int device_backend_answer(CUresult r);

/** The driver has so much back. */
void device_backend_count_return(struct device_backend *own, uint64_t bytes);

/** When something slow begins; 0: nobody keeps it. */
static inline uint64_t device_backend_begin(void) {
    return trace_on() ? flight_clock(CLOCK_MONOTONIC) : flight_begin();
}

/** Writes an event down in the flight recorder and the trace; `since` from device_backend_begin(). */
void device_backend_show(const struct device_backend *own, enum flight_kind kind, uint64_t address,
                         uint64_t bytes, uint64_t since);

uint64_t device_backend_available(struct backend *backend, uint64_t *others);
void device_backend_begin_growth(struct backend *backend);
void device_backend_end_growth(struct backend *backend, bool return_count);
uint64_t device_backend_return_count(struct backend *backend);
bool device_backend_release_others(struct backend *backend, uint64_t bytes, bool wait);
int device_backend_record(struct backend *backend, unsigned slot);
int device_backend_query(struct backend *backend, unsigned slot);
int device_backend_barrier(struct backend *backend, unsigned slot);
int device_backend_wait(struct backend *backend, unsigned slot);
int device_backend_health(struct backend *backend);
bool device_backend_is_deadly(int code);
bool device_backend_captured(struct backend *backend);
int device_backend_synchronize(struct backend *backend);
void device_backend_watch_idle(struct backend *backend);
bool device_backend_reclaim(struct backend *backend, bool all);
bool device_backend_pass_barriers(struct backend *backend);
void device_backend_allocated(struct backend *backend, uint64_t address, uint64_t bytes);
void device_backend_freed(struct backend *backend, uint64_t address, uint64_t bytes);

/** The calls that are the same in both, for a struct backend_ops. */
#define DEVICE_BACKEND_OPS                                                                         \
    .begin_growth = device_backend_begin_growth, .end_growth = device_backend_end_growth,          \
    .return_count = device_backend_return_count, .available = device_backend_available,            \
    .release_others = device_backend_release_others, .record = device_backend_record,              \
    .query = device_backend_query, .barrier = device_backend_barrier, .wait = device_backend_wait, \
    .health = device_backend_health, .is_deadly = device_backend_is_deadly,                        \
    .captured = device_backend_captured, .synchronize = device_backend_synchronize,                \
    .watch_idle = device_backend_watch_idle, .reclaim_deferred = device_backend_reclaim,           \
    .pass_barriers = device_backend_pass_barriers, .allocated = device_backend_allocated,          \
    .freed = device_backend_freed

#endif
