/*
 * Allocation: thread cache, transfer caches, and the way into the slow path.
 *
 * The calling thread enters its cache with the biased lock for steps 1 and 2 of the ladder
 * (slow_path.c). Later steps hold the pool's lock, source.lock.
 * Invariant: a block becomes live inside the cache that hands it out, so only one thread gets it.
 * Callers: the allocation hooks (src/driver), gpucache replay, tests.
 */
#include "pool/internal.h"
#include "tcache/cache_counters.h"

#include "source/try.h"

#include <errno.h>

/*
 * Returns 0, or the code with which the driver answers calls of this thread now. After a fault
 * the driver answers every call of the context with that code: then the pool is marked as broken.
 * Other codes concern only this call: the thread is in a host function, or its context has gone.
 * Called with no lock, on every path except steps 1 and 2.
 */
static int check_health(struct pool *pool) {
    struct source *source = &pool->source;
    int (*health)(struct backend *) = source->backend->ops->health;
    int code = health ? health(source->backend) : 0;
    if (code > 0 && source->backend->ops->is_deadly(code)) {
        pool_break(pool, code);
    }
    return code;
}

/* Makes a cached small block live and counts it; returns its device address. Inside the cache. */
static inline __attribute__((always_inline)) uint64_t
hand_out_small(struct cache *cache, struct bin *bin, struct block *block, uint64_t header,
               uint64_t requested) {
    block_become(block, (header ^ cache->live_mask) | requested << HEADER_REQUESTED_SHIFT);
    cache_count_alloc(cache, &bin->allocs, requested, header_bytes(header));
    return block->address;
}

/*
 * Makes a cached block of any size live and counts it; returns its device address. Inside the
 * cache.
 */
static uint64_t hand_out(struct cache *cache, struct block *block, uint64_t requested) {
    ASSERT_INSIDE(&cache->lock);
    uint64_t header = atomic_load_explicit(&block->header, memory_order_relaxed);
    if (!header_is_large(header)) {
        return hand_out_small(cache, cache_bin(cache, header), block, header, requested);
    }
    struct range *range = range_of(block);
    atomic_store_explicit(&range->requested, requested, memory_order_relaxed);
    atomic_store_explicit(&range->name, 0, memory_order_relaxed);
    block_become(block, header ^ cache->live_mask);
    if (header_bin(header) < BINS) {
        counter_add(&cache->bins[header_bin(header)].allocs, 1);
    }
    cache_count_alloc(cache, &cache->large_allocs[stats_class(requested)], requested, range->bytes);
    return block->address;
}

/*
 * Returns whether more blocks of this bin would make epochs less frequent. False if most requests
 * since the last miss were for other bins: their epochs make this bin's blocks safe too. Records
 * the counts of this miss.
 */
static bool needs_rotation(struct cache *cache, struct bin *bin) {
    uint32_t all = (uint32_t)counter_get(&cache->watermarks[WATERMARK_COUNT].taken);
    uint32_t own = (uint32_t)counter_get(&bin->allocs);
    uint32_t all_since = all - bin->all_at_miss, own_since = own - bin->own_at_miss;
    bin->all_at_miss = all;
    bin->own_at_miss = own;
    return all_since < ROTATION_ENOUGH || 2 * own_since >= all_since;
}

/*
 * Sets the bin's target and returns how many blocks to add, so that the next requests like this
 * one stay out of the slow path. The pool's lock is held.
 *
 *  rotating   the thread's own blocks were still pending: the target doubles with every slow path,
 *             up to ROTATION_BLOCKS and the quota
 *  otherwise  the thread only asks for more: a few small blocks save the lock without hoarding
 *             (AHEAD_BLOCKS, AHEAD_BYTES, AHEAD_SHARE)
 */
static uint32_t refill_count(const struct pool *pool, struct cache *cache,
                             const struct alloc_request *like, bool rotating) {
    struct bin *bin = &cache->bins[like->bin];
    uint64_t target = rotating && bin->count > 0 ? bin->count : bin->target, few = 0;
    target = target > 0 ? 2 * target : 1;
    if (rotating) {
        if (!needs_rotation(cache, bin)) {
            return 0;
        }
        target = min_u64(target, ROTATION_BLOCKS);
        if (!quota_grow(cache, target * like->bytes)) {
            target = min_u64(target, cache_quota(cache) / like->bytes);
        }
    } else {
        if (!like->large && cache->bytes <= cache_quota(cache) / AHEAD_ROOM_SHARE) {
            few = counter_get(&pool->source.counters.active.current) / AHEAD_SHARE;
            few = min_u64(few, AHEAD_BYTES) / like->bytes;
        }
        target = min_u64(target, min_u64(few, AHEAD_BLOCKS));
    }
    bin->target = (uint32_t)target;
    return target > bin->count ? (uint32_t)target - bin->count : 0;
}

