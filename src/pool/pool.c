/*
 * Functions of pool.h that concern a pool as a whole: creation and end, captures, waits, giving
 * memory back, and stamps. source.lock protects all state. The caller of pool_application_syncs()
 * holds it. Functions that only read a constant field, or read or change an atomic one, take no
 * lock. The others take source.lock, and release it while they wait for work (sync/sync.h).
 * pool_forget() takes remap.lock first.
 */
#include "pool/internal.h"

#include "base/clock.h"
#include "heap/host.h"

#include <errno.h>

/* --- creation and end --- */

struct pool *pool_create(struct backend *backend, const struct pool_config *config) {
    struct pool *pool = host_map(sizeof *pool, 4096);
    struct cache *common = host_map(sizeof *common, 4096);
    if (!pool || !common) {
        host_unmap(pool, sizeof *pool);
        host_unmap(common, sizeof *common);
        return NULL;
    }
    biased_start();
    const struct memory_policy *policy = backend_maps(backend) ? &vmm_policy : &segments_policy;
    source_start(&pool->source, pool, backend, policy, config);
    pool->quota_most = clamp_u64(QUOTA_LEAST, backend->capacity / QUOTA_SHARE, QUOTA_MOST);
    cache_start_common(common, pool);
    pool->common = common;
    atomic_store(&pool->caches, common);
    lock_acquire(&pool->source.lock);
    slow_path_recompute(pool);
    lock_release(&pool->source.lock);
    return pool;
}

/* Subtracts all live large blocks from the counts of their requesters. All caches are seized. */
static void forget_requesters(struct source *source) {
    struct requester_row *rows = source->backend->requesters;
    for (struct segment *segment = rows ? source->large.segments : NULL; segment;
         segment = segment->next) {
        for (struct range *range = segment_first(segment); segment_has(segment, range);
             range = range->next) {
            uint64_t header = block_header(&range->block);
            if (header_state(header) == BLOCK_LIVE)
                requester_subtract(&rows[header_requester(header)], range->requested);
        }
    }
}

/* Forgets the blocks of all caches and transfer caches. Needs source.lock. Seizes all caches at
 * once: every free that has found a block is finished before any block is forgotten. */
static void forget_caches(struct pool *pool) {
    struct biased *all = NULL;
    for (struct cache *cache = atomic_load(&pool->caches); cache; cache = cache->next_in_pool)
        all = cache_listed(cache, all);
    cache_seize_list(pool, all);
    for (struct cache *cache = atomic_load(&pool->caches); cache; cache = cache->next_in_pool) {
        cache_forget(cache);
        transfer_forget(&cache->transfer);
    }
    forget_requesters(&pool->source);
    biased_return(all);
}

/*
 * Order of the steps:
 *
 *   1. Remove the memory from the page map: no look-up finds it any more.
 *   2. Seize all caches. A free that had found a block is finished then, because it runs inside its
 *      cache. Forget the blocks of all caches.
 *   3. Only then forget the source: its descriptors may be reused from now on.
 */
uint64_t pool_forget(struct pool *pool) {
    struct source *source = &pool->source;
    lock_acquire(&source->remap.lock);
    lock_acquire(&source->lock);
    arena_leave_map(&source->small);
    arena_leave_map(&source->large);
    forget_caches(pool);
    uint64_t bytes = source_forget(source);
    atomic_store(&pool->deferred_bytes, 0);
    slow_path_recompute(pool);
    lock_release(&source->lock);
    lock_release(&source->remap.lock);
    return bytes;
}

void pool_wait_for_waiters(struct pool *pool) {
    struct source *source = &pool->source;
    lock_acquire(&source->lock);
    while (source->waits.inside > 0) {
        lock_release(&source->lock);
        sleep_ns(50000);
        lock_acquire(&source->lock);
    }
    lock_release(&source->lock);
}

