/*
 * Synchronising: makes pending memory safe by queries, barriers and waits. epoch.h explains the
 * events, barrier.c the price of each way.
 *
 * The pool's lock is held on entry and on return of every function. Functions with "Waits" in their
 * comment release it while they wait; the others keep it.
 */
#ifndef GPUCACHE_SYNC_SYNC_H
#define GPUCACHE_SYNC_SYNC_H

#include "policy/budget.h"

/**
 * Closes the open epoch in a free: the event may be waited for. Returns what epochs_close() does,
 * and restarts the counts of freed bytes if that is 0.
 */
int sync_close_on_time(struct source *source);

/**
 * Records an event in a free, or waits for the work in front of it, as the reuse mode demands.
 * `due` has the effect of pressure. Waits in mode REUSE_SYNC, and if no event can be recorded.
 */
void sync_in_free(struct source *source, bool due);

/**
 * Counts `freed` bytes of a large block, and returns whether its free has to record an event even
 * without pressure.
 */
bool sync_event_is_due(struct source *source, uint64_t freed);

/**
 * Queries events. If none covers `stamp`, records one and queries that, unless a capture is under
 * way or a barrier is worth more. True if `stamp` is safe.
 */
bool sync_query(struct source *source, uint64_t stamp);

/** What sync_make_safe() may do besides a barrier on the device. */
enum sync_effort {
    SYNC_NO_WAIT,  /* nothing */
    SYNC_WAIT,     /* wait on the CPU where that is better than a barrier */
    SYNC_ANY_WAIT, /* also where no barrier is allowed: before out of memory */
};

/**
 * Makes `stamp` safe by a barrier, or by a wait on the CPU: choose_way() in barrier.c has the rules.
 * Waits for events recorded in frees only. True if `stamp` is safe.
 */
bool sync_make_safe(struct source *source, uint64_t stamp, enum sync_effort effort);

/**
 * Waits for the oldest unfinished epoch of an idle segment, if it is not later than `last`. False
 * if there is none, if no event for it may be waited for, or if the context is suspended.
 */
bool sync_wait_idle_segment(struct source *source, uint64_t last);

/**
 * Records an event, and waits until any further epoch has finished, or with `all` until that event
 * has completed. The limit is `limit_ns` less the time that earlier waits spent in vain. False at
 * the limit, after a fault, or if there is no event to wait for. The end of the context finishes
 * every epoch.
 */
bool sync_wait_any(struct source *source, uint64_t limit_ns, bool all);

/**
 * Waits while another thread's call may be ending the context, for at most `limit_ns`. True if
 * there was such a call and the context is usable again.
 */
bool sync_wait_while_suspended(struct source *source, uint64_t limit_ns);

/**
 * Returns whether all work submitted to the context has completed. Records an event and queries it
 * at most QUERIES_MOST times.
 */
bool sync_device_is_idle(struct source *source);

/**
 * Waits until every safe epoch has finished, so that the driver may take its memory back. Returns
 * early if the wait fails or the context is suspended.
 */
void sync_wait_barriers(struct source *source);

/** Waits for the same by queries. Use it in a thread whose current context may be another one. */
void sync_poll_barriers(struct source *source);

/**
 * Waits for every event recorded in a free: events of the calling thread's own frees without a
 * limit, those of other threads for at most LATE_WAIT_NS. Natively, frees of other threads might
 * not have returned yet. Stops when the context is suspended. The current context may be another
 * one. True if any event had not completed.
 */
bool sync_wait_on_time(struct source *source);

/**
 * Waits by queries until every safe epoch has finished, if a free of the calling thread recorded an
 * event that covers them all: that thread's native free would have waited for it. Stops when the
 * context is suspended. True if there was anything to wait for.
 */
bool sync_wait_own_barrier(struct source *source);

#endif