/*
 * Finds memory for one more block: free memory, or once per refill a growth within the budget.
 * Returns whether request->block was found. The pool's lock is released during a growth.
 */
static bool refill_one(struct pool *pool, struct alloc_request *request, bool *may_grow) {
    struct source *source = &pool->source;
    if (try_free(source, request)) {
        return true;
    }
    bool grows = *may_grow && !peaks_over_budget(pool, source_growth(request)) &&
                 source_grow(source, request) == 0;
    *may_grow = false;
    return grows && try_free(source, request);
}

/*
 * Finds memory for one more block after refill_one() failed. Acts only on every
 * REFILL_FAILURES-th failure, because it costs more: bins without requests go to the pool, and an
 * idle segment goes to the driver, which can return as memory for this kind of block. Returns
 * whether request->block was found. The pool's lock is held, and released in between.
 */
static bool refill_failed(struct pool *pool, struct cache *cache, struct alloc_request *request) {
    struct source *source = &pool->source;
    uint64_t growth = source_growth(request);
    if (++cache->refill_failures < REFILL_FAILURES) {
        return false;
    }
    cache->refill_failures = 0;
    cache_enter(cache);
    cache_flush_idle(cache, request->bin, 0);
    cache_leave(cache);
    return try_free(source, request) ||
           (!source->backend->release_waits && source_release_idle(source, growth) == 0 &&
            !peaks_over_budget(pool, growth) && source_grow(source, request) == 0 &&
            try_free(source, request));
}

/*
 * Adds blocks to the bin of a request that was just served, so that later requests hit the cache.
 * The blocks are free (stamp 0). The pool's lock is held, and released in between.
 */
static void refill(struct pool *pool, struct cache *cache, const struct alloc_request *like,
                   bool rotating) {
    ASSERT_HELD(&pool->source.lock);
    if (like->bin >= BINS) {
        return;
    }
    uint32_t more = refill_count(pool, cache, like, rotating);
    if (rotating && cache->bytes + more * like->bytes > cache_quota(cache)) {
        cache_enter(cache);
        quota_flush_for(cache, like->bin, more * like->bytes);
        cache_leave(cache);
    }
    bool may_grow = rotating && !atomic_load_explicit(&pool->source.pressure, memory_order_relaxed);
    while (more-- > 0 && cache->bytes + like->bytes <= cache_quota(cache)) {
        struct alloc_request request = {
            .bin = like->bin, .bytes = like->bytes, .large = like->large};
        if (!refill_one(pool, &request, &may_grow) &&
            !(rotating && refill_failed(pool, cache, &request))) {
            break;
        }
        request.block->stamp = 0;
        cache_enter(cache);
        if (quota_is_inactive(cache)) { /* another thread deactivated the cache during the growth */
            quota_grow(cache, 0);
        }
        cache_push_free(cache, request.block);
        cache_leave(cache);
    }
}

/*
 * Step 4: takes the pool's lock, unless another thread's query makes the block with `stamp` safe.
 * Returns false in that case, without the lock. `stamp` 0: the thread has no pending block.
 * Only one thread at a time queries to advance the safe epoch; *advancing tells that it is this
 * one. Other threads spin for the result, at most SPINS_BEFORE_LOCK turns.
 */
static bool lock_unless_safe(struct pool *pool, uint64_t stamp, bool *advancing) {
    struct source *source = &pool->source;
    *advancing = stamp > 0 && !atomic_load_explicit(&pool->advancing, memory_order_relaxed) &&
                 !atomic_exchange(&pool->advancing, true);
    for (unsigned i = 0; stamp > 0 && !*advancing && i < SPINS_BEFORE_LOCK; i++) {
        if (epochs_is_safe(&source->epochs, stamp)) {
            return false;
        }
        cpu_relax();
    }
    lock_acquire(&source->lock);
    return true;
}

static void stop_advancing(struct pool *pool, bool advancing) {
    if (advancing) {
        atomic_store_explicit(&pool->advancing, false, memory_order_release);
    }
}

/*
 * Step 2: takes a block that may be handed out from the cache or a transfer cache, as
 * request->block. Returns whether there was one. Inside the cache.
 */
static bool find_cached(struct cache *cache, struct alloc_request *request) {
    ASSERT_INSIDE(&cache->lock);
    uint64_t safe = atomic_load_explicit(&cache->pool->source.epochs.safe, memory_order_acquire);
    request->block = NULL;
    if (request->bin < BINS) {
        request->block = cache_find(cache, request, safe);
        if (!request->block && transfer_has_any(cache)) {
            request->block = transfer_take(cache, request, safe);
        }
    }
    return request->block != NULL;
}