void pool_set_capacity(struct pool *pool, uint64_t capacity) {
    struct source *source = &pool->source;
    lock_acquire(&source->lock);
    atomic_store(&source->backend->capacity, capacity);
    source->refused_at = 0;
    slow_path_recompute(pool);
    lock_release(&source->lock);
}

struct backend *pool_backend(struct pool *pool) {
    return pool->source.backend;
}

int pool_broken(struct pool *pool) {
    return epochs_broken(&pool->source.epochs);
}

void pool_lock(struct pool *pool) {
    lock_acquire(&pool->source.lock);
}

void pool_unlock(struct pool *pool) {
    lock_release(&pool->source.lock);
}

void pool_before_capture(struct pool *pool) {
    struct source *source = &pool->source;
    lock_acquire(&source->lock);
    sync_query(source, epochs_stamp(&source->epochs));
    lock_release(&source->lock);
}

/* Events are recorded under the lock: once it is taken, no record is in progress. */
void pool_capture_announced(struct pool *pool) {
    struct source *source = &pool->source;
    lock_acquire(&source->lock);
    slow_path_recompute(pool);
    lock_release(&source->lock);
}

void pool_application_syncs(struct pool *pool, bool records) {
    struct source *source = &pool->source;
    source->application_syncs = true;
    source->epochs.application_recorded |= records;
    slow_path_recompute(pool);
}

void pool_expect_streams(unsigned streams) {
    budget_expect_streams(streams);
}

/* --- waits, and memory that goes back --- */

void pool_wait_for_barriers(struct pool *pool) {
    struct source *source = &pool->source;
    lock_acquire(&source->lock);
    sync_wait_barriers_by_queries(source);
    lock_release(&source->lock);
}

/*
 * Waits for another thread's call that may end the context. Returns whether the context has ended
 * and its memory with it. Does not wait if the pool is empty, which then can give nothing back. The
 * pool's lock is held, and released for the wait.
 */
static bool ended_meanwhile(struct source *source, uint64_t limit_ns) {
    uint64_t generation = source_generation(source);
    if (source_reserved(source) + source->returning_bytes > 0)
        sync_wait_while_suspended(source, limit_ns);
    return generation != source_generation(source);
}

/*
 * Does the work of pool_give_back() and pool_trim(). `ending_ns` limits the wait for a call that
 * may end the context. The pool's lock is held, and released during waits.
 */
static int give_back(struct pool *pool, uint64_t bytes, bool wait, uint64_t ending_ns) {
    struct source *source = &pool->source;
    if (wait && ended_meanwhile(source, ending_ns))
        return 0;
    pending_release(source, EVERY_STAMP);
    if (source_idle(source) < bytes)
        quota_deactivate_all(pool);
    bool finished = true, all = bytes == UINT64_MAX;
    uint64_t limit_ns = wait && !source->backend->suspended ? RETURN_WAIT_NS : 0, before;
    uint64_t last = epochs_stamp(&source->epochs);
    int r;
    do { /* release after each completed event, before other threads take the memory */
        before = source->epochs.finished;
        if (source->pending_bytes + source_idle(source) > 0)
            finished = sync_wait_any(source, limit_ns, all);
        pending_release(source, EVERY_STAMP);
        r = source_release_idle(source, bytes);
    } while (r != 0 && finished && source->epochs.finished > before &&
             source->epochs.finished < last);
    if (source->returning_bytes > 0)
        source->policy->wait_for_return(source, RETURN_WAIT_NS);
    if (all) { /* after a full wait, memory that is pending was freed later: do not count it */
        uint64_t ready = source_free(source);
        uint64_t left = finished ? ready - source_idle(source) : ready + source->pending_bytes;
        atomic_store(&pool->unreleasable_bytes, left);
    }
    return r;
}

int pool_give_back(struct pool *pool, uint64_t bytes, bool wait) {
    struct source *source = &pool->source;
    reclaim_deferred(pool, true);
    lock_acquire(&source->lock);
    if (wait)
        sync_wait_in_free_events(source);
    int r = give_back(pool, bytes, wait, LATE_WAIT_NS);
    slow_path_end(pool);
    lock_release(&source->lock);
    return r;
}

