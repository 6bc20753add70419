/* Time: what has finished, what waits for that, and making it usable. */
#ifndef GPUCACHE_SOURCE_SYNC_H
#define GPUCACHE_SOURCE_SYNC_H

#include "source/budget.h"
#include "source/state.h"

/** Nothing can be recorded until a capture ends. */
static inline bool sync_is_captured(const struct source *source) {
    const struct backend_ops *ops = source->backend->ops;
    return ops->captured && ops->captured(source->backend);
}

/** Tight, a thread that has freed more than this since anybody's last event on time leaves one. What has none can only be waited for
 * together with all that was submitted since: so it is little beside what the pool can grow by instead, and hardly anything where that is
 * nothing. */
static inline uint64_t sync_event_bytes(const struct source *source, uint64_t budget) {
    uint64_t used = max_u64(budget, budget_used(source)), capacity = source->backend->capacity;
    uint64_t room = source->refused_at == 0 && used < capacity ? capacity - used : 0;
    uint64_t most = clamp_u64(EVENT_BYTES_LAST, room / EVENT_ROOM_SHARE, EVENT_BYTES);
    return min_u64(budget / EVENT_SHARE + SMALL_MAX_BYTES, most);
}

/* All below: under the lock, which is let go of around a wait. */

/** epochs_close(), in a free. */
int sync_close_on_time(struct source *source);

/** What a free prepares or waits for, by reuse mode; `due` counts as pressure. */
void sync_in_free(struct source *source, bool due);

/** For large blocks, without pressure too: whether an event is due. */
bool sync_event_is_due(struct source *source, uint64_t freed);

/** Queries only; true if `stamp` is usable. */
bool sync_query(struct source *source, uint64_t stamp);

/** sync_query(), then a barrier. Waits for nothing. */
bool sync_query_or_barrier(struct source *source, uint64_t stamp);

/** A barrier; where there are to be none, a wait on the CPU; where none is allowed now, a wait if `even_by_waiting`. True if `stamp` is usable. */
bool sync_barrier_or_wait(struct source *source, uint64_t stamp, bool even_by_waiting);

/** Waits for an event on time. */
bool sync_wait_stamp(struct source *source, uint64_t stamp);

/** Records a late event and sleeps until it has finished or, without `all`, until anything more has; for limit_ns at most, less what
 * waits have spent in vain. True if so. */
bool sync_wait_any(struct source *source, uint64_t limit_ns, bool all);

/** While another thread's call may be ending the context, sleeps until it is over, for limit_ns at most. True if there was one, and it is. */
bool sync_wait_while_suspended(struct source *source, uint64_t limit_ns);

/** Whether all that was submitted to the context has finished: by a late event that is asked a few times. Keeps the lock. */
bool sync_device_is_idle(struct source *source);

/** Waits until what is usable behind a barrier has finished. The second asks instead, for another context's thread. */
void sync_wait_barriers(struct source *source);
void sync_poll_barriers(struct source *source);

/** What the frees waited for natively that have left an event on time has finished: this thread's however long it takes; others', which
 * natively might not have returned yet, LATE_WAIT_NS at most. Not while the context may be ending. By any context's thread. True if there
 * was any. */
bool sync_wait_on_time(struct source *source);

/**
 * Waits, by queries, for what is usable behind a barrier, if the calling thread's own free has left
 * that event or a later one: natively that free would have waited for it. Not while the context may
 * be ending. Returns whether there was anything to wait for.
 */
bool order_finish_own_barrier(struct source *source);

#endif