/*
 * Takes steps 1 and 2 for any request: hands out a cached block. Returns whether there was one.
 * Outside the cache on entry and on return.
 */
static bool alloc_cached(struct cache *cache, struct alloc_request *request, uint64_t requested,
                         uint64_t *address) {
    cache_enter(cache);
    bool found = find_cached(cache, request);
    if (likely(found)) {
        *address = hand_out(cache, request->block, requested);
    }
    cache_leave(cache);
    return found;
}

/* Returns the stamp with which a cached block may be handed out; 0: none. Inside the cache. */
static uint64_t cached_stamp(struct cache *cache, const struct alloc_request *request) {
    uint64_t stamp = request->bin < BINS ? cache_stamp(cache, request) : 0;
    return stamp == 0 && request->bin < BINS && transfer_has_any(cache)
               ? transfer_stamp(cache, request)
               : stamp;
}

/*
 * Step 6 (small requests without pressure): takes free memory if blocks of deferred frees exist.
 * If none is free, reclaims a few deferred frees: their streams have often freed many at once.
 * Returns whether request->block was found; reclaimed blocks are left for step 9. Releases the
 * pool's lock to reclaim.
 */
static bool try_free_or_reclaim(struct pool *pool, struct alloc_request *request) {
    struct source *source = &pool->source;
    if (atomic_load_explicit(&pool->deferred_bytes, memory_order_relaxed) == 0 ||
        try_free(source, request)) {
        return request->block != NULL;
    }
    lock_release(&source->lock);
    reclaim_deferred(pool, false);
    lock_acquire(&source->lock);
    return false;
}

/*
 * Takes steps 5 to 21, with the pool's lock, which is released in between. `stamp` makes cached
 * blocks of this thread safe; 0: none is cached. `at_once`: step 3 has reclaimed deferred frees, so
 * step 6 is skipped. Returns 0 with request->block, or the error.
 */
static int alloc_locked(struct pool *pool, struct cache *cache, struct alloc_request *request,
                        uint64_t stamp, bool at_once, bool advancing) {
    struct source *source = &pool->source;
    quota_follow_miss(cache);
    cache->in_slow_path = true;
    uint64_t growth = source_growth(request);
    bool safe = stamp > 0 &&
                (sync_query(source, stamp) ||
                 (peaks_over_budget(pool, growth) && sync_make_safe(source, stamp, SYNC_WAIT)));
    stop_advancing(pool, advancing);
    request->over_budget = peaks_over_budget(pool, growth);
    bool found = false;
    if (safe || request->over_budget) {
        cache_enter(cache);
        found = find_cached(cache, request);
        cache_leave(cache);
    }
    return found || (!at_once && try_free_or_reclaim(pool, request))
               ? 0
               : slow_path_alloc(pool, cache, request);
}

/*
 * Takes steps 3 to 21: one try to serve what no cache serves. Returns 0 and the address, or the
 * error. No lock is held on entry or on return. For a refused request, sets *reclaims to the number
 * of reclaims at the last search.
 */
static int alloc_slow(struct pool *pool, struct cache *cache, struct alloc_request *request,
                      uint64_t requested, uint64_t *address, uint64_t *reclaims) {
    struct source *source = &pool->source;
    bool at_once =
        request->large || atomic_load_explicit(&source->pressure, memory_order_relaxed) > 0;
    int dead = check_health(pool);
    if (dead) {
        return dead;
    }
    if (at_once) {
        reclaim_deferred(pool, true);
    }
    cache_enter(cache);
    uint64_t stamp = cached_stamp(cache, request);
    cache_leave(cache);
    bool advancing;
    if (!lock_unless_safe(pool, stamp, &advancing)) {
        if (alloc_cached(cache, request, requested, address)) {
            return 0;
        }
        lock_acquire(&source->lock); /* another thread took the safe block back for the pool */
    }
    int r = alloc_locked(pool, cache, request, stamp, at_once, advancing);
    if (r == 0) {
        cache_enter(cache);
        *address = hand_out(cache, request->block, requested);
        cache_leave(cache);
        pool->peaks.unaggregated_bytes += request->large ? request->bytes : 0;
        refill(pool, cache, request, stamp > 0); /* releases the lock: the context may end */
    } else {
        *reclaims = atomic_load(&pool->reclaims);
    }
    cache->in_slow_path = false;
    peaks_update(pool);
    lock_release(&source->lock);
    return r;
}

/*
 * Returns whether deferred frees were reclaimed since the count was `reclaims`, by this thread or
 * another one. Waits for barriers that hold streams up. Called with no lock.
 */
static bool any_reclaimed(struct pool *pool, uint64_t reclaims) {
    return reclaim_all_deferred(pool) || reclaim_behind_barriers(pool) ||
           atomic_load(&pool->reclaims) != reclaims;
}