bool pool_wait_for_events_in_free(struct pool *pool) {
    struct source *source = &pool->source;
    lock_acquire(&source->lock);
    bool any = sync_wait_in_free_events(source);
    lock_release(&source->lock);
    return any;
}

uint64_t pool_deferred_bytes(struct pool *pool) {
    return atomic_load(&pool->deferred_bytes);
}

void pool_reclaim_own(struct pool *pool) {
    struct source *source = &pool->source;
    reclaim_deferred(pool, true);
    if (atomic_load(&pool->deferred_bytes) == 0)
        return;
    lock_acquire(&source->lock);
    bool waited = sync_wait_own_barrier(source);
    lock_release(&source->lock);
    if (waited)
        reclaim_deferred(pool, true);
}

int pool_trim(struct pool *pool, bool wait) {
    struct source *source = &pool->source;
    reclaim_deferred(pool, true);
    lock_acquire(&source->lock);
    int r = give_back(pool, UINT64_MAX, wait, RETURN_WAIT_NS);
    runs_trim(&source->runs);
    slow_path_recompute(pool);
    lock_release(&source->lock);
    return r == -ENOENT ? 0 : r;
}

uint64_t pool_unreleasable_bytes(struct pool *pool) {
    return atomic_load(&pool->unreleasable_bytes);
}

/* Returns the bytes of all live small blocks, by the counts of the caches. Needs source.lock. */
static uint64_t small_live_bytes(const struct pool *pool) {
    uint64_t large = 0, all = peaks_sums(pool, false).of[WATERMARK_ALLOCATED].live;
    for (struct cache *cache = atomic_load(&pool->caches); cache; cache = cache->next_in_pool)
        large += counter_get(&cache->large_live_bytes);
    return all > large ? all - large : 0;
}

/* Returns whether a segment of the small arena has a live block. Adds the number of slabs without
 * one to *without. */
static bool segment_has_live(const struct segment *s, unsigned *without) {
    for (const struct range *r = segment_first(s); segment_has(s, r); r = r->next) {
        if (range_state(r) != BLOCK_SLAB)
            continue;
        if (slab_has_live(r->slab))
            return true;
        ++*without;
    }
    return false;
}

/* Returns the free bytes of a segment of the small arena, also those inside its slabs. */
static uint64_t segment_free_bytes(const struct segment *s) {
    uint64_t bytes = s->bytes - s->used;
    for (const struct range *r = segment_first(s); segment_has(s, r); r = r->next)
        if (range_state(r) == BLOCK_SLAB)
            bytes += (uint64_t)(SLAB_UNITS - r->slab->used_units) << UNIT_SHIFT;
    return bytes;
}

/*
 * Returns the bytes of the small arena that are not live and cannot go back to the driver: all such
 * bytes of each segment that holds a live block. Counts cached blocks too, not only free memory:
 * cuMemGetInfo then answers the same before blocks are allocated and after they are freed.
 *
 * A slab without a live block takes long, because all its blocks are looked at. After
 * STUCK_SLABS_MOST such slabs the function looks at no more blocks. Of each remaining segment it
 * counts only the free memory, and assumes that the rest is live, up to the bytes of all live small
 * blocks.
 */
static uint64_t stuck_in_slabs(const struct pool *pool) {
    uint64_t bytes = 0, free_bytes = 0, used = 0, live = small_live_bytes(pool);
    unsigned without = 0;
    for (const struct segment *s = pool->source.small.segments; s; s = s->next) {
        if (s->used > 0 && without >= STUCK_SLABS_MOST) {
            uint64_t in_segment = segment_free_bytes(s);
            free_bytes += in_segment;
            used += s->bytes - in_segment;
        } else if (s->used > 0 && segment_has_live(s, &without)) {
            bytes += s->bytes;
        }
    }
    live = live > used ? live - used : 0;
    return free_bytes + (bytes > live ? bytes - live : 0);
}

