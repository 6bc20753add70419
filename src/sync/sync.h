/*
 * Synchronising: makes pending memory safe by queries, barriers and waits. epoch.h explains the
 * events, sync.c the price of each way. wait.c has the functions sync_wait_...().
 *
 * The pool's lock is held on entry and on return of every function. sync_in_free(),
 * sync_wait_...(), and sync_make_safe() without SYNC_NO_WAIT, release it while they wait; only
 * sync_wait_submitted() keeps it for a completed event. The others keep it. "By queries" means:
 * polls with ops->query(), and waits in the driver only after QUERIES_MOST queries have failed.
 */
#ifndef GPUCACHE_SYNC_SYNC_H
#define GPUCACHE_SYNC_SYNC_H

#include "policy/budget.h"

/**
 * Closes the open epoch in a free, so that its event may be waited for. Returns as epochs_close().
 * On success restarts the counts of freed bytes.
 */
int sync_close_in_free(struct source *source);

/**
 * Records an event in a free, under pressure or if `due`. In mode REUSE_SYNC always records, and
 * waits for the event. If no event can be recorded:
 *
 *   during a capture, or refused (-EIO)   waits for all earlier work
 *   no context events on this driver      the same, but only in mode REUSE_SYNC, under pressure, if
 *                                         `due`, or beyond BUDGET_FLOOR pending bytes
 *   otherwise                             does nothing: the next free tries again
 */
void sync_in_free(struct source *source, bool due);

/**
 * Returns whether the free of a large block of `freed` bytes has to record an event even without
 * pressure. Counts the bytes if a growth by the pending memory would exceed the budget, or if frees
 * record for decay.
 */
bool sync_event_is_due(struct source *source, uint64_t freed);

/**
 * Returns whether `stamp` is safe. If it is not safe yet, queries events. If no event covers it,
 * records one and queries that, unless a capture is in progress, the program uses context events
 * itself, or a barrier is worth more.
 */
bool sync_query(struct source *source, uint64_t stamp);

/** Actions that sync_make_safe() may take besides a barrier on the device. */
enum sync_effort {
    SYNC_NO_WAIT,  /* nothing */
    SYNC_WAIT,     /* wait on the CPU where that is better than a barrier */
    SYNC_ANY_WAIT, /* also where no barrier is allowed: before out of memory */
};

/**
 * Makes `stamp` safe by a barrier or by a wait on the CPU; sync.c has the table of the decision.
 * Waits for events recorded in frees only. Returns whether `stamp` is safe.
 */
bool sync_make_safe(struct source *source, uint64_t stamp, enum sync_effort effort);

/**
 * Waits for the oldest unfinished epoch of an idle segment, if that is not later than `last`.
 * Returns false if there is no such epoch, if no event recorded in a free covers it, or if the wait
 * fails.
 */
bool sync_wait_idle_segment(struct source *source, uint64_t last);

/**
 * Records an event. Waits until any further epoch has finished, or with `all` until that event has
 * completed. The limit is `limit_ns` less the time that earlier failed waits took. Returns false at
 * the limit, after a fault, if there is no event to wait for, or if the context ended before the
 * call. Returns true if it ends during the wait, because pool_forget() finishes every epoch.
 */
bool sync_wait_any(struct source *source, uint64_t limit_ns, bool all);

/**
 * Waits by queries for all submitted work, at most `limit_ns`. Records an event for that; where no
 * event can be recorded, waits for the newest one that exists. Returns early after a fault, if
 * queries fail, and while the context is suspended. Then waits for the completed event in the
 * driver, which prints what kernels wrote by printf(): a query does not. The statistics do not
 * count this wait.
 */
void sync_wait_submitted(struct source *source, uint64_t limit_ns);

/**
 * Waits while another thread's call may be ending the context, for at most `limit_ns`. Returns
 * whether there was such a call and the backend answers again: the pool may have a new context.
 * Returns false at once if pool_forget() has removed the memory of the ended context.
 */
bool sync_wait_while_suspended(struct source *source, uint64_t limit_ns);

/**
 * Returns whether all work submitted to the context has completed. Records an event and queries it
 * at most QUERIES_MOST times.
 */
bool sync_work_is_done(struct source *source);

/**
 * Waits until every safe epoch has finished, so that the driver may take its memory back: for
 * events of other threads' frees at most LATE_WAIT_NS. Returns early if the wait fails or the
 * context is suspended.
 */
void sync_wait_barriers(struct source *source);

/**
 * Waits by queries until every safe epoch has finished, also while the context is suspended. For a
 * thread whose current context may be another one.
 */
void sync_wait_barriers_by_queries(struct source *source);

/**
 * Waits for every event recorded in a free: for events of the calling thread without a limit, for
 * those of other threads at most LATE_WAIT_NS, because their native frees might not have returned
 * yet. Stops when the context is suspended. The current context may be another one. Returns whether
 * any event had not completed.
 */
bool sync_wait_in_free_events(struct source *source);

/**
 * Waits by queries until every safe epoch has finished, if a free of the calling thread recorded an
 * event that covers them all: its native free would have waited for the same work. Stops when the
 * context is suspended. Returns whether there was anything to wait for.
 */
bool sync_wait_own_barrier(struct source *source);

#endif
