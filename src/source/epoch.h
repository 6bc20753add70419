/*
 * Epochs: when may freed memory be handed out again?
 *
 * Every free stamps its block with the number of the open epoch. epochs_close() opens the next
 * number, then records one event, which captures all work submitted so far. A correct program
 * submits no later work on memory with that stamp or a lower one:
 *
 *      free(a)   free(b)            free(c)
 *      stamp 7   stamp 7   close 7  stamp 8   close 8
 *     ----------------------|--------------------|---------> time
 *                        event 7              event 8
 *
 *      event n has completed         no work touches memory stamped <= n any more
 *      a barrier waits for event n   all later work of the context runs after event n
 *
 * In both cases memory stamped <= n may be handed out. Invariant: `safe` is the highest such n, and
 * memory is handed out only if its stamp is at most `safe`. The pool's lock protects all but the
 * three atomics. epoch.c closes epochs and raises `safe`; pool/ and sync/ also open epochs
 * without an event. Allocations read `safe`, frees read `open`.
 */
#ifndef GPUCACHE_SOURCE_EPOCH_H
#define GPUCACHE_SOURCE_EPOCH_H

#include "source/backend.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/*
 * There are two kinds of events. In identifiers, `in_free` means the first kind.
 *
 *      recorded in a free        query, barrier   The native free would have waited for the same
 *      of the program            or wait          work, so a wait asks nothing new of the program.
 *
 *      recorded later:           query; wait      The event may capture a kernel that waits for
 *      anywhere else             with a limit     work which is not submitted yet.
 *
 * docs/policy.md has a program that hangs if a barrier waits for an event recorded later.
 */
struct epoch_event {
    uint64_t number; /* epoch that the event closed */
    /* Address that identifies the thread whose free recorded the event; NULL: recorded later. */
    const void *recorder;
    unsigned waiters; /* threads that wait for the event: it may not be recorded again */
    bool in_use;      /* listed in `slots`: not known to have completed, or has waiters */
};

struct epochs {
    /* Stamp of a free made now. source_start() opens epoch 1, so that stamp 0 is always safe. */
    _Alignas(64) _Atomic uint64_t open;
    /* The safe epoch: highest stamp that may be handed out. Allocations load nothing else. */
    _Alignas(64) _Atomic uint64_t safe;
    /* Driver code of the fault that broke the context; 0 if there was none. */
    _Alignas(64) _Atomic int broken;
    /* Highest number whose event has completed. The pool's lock protects all from here on. */
    _Alignas(64) uint64_t finished;
    struct epoch_event events[BACKEND_SLOTS]; /* by slot */
    uint8_t slots[BACKEND_SLOTS];             /* slots of the events in use, oldest first */
    unsigned count;                           /* entries of `slots` */
    unsigned failed_queries;                  /* queries that failed with -EBUSY, in total */
    /* The program recorded a context event after the pool's last event recorded in a free. No
     * barrier is allowed until the next such event: it would wait for the program's event too. */
    bool application_recorded;
    uint64_t closed;   /* records that succeeded, and frees that waited for all work; in total */
    uint64_t barriers; /* in total */
};

/**
 * Marks every epoch as finished, because the context has ended, and opens the next one. Numbers are
 * not restarted: blocks and threads may still have old ones. The pool's lock is held.
 */
void epochs_forget(struct epochs *epochs);

/**
 * Returns the stamp for memory that is freed now. No lock is needed.
 *
 * epochs_close() raises `open` before it records. A free that reads the old number has therefore
 * submitted its work before the record, and the event captures that work. Both accesses are
 * sequentially consistent for this reason.
 */
static inline uint64_t epochs_stamp(struct epochs *epochs) {
    return atomic_load(&epochs->open);
}

/** Returns whether memory with this stamp may be handed out. No lock is needed. */
static inline bool epochs_is_safe(struct epochs *epochs, uint64_t stamp) {
    return stamp <= atomic_load_explicit(&epochs->safe, memory_order_acquire);
}

/** Returns the driver code of the fault that broke the context, or 0. No lock is needed. */
static inline int epochs_broken(const struct epochs *epochs) {
    return atomic_load_explicit(&epochs->broken, memory_order_relaxed);
}

/* The caller of every function below holds the pool's lock. None releases it. */

/**
 * Closes the open epoch and records its event. Returns
 *
 *   0         the event is recorded
 *   -EAGAIN   no slot is free, and the epoch stays open
 *   other     what record() returned: the next epoch is open, and its event covers this one too
 */
int epochs_close(struct epochs *epochs, struct backend *backend, bool in_free);

/**
 * Queries events, oldest first, up to the first that has not completed. Finishes the epochs of the
 * completed ones. A driver code of a query marks the context as broken.
 */
void epochs_poll(struct epochs *epochs, struct backend *backend);

/** Returns the number of the newest event in use, or 0. It covers every stamp up to that number. */
uint64_t epochs_latest(const struct epochs *epochs);

/**
 * Returns the number of the newest event recorded in a free, or 0: the highest epoch that a wait or
 * a barrier can make safe.
 */
uint64_t epochs_latest_in_free(const struct epochs *epochs);

/**
 * Returns the number of the newest event that a free of the calling thread recorded, or 0. The
 * thread may always wait for it: its own native free would have waited for the same work.
 */
uint64_t epochs_latest_own(const struct epochs *epochs);

/** Returns whether a free of the calling thread recorded the event in the slot. */
bool epochs_is_own(const struct epochs *epochs, unsigned slot);

/** Counts the events recorded in frees that are newer than the oldest one that covers `stamp`. */
unsigned epochs_behind(const struct epochs *epochs, uint64_t stamp);

/**
 * Returns whether epochs_barrier() is allowed now: the newest record was made in a free.
 *
 * A barrier waits for every record made before it in the context, whatever event it names
 * (measured: tests/gpu/facts_order.cu, sections barrier and late). A barrier therefore names the
 * newest event, and is allowed only if that event was recorded in a free: otherwise it would also
 * wait for the work that an event recorded later captured. A CPU wait for an older event waits for
 * that event alone.
 */
bool epochs_barrier_allowed(const struct epochs *epochs);

/**
 * Makes later work of the context wait, on the device, for the newest event. All epochs that the
 * event covers are safe then. Returns
 *
 *   0         done
 *   -ENOENT   no barrier is allowed now
 *   -EBUSY    the backend can make none: wait on the CPU instead
 *   > 0       the driver's code
 */
int epochs_barrier(struct epochs *epochs, struct backend *backend);

/**
 * Finds the oldest event recorded in a free that covers `stamp`, and pins it: its slot is not
 * recorded again before epochs_unpin(). Returns 0, or -ENOENT if there is none.
 */
int epochs_pin(struct epochs *epochs, uint64_t stamp, unsigned *slot, uint64_t *number);

/** Pins the newest event in use, as epochs_pin(), whether a free recorded it or not. */
int epochs_pin_latest(struct epochs *epochs, unsigned *slot, uint64_t *number);

/**
 * Unpins a slot after a wait that returned `result`. 0 finishes epoch `number`. A positive code
 * marks the context as broken, unless the epoch finished during the wait: then the code may belong
 * to a context that has ended. A negative value tells nothing.
 */
void epochs_unpin(struct epochs *epochs, unsigned slot, uint64_t number, int result);

/** Records that all work captured by epoch `number` and earlier ones has completed. */
void epochs_finish(struct epochs *epochs, uint64_t number);

#endif