uint64_t pool_stuck_bytes(struct pool *pool) {
    struct source *source = &pool->source;
    reclaim_deferred(pool, true);
    lock_acquire(&source->lock);
    epochs_poll(&source->epochs, source->backend);
    pending_release(source, EVERY_STAMP);
    uint64_t stuck = source_free(source) - source_idle(source);
    /*
     * Free memory of a segment without live blocks is not stuck: the segment goes back once its
     * cached and pending blocks are free.
     */
    bool deferred = atomic_load(&pool->deferred_bytes) > 0;
    if (!deferred) {
        stuck -= arena_free_bytes_without_live(&source->large);
        stuck -= source->small.free_bytes - source->small.idle_bytes;
        stuck -= source->runs.free_units << UNIT_SHIFT;
        stuck += stuck_in_slabs(pool);
    }
    slow_path_end(pool);
    lock_release(&source->lock);
    bool live = peaks_sums(pool, true).of[WATERMARK_ALLOCATED].live > 0;
    return live || deferred ? stuck : 0;
}

uint64_t pool_stamp_in_free(struct pool *pool) {
    struct source *source = &pool->source;
    lock_acquire(&source->lock);
    uint64_t stamp = epochs_stamp(&source->epochs);
    sync_close_in_free(source);
    lock_release(&source->lock);
    return stamp;
}

bool pool_has_finished(struct pool *pool, uint64_t stamp) {
    struct source *source = &pool->source;
    lock_acquire(&source->lock);
    if (source->epochs.finished < stamp && sync_query(source, stamp)) {
        /* sync_query() does not poll for a stamp that is safe: its event may not have completed */
        epochs_poll(&source->epochs, source->backend);
    }
    bool finished = source->epochs.finished >= stamp;
    lock_release(&source->lock);
    return finished;
}

/* Returns whether the program may have freed a block of the pool, or memory that
 * pool_stamp_in_free() has stamped. Also true once a context has ended, or once an event was
 * recorded for another reason, such as a capture. Needs source.lock. */
static bool any_freed(const struct pool *pool) {
    const struct source *source = &pool->source;
    struct peaks_sum blocks = peaks_sums(pool, false).of[WATERMARK_BLOCKS];
    return blocks.taken > blocks.live || source->epochs.closed > 0;
}

/* The longest wait of pool_wait_for_work() for the lock. A thread normally holds the lock that long
 * only if a signal handler has interrupted it: that thread may wait for the caller. */
#define LOCK_WAIT_NS 50000000

void pool_wait_for_work(struct pool *pool, uint64_t limit_ns) {
    struct source *source = &pool->source;
    for (uint64_t slept = 0; !lock_try(&source->lock); slept += POLL_NS) {
        if (slept >= LOCK_WAIT_NS)
            return;
        sleep_ns(POLL_NS);
    }
    if (source->config.reuse != REUSE_SYNC && any_freed(pool))
        sync_wait_submitted(source, limit_ns);
    lock_release(&source->lock);
}

bool pool_work_is_done(struct pool *pool) {
    struct source *source = &pool->source;
    lock_acquire(&source->lock);
    bool idle = sync_work_is_done(source);
    lock_release(&source->lock);
    return idle;
}

/*
 * Ends the open epoch, and returns its number, before the program itself waits for all work.
 * pool_sync_end() marks that epoch as finished, so no event is needed. Takes no lock.
 */
uint64_t pool_sync_begin(struct pool *pool) {
    return atomic_fetch_add(&pool->source.epochs.open, 1);
}

void pool_sync_end(struct pool *pool, uint64_t ticket) {
    struct source *source = &pool->source;
    lock_acquire(&source->lock);
    epochs_finish(&source->epochs, ticket);
    lock_release(&source->lock);
}
