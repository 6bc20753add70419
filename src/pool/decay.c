/*
 * Decay: what has been idle for as long as the program may leave it goes back to the driver by itself.
 *
 *      freed                    pending, cached       free segments                the driver
 *        |--- tick --- tick --- tick --- tick --- tick ---|
 *             not in a live block for DECAY_TICKS whole parts of the decay time
 *
 * The clock counts ticks, which somebody makes while there is anything idle at all. A segment knows the tick at which its last
 * block became free. It goes, whole, when that is long enough ago and its work has finished. So a program that comes back to
 * its memory within the decay time never loses any: each is a low-water mark of its own, where the least that was free in an
 * interval would take what one phase uses for superfluous in the next. What is pending for as long is asked about once more, with a late event where there is none,
 * and what the caches of idle threads hold goes to the pool; both are as old as they are known to be, not as young as the
 * segments that they leave.
 *
 * Unmapping waits for nothing, nor does a free in a stream of our own, so all of it can happen beside work that runs.
 * Where the driver knows only frees that wait, nothing decays. What was freed just before a long kernel has an event of
 * its own if it was much (sync_event_is_due); else it waits for that kernel.
 */
#include "pool/internal.h"

static bool is_pending(const struct source *source, enum reach reach, uint64_t stamp) {
    const struct block *oldest = source->pending[reach].head;
    return oldest && oldest->stamp <= stamp;
}

/* What was freed until `stamp`, and what idle threads have kept: the segments under it have been free for as long. */
static void take_old(struct pool *pool, uint64_t stamp) {
    struct source *source = &pool->source;
    struct biased *idle = quota_find_idle(pool);
    source->decay.tick -= DECAY_TICKS + 1;
    quota_deactivate_list(pool, idle);
    if (is_pending(source, REACH_CONTEXT, stamp) || is_pending(source, REACH_EXTERNAL, stamp)) {
        sync_query(source, stamp);
    }
    pending_release_up_to(source, stamp);
    source->decay.tick += DECAY_TICKS + 1;
}

bool pool_tick(struct pool *pool) {
    struct source *source = &pool->source;
    struct decay *decay = &source->decay;
    reclaim_deferred(pool, true); /* no epoch tells when blocks that wait for streams may be had */
    lock_acquire(&source->lock);
    bool any = decay_is_any(pool);
    if (any) {
        uint64_t *before = &decay->before[++source->decay.tick % DECAY_TICKS], old = *before;
        *before = atomic_fetch_add(&source->epochs.open, 1); /* what comes later is told apart */
        take_old(pool, old);
        peaks_update(pool);
    }
    decay->watched = any;
    lock_release(&source->lock);
    return any;
}

/* *waits: something is old enough, but its work has not finished. */
static bool any_aged(struct source *source, bool *waits) {
    struct arena *arena;
    return source_aged(source, &arena, waits) != NULL;
}

/* One segment. Whoever wants to grow goes first: a lock is not handed on in order, so that it
 * would wait until all has gone, and may have use for some of it. */
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
        released = source_decay(source);
        peaks_update(pool);
    }
    if (released == 0 && source->freeing_bytes > 0) { /* the driver has it when somebody asks */
        source_wait_for_return(source, RETURN_SOON_NS);
    }
    lock_release(&source->lock);
    return released > 0;
}