/*
 * Steps 3 to 22: repeats a refused request as long as deferred frees are reclaimed, at most
 * OTHERS_TRIES times. Returns as pool_alloc() does. Called with no lock.
 */
static int alloc_missed(struct pool *pool, struct cache *cache, struct alloc_request *request,
                        uint64_t requested, uint64_t *address) {
    uint64_t reclaims = 0;
    unsigned tries = 0;
    for (;;) {
        int r = alloc_slow(pool, cache, request, requested, address, &reclaims);
        if (likely(!source_refused(r)) || tries++ == OTHERS_TRIES ||
            !any_reclaimed(pool, reclaims)) {
            return r;
        }
        int broken = epochs_broken(&pool->source.epochs);
        if (broken) {
            return broken;
        }
        *request = (struct alloc_request){
            .bin = request->bin, .bytes = request->bytes, .large = request->large};
    }
}

/*
 * Updates the pool's peak after a cache hit of a large block, if this thread's own peak rose by
 * more than budget_unaggregated_most(). Hits bypass the slow path, and a thread that takes blocks
 * freed by others may have only hits for long. The peak of a thread that frees what it allocates
 * does not rise. Called with no lock.
 */
static __attribute__((noinline)) void report_peak(struct pool *pool, struct cache *cache) {
    struct source *source = &pool->source;
    uint64_t peak = counter_get(&cache->watermarks[WATERMARK_ALLOCATED].peak);
    uint64_t seen = counter_get(&cache->peak_seen), rise = peak > seen ? peak - seen : 0;
    if (rise > 0 && rise <= budget_unaggregated_most(source)) {
        return;
    }
    counter_set(&cache->peak_seen, peak);
    if (rise > 0 && atomic_load_explicit(&pool->caches_owned, memory_order_relaxed) > 1) {
        lock_acquire(&source->lock);
        pool->peaks.unaggregated_bytes += rise;
        peaks_update(pool);
        lock_release(&source->lock);
    }
}

/* Tells the backend about a large block that was handed out. Called with no lock. */
static __attribute__((noinline)) void notify_large(struct pool *pool,
                                                   const struct alloc_request *request,
                                                   const uint64_t *address, uint64_t requested) {
    struct source *source = &pool->source;
    if (request->block && source->backend->ops->allocated) {
        source->backend->ops->allocated(source->backend, *address, requested);
    }
}

/* Serves all requests that pool_alloc() does not serve itself. Returns as pool_alloc() does. */
static __attribute__((noinline)) int alloc_general(struct pool *pool, uint64_t bytes,
                                                   uint64_t *address) {
    struct source *source = &pool->source;
    int broken = epochs_broken(&source->epochs);
    if (broken || bytes == 0) {
        return broken ? broken : -EINVAL;
    }
    if (bytes > source->backend->capacity) {
        int dead = check_health(pool);
        return dead ? dead : -ENOMEM;
    }
    struct alloc_request request = {.large = bytes > SMALL_MAX_BYTES};
    if (request.large) {
        request.bytes = round_up(bytes, LARGE_UNIT);
        request.bin = request.bytes <= quota_largest_block(pool) ? bin_of_large(request.bytes)
                                                                 : (unsigned)BIN_NONE;
    } else {
        request.bin = size_class_of(bytes);
        request.bytes = size_class_bytes(request.bin);
    }
    struct cache *cache = cache_mine(pool);
    bool hit = alloc_cached(cache, &request, bytes, address);
    int r = likely(hit) ? 0 : alloc_missed(pool, cache, &request, bytes, address);
    if (unlikely(request.large)) {
        if (hit) {
            report_peak(pool, cache);
        }
        notify_large(pool, &request, address, bytes);
    }
    return r;
}

/*
 * Step 1 of the ladder (slow_path.c): hands out the head of the bin in the calling thread's
 * cache.
 */
int pool_alloc(struct pool *pool, uint64_t bytes, uint64_t *address) {
    struct source *source = &pool->source;
    struct cache *cache = cache_last;
    if (unlikely(bytes - 1 >= SMALL_MAX_BYTES || cache->pool != pool ||
                 epochs_broken(&source->epochs) || !biased_try_enter(&cache->lock))) {
        return alloc_general(pool, bytes, address);
    }
    uint64_t safe = atomic_load_explicit(&source->epochs.safe, memory_order_acquire);
    struct bin *bin = &cache->bins[size_class_of(bytes)];
    uint64_t header;
    struct block *block = cache_pop_from(cache, bin, safe, &header);
    if (unlikely(!block)) {
        biased_leave_owned(&cache->lock);
        return alloc_general(pool, bytes, address);
    }
    *address = hand_out_small(cache, bin, block, header, bytes);
    biased_leave_owned(&cache->lock);
    return 0;
}
