/*
 * Decay: gives segments back to the driver that were idle for the whole decay time.
 *
 *      freed                    pending, cached       free segments                the driver
 *        |--- tick --- tick --- tick --- tick --- tick ---|
 *             not in a live block for DECAY_TICKS whole parts of the decay time
 *
 * A tick is a part of the decay time. On an overcommitted device the driver layer takes several
 * ticks at once, which count as the whole decay time (driver/context/decay.c). Ticks run while
 * decay_is_any() (tcache/peaks.h); slow_path_end() asks for them. A segment keeps the tick at which
 * its last block became free. The age is kept per segment: a pool-wide low-water mark would release
 * memory that one phase leaves idle and the next phase needs.
 *
 * At each tick, pending blocks freed DECAY_TICKS ticks ago and the cached blocks of idle threads
 * become free, and count as idle for that time. The tick queries events, and records one if none
 * covers these blocks. A large block freed just before a long kernel has its own event
 * (sync_event_is_due()). A small one stays pending until that kernel ends. Nothing decays if a
 * release waits for the device.
 *
 * source.lock protects all. Invariant: a segment is released only after its work has completed.
 */
#include "pool/internal.h"

/* Returns whether a block freed up to `stamp` is pending. Needs source.lock. */
static bool is_pending(const struct source *source, enum reach reach, uint64_t stamp) {
    const struct block *oldest = source->pending[reach].head;
    return oldest && oldest->stamp <= stamp;
}

/*
 * Makes pending blocks freed up to `stamp`, and cached blocks of idle threads, free. Sets the tick
 * back during that time: the segments of these blocks then count as idle for the whole decay time.
 * Queries first, because cached blocks that are not known to be safe would join the queue of
 * pending blocks, behind younger ones. Needs source.lock.
 */
static void take_old(struct pool *pool, uint64_t stamp) {
    struct source *source = &pool->source;
    struct biased *idle = quota_list_idle_threads(pool);
    source->decay.tick -= DECAY_TICKS + 1;
    if (idle || is_pending(source, REACH_CONTEXT, stamp) ||
        is_pending(source, REACH_EXTERNAL, stamp))
        sync_query(source, stamp);
    quota_deactivate_list(pool, idle);
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
        decay->tick++;
        uint64_t *last_stamp = &decay->before[decay->tick % DECAY_TICKS];
        uint64_t old = *last_stamp; /* of memory freed before the tick DECAY_TICKS ticks ago */
        *last_stamp = atomic_fetch_add(&source->epochs.open, 1); /* later frees get another one */
        take_old(pool, old);
        slow_path_end(pool);
    }
    decay->watched = any;
    lock_release(&source->lock);
    return any;
}

/*
 * Releases nothing while a thread grows the pool, because that thread may need the memory. The
 * mutex is unfair: the growing thread might get the lock only after the last release.
 */
bool pool_decay(struct pool *pool) {
    struct source *source = &pool->source;
    uint64_t released = 0;
    lock_acquire(&source->lock);
    if (source->growing.threads > 0) {
        lock_release(&source->lock);
        return false;
    }
    struct arena *arena;
    bool waits;
    const struct segment *aged = source_aged(source, &arena, &waits);
    if (!aged && waits) {
        epochs_poll(&source->epochs, source->backend);
        aged = source_aged(source, &arena, &waits);
    }
    if (aged && decay_is_any(pool)) {
        released = source->policy->decay(source);
        slow_path_end(pool);
    }
    if (released == 0 && source->returning_bytes > 0) /* asks whether the driver has it */
        source->policy->wait_for_return(source, GROWTH_WAIT_NS);
    lock_release(&source->lock);
    return released > 0;
}
