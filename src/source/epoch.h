/*
 * Epochs: when may freed memory be handed out again?
 *
 * Every free is stamped with the number of the open epoch. Closing an epoch opens the next number
 * and then records one event, which captures everything submitted so far, so also everything
 * submitted before any free stamped with that number or a lower one:
 *
 *      free(a)   free(b)            free(c)
 *      stamp 7   stamp 7   close 7  stamp 8   close 8
 *     ----------------------|--------------------|---------> time
 *                        event 7              event 8
 *
 * Event n finished: memory stamped <= n is untouched by old work. Event n ordered (a device
 * barrier): future work of the context runs behind it, so the same memory may be handed out at
 * once. `usable` is the highest number for which either holds, and one load of it is all that the
 * allocation path asks.
 *
 * An event is *on time* if it was recorded inside a free of the program: a native free would have
 * waited there for exactly the work it captured, so waiting for it, on the CPU or on the device,
 * can never ask for more than the program already promised. A *late* event, recorded anywhere else,
 * may have captured a kernel that waits for work not yet submitted: it is queried, never waited for
 * (docs/policy.md: "Why a late event is never waited for").
 *
 * A barrier stands in line behind every record made in the context before it, whatever event it is
 * for (measured: tests/gpu/facts_order.cu, sections barrier and late). So it is put up on the newest
 * event, and only if that one is on time: behind a late record it would wait for what that one
 * captured. A CPU wait for an older event is not held up that way.
 *
 * The open number is moved before the record. A free that still read the old number had returned
 * from submitting its work before the move, hence before the record. Both sides are sequentially
 * consistent for that reason.
 */
#ifndef GPUCACHE_SOURCE_EPOCH_H
#define GPUCACHE_SOURCE_EPOCH_H

#include "source/backend.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct epoch_event {
    uint64_t number;
    const void *recorder; /* the thread that has left it, in a free of its own; of one on time */
    unsigned waiters;     /* threads inside ops->wait on it: it may not be recorded again */
    bool on_time;
    bool in_use; /* under way: not yet seen to have finished, or somebody waits */
};

struct epochs {
    /* The stamp of a free made now. */
    _Alignas(64) _Atomic uint64_t open;
    /* Memory with this stamp or a lower one may be handed out. */
    _Alignas(64) _Atomic uint64_t safe;
    /* The driver's code that has killed the context; 0: it lives. */
    _Alignas(64) _Atomic int broken;
    /* The highest number whose event has finished. From here on all is under the pool's lock. */
    _Alignas(64) uint64_t finished;
    struct epoch_event events[BACKEND_SLOTS]; /* by slot */
    uint8_t slots[BACKEND_SLOTS];             /* slots of those under way, the oldest first */
    unsigned count;                           /* so many */
    unsigned failed_queries;                  /* questions that the driver has not answered, ever */
    /* The program itself has recorded an event of the context since the last one on time: until the next there is no barrier. */
    bool application_recorded;
    uint64_t closed, barriers, cpu_waits, cpu_wait_ns;
};

void epochs_start(struct epochs *epochs);

/** The context is gone: nothing is pending any more. Numbers go on, for threads that still hold
 * one. */
void epochs_forget(struct epochs *epochs);

/** The stamp for memory that is freed now. Whatever the caller submitted before is captured when
 * that epoch closes. */
static inline uint64_t epochs_stamp(struct epochs *epochs) {
    return atomic_load(&epochs->open);
}

static inline bool epochs_is_safe(struct epochs *epochs, uint64_t stamp) {
    return stamp <= atomic_load_explicit(&epochs->safe, memory_order_acquire);
}

/** The code that killed the context, or 0. */
static inline int epochs_broken(const struct epochs *epochs) {
    return atomic_load_explicit(&epochs->broken, memory_order_relaxed);
}

/* All below: under the pool's lock. */

/** Closes the open epoch by recording its event. 0; -EAGAIN: there is no slot for one, and the epoch stays open; or what record() has
 * answered: then the number has moved on, and the next event stands for this epoch too. */
int epochs_close(struct epochs *epochs, struct backend *backend, bool on_time);

/** Asks the driver what has finished. True if `usable` moved. */
bool epochs_poll(struct epochs *epochs, struct backend *backend);

/** The number of the latest event under way, which covers what has that stamp or a lower one; 0: there is none. */
uint64_t epochs_latest(const struct epochs *epochs);

/** The highest number that waiting can make usable: that of the latest on-time event; 0: none. */
uint64_t epochs_latest_on_time(const struct epochs *epochs);

/** That of the latest one that the calling thread has left: its free has returned, so natively what is waited for there is over. 0: none. */
uint64_t epochs_latest_own(const struct epochs *epochs);

/** How many on-time events are under way behind the one that makes `stamp` usable. */
unsigned epochs_behind(const struct epochs *epochs, uint64_t stamp);

/** Whether a device barrier is allowed now: the newest record under way was made on time. */
bool epochs_barrier_allowed(const struct epochs *epochs);

/**
 * Puts up a device barrier: all that the newest event covers is usable then. 0; -ENOENT: none is
 * allowed now; -EBUSY: only waiting will do.
 */
int epochs_barrier(struct epochs *epochs, struct backend *backend);

/** The slot to wait on for `stamp`, pinned for the caller; -ENOENT if none is on time. */
int epochs_pin(struct epochs *epochs, uint64_t stamp, unsigned *slot, uint64_t *number);

/** After the wait on a pinned slot returned `result`. */
void epochs_unpin(struct epochs *epochs, unsigned slot, uint64_t number, int result);

/** Everything stamped `number` or lower is known to have finished. */
void epochs_finish(struct epochs *epochs, uint64_t number);

#endif
