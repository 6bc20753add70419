/*
 * Decay: gives segments back to the driver that were idle for the whole decay time.
 *
 *      freed                    pending, cached       free segments                the driver
 *        |--- tick --- tick --- tick --- tick --- tick ---|
 *             not in a live block for DECAY_TICKS whole parts of the decay time
 *
 * A tick is a part of the decay time; ticks run while anything is idle. A segment keeps the tick at
 * which its last block became free. The age is kept per segment: a pool-wide low-water mark would
 * release memory that one phase leaves idle and the next phase needs. Pending blocks of that age
 * are queried, with an event recorded later if they have none. Caches of idle threads are flushed.
 * Both count as old.
 *
 * Only drivers with a free that waits for nothing decay (unmapping, or a free in the library's own
 * stream). Memory freed just before a long kernel has its own event if it is large
 * (sync_event_is_due()); otherwise it waits for that kernel. Protected by source.lock.
 */
#include "pool/internal.h"

static bool is_pending(const struct source *source, enum reach reach, uint64_t stamp) {
    const struct block *oldest = source->pending[reach].head;
    return oldest && oldest->stamp <= stamp;
}

/*
 * Moves blocks freed up to `stamp`, and the caches of idle threads, to free memory. Their segments
 * have been idle just as long: the tick is set back during the call, so that they count as that
 * old. Needs source.lock.
 */
static void take_old(struct pool *pool, uint64_t stamp) {
    struct source *source = &pool->source;
    struct biased *idle = quota_find_idle(pool);
    source->decay.tick -= DECAY_TICKS + 1;
    quota_deactivate_list(pool, idle);
    if (is_pending(source, REACH_CONTEXT, stamp) || is_pending(source, REACH_EXTERNAL, stamp)) {
        sync_query(source, stamp);
    }
    pending_release(source, stamp);
    source->decay.tick += DECAY_TICKS + 1;
}

bool pool_tick(struct pool *pool) {
    struct source *source = &pool->source;
    struct decay *decay = &source->decay;
    reclaim_deferred(pool, true); /* no epoch covers deferred frees */
    lock_acquire(&source->lock);
    bool any = decay_is_any(pool);
    if (any) {
        uint64_t *before = &decay->before[++source->decay.tick % DECAY_TICKS], old = *before;
        *before = atomic_fetch_add(&source->epochs.open, 1); /* later frees get another stamp */
        take_old(pool, old);
        peaks_update(pool);
    }
    decay->watched = any;
    lock_release(&source->lock);
    return any;
}

/*
 * Returns whether a segment may go. Sets `*waits` if one is old enough but its work has not
 * completed.
 */
static bool any_aged(struct source *source, bool *waits) {
    struct arena *arena;
    return source_aged(source, &arena, waits) != NULL;
}

/*
 * Releases one segment. A growing thread goes first: it may need the memory. The lock is not handed
 * over in order, so the thread would otherwise wait until everything had gone.
 */
bool pool_decay(struct pool *pool) {
    struct source *source = &pool->source;
    uint64_t released = 0;
    lock_acquire(&source->lock);
    if (source->growing.threads > 0) {
        lock_release(&source->lock);
        return false;
    }
    bool waits = false, aged = any_aged(source, &waits);
    if (!aged && waits) {
        epochs_poll(&source->epochs, source->backend);
        aged = any_aged(source, &waits);
    }
    if (aged && decay_is_any(pool)) {
        released = source->policy->decay(source);
        peaks_update(pool);
    }
    if (released == 0 && source->freeing_bytes > 0) { /* completes when asked */
        segments_wait_for_return(source, GROWTH_WAIT_NS);
    }
    lock_release(&source->lock);
    return released > 0;
}
