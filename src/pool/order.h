/* Time: what has finished, what waits for that, and making it usable. */
#ifndef GPUCACHE_POOL_ORDER_H
#define GPUCACHE_POOL_ORDER_H

#include "pool/budget.h"
#include "pool/state.h"

/* Nothing can be recorded until a capture ends. */
static inline bool order_is_captured(const struct pool *pool) {
    const struct backend_ops *ops = pool->backend->ops;
    return ops->captured && ops->captured(pool->backend);
}

/* Tight, a thread that has freed more than this since anybody's last event on time leaves one. What has none can only be waited for
 * together with all that was submitted since: hardly anything is left so where the pool cannot grow instead. */
static inline uint64_t order_event_bytes(const struct pool *pool, uint64_t budget) {
    uint64_t most = most_of(budget, budget_used(pool)) + CLOSE_BYTES;
    bool may_grow = pool->refused_at == 0 && most <= pool->backend->capacity;
    return least_of(budget / CLOSE_SHARE + SMALL_MAX_BYTES,
                    may_grow ? CLOSE_BYTES : CLOSE_BYTES_LAST);
}

/* order.c: time, and making it usable. Under the lock, which is let go of around a wait. */
int order_close_on_time(struct pool *pool); /* epochs_close(), in a free */
/* What a free prepares or waits for, by reuse mode; `due` counts as pressure. */
void order_in_free(struct pool *pool, bool due);
bool order_is_due(struct pool *pool, uint64_t freed); /* for large blocks, without pressure too */
bool order_finish_stamp(struct pool *pool, uint64_t stamp); /* waits for an on-time event */
bool order_cheaply(struct pool *pool, uint64_t stamp); /* queries only; true if `stamp` is usable */
bool order_soon(struct pool *pool,
                uint64_t stamp); /* or behind a barrier, which waits for nothing */
bool order_now(
    struct pool *pool, uint64_t stamp,
    bool at_any_price); /* a barrier; or a wait, where that is the way or nothing else is */
/* What was submitted before has finished, or some of it. Waits that were in vain count, until what they were for has. */
bool order_finish(struct pool *pool, uint64_t limit_ns, bool all);
bool order_wait_for_answers(
    struct pool *pool,
    uint64_t limit_ns); /* a call that might have ended the context was under way, and is over */
bool order_is_idle(struct pool *pool);        /* nothing is under way, as the lock is held */
void order_finish_ordered(struct pool *pool); /* what was usable behind a barrier has finished */
void order_settle(struct pool *pool);         /* the same, asked by another context's thread */
/* What the frees waited for natively that have left an event on time has finished: this thread's however long it takes; others', which
 * natively might not have returned yet, LATE_WAIT_NS at most. Not while the context may be ending. By any context's thread. True if there
 * was any. */
bool order_finish_on_time(struct pool *pool);

/* pending.c: pending memory. Under the lock. */
void pending_add(struct pool *pool,
                 struct block *block); /* at once to the source if usable, else into its queue */
void pending_add_list(struct pool *pool, struct block *first); /* of blocks linked by `next` */
void pending_take_usable(struct pool *pool); /* what may be handed out goes to the source */
void pending_take_old(struct pool *pool, uint64_t stamp); /* of that, what was freed until then */
uint64_t pending_stamp(const struct pool *pool,
                       uint64_t bytes); /* epoch that frees `bytes`; 0: nothing is pending */

#endif
