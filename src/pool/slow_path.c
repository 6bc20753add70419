/*
 * The slow path of an allocation. The table is the whole ladder. pool_alloc() (alloc.c) takes step
 * 1, alloc_general() steps 1 and 2. Then alloc_general() calls slow_path_alloc().
 *
 * step  function                    what is tried                          lock  longest wait
 *    1  pool_alloc()                head of the bin in the thread's cache  cache none
 *    2  cache_find_any()            larger bins, then transfer caches      cache none
 *    3  reclaim_deferred()          deferred frees: large, or pressure     none  none
 *    4  lock_unless_safe()          result of another thread's query       none  SPINS_BEFORE_LOCK
 *    5  alloc_once(),               own cached blocks: query or barrier    pool* event (1)
 *       try_own_blocks()            one that is safe now                   pool  none
 *    6  try_free_or_reclaim()       a few deferred frees: small            pool* none
 *    7  sync_wait_while_suspended() over budget: another thread's call     pool* GROWTH_WAIT_NS
 *    8  barrier_ahead()             over budget: barrier for all pending   pool  none
 *    9  try_completed()             free memory, queries                   pool* none
 *   10  quota_deactivate_idle()     over the goal: caches of idle threads  pool  until owners leave
 *   11  try_barrier()               over budget: barrier or wait           pool* event (1)
 *   12  flush_own_cache()           over budget: own and transfer caches   pool  none
 *   13  try_growth()                memory from the driver                 pool* RETURN_WAIT_NS (1)
 *       --- the driver or the limit has refused: 14 to 21, up to OTHERS_TRIES times ---
 *   14  wait_for_growths()          growths of other threads               pool* their driver calls
 *   15  quota_deactivate_all()      caches of all threads                  pool  until owners leave
 *   16  sync_wait_while_suspended() end of another thread's call           pool* LATE_WAIT_NS
 *   17  try_grow()                  the driver once more                   pool* RETURN_WAIT_NS
 *   18  sync_wait_barriers()        work in front of barriers              pool* event (1)
 *   19  try_release()               idle segments, then growth             pool* RETURN_WAIT_NS
 *   20  try_other_pools()           idle memory of other pools, growth     pool* (2)
 *   21  try_wait()                  all pending memory; then 19, 20 again  pool* LATE_WAIT_NS (3)
 *   22  reclaim_or_wait()           all deferred frees; then 3 again       none  event (1)
 *
 * Lock: "cache" is the biased lock of the thread's cache. "pool" is source.lock, held throughout.
 * "pool*" is source.lock, released around every call that can block; state is read anew afterwards.
 * (1) For an event that a free of this thread recorded, without a limit: the native free waited for
 *     the same work. For events of other threads at most LATE_WAIT_NS.
 * (2) The limits of release_others() (source/backend.h). After step 21 the step also waits for the
 *     work of those pools.
 * (3) For each wait, less the time of earlier failed waits. The step records an event for memory
 *     that no event covers yet.
 *
 * After steps 10, 12 and 14 to 16, try_pending() repeats 9 and 11.
 *
 * slow_path_alloc() repeats alloc_once() and step 22. alloc_once() calls pool_health(), takes steps
 * 3 and 4 and begins step 5. Then alloc_under_lock() ends step 5 and takes steps 6 to 13 in order,
 * and refusal_round() (out_of_memory.c) takes steps 14 to 21.
 * The functions of steps 7, 9, 11, 16 and 18 are in src/sync, those of 10 and 15 in tcache/quota.c.
 * Step 2 is in tcache/hand_out.h. After a miss, refill() adds further blocks to the thread's cache.
 */
#include "pool/internal.h"

#include "tcache/hand_out.h"

#include <errno.h>

int pool_health(struct pool *pool) {
    struct source *source = &pool->source;
    const struct backend_ops *ops = source->backend->ops;
    uint64_t generation = atomic_load(&source->generation);
    int code = ops->health ? ops->health(source->backend) : 0;
    if (code > 0 && ops->is_sticky(code)) {
        lock_acquire(&source->lock);
        if (generation == source_generation(source)) /* the pool may serve a new context now */
            atomic_store_explicit(&source->epochs.broken, code, memory_order_relaxed);
        lock_release(&source->lock);
    }
    return code;
}

bool reclaim_deferred(struct pool *pool, bool all) {
    const struct backend_ops *ops = pool->source.backend->ops;
    return atomic_load_explicit(&pool->deferred_bytes, memory_order_relaxed) > 0 &&
           ops->reclaim_deferred && ops->reclaim_deferred(pool->source.backend, all);
}

/*
 * Step 4: returns false, without the lock, once another thread's query makes `stamp` safe.
 * Otherwise takes the pool's lock and returns true. `stamp` 0: no cached block fits.
 *
 * One thread queries first to advance the safe epoch. Sets *advancing if it is this one. Other
 * threads spin for its result, at most SPINS_BEFORE_LOCK times, and then query themselves.
 */
static bool lock_unless_safe(struct pool *pool, uint64_t stamp, bool *advancing) {
    struct source *source = &pool->source;
    *advancing = stamp > 0 && !atomic_load_explicit(&pool->advancing, memory_order_relaxed) &&
                 !atomic_exchange(&pool->advancing, true);
    for (unsigned i = 0; stamp > 0 && !*advancing && i < SPINS_BEFORE_LOCK; i++) {
        if (epochs_is_safe(&source->epochs, stamp))
            return false;
        cpu_relax();
    }
    lock_acquire(&source->lock);
    return true;
}

/*
 * Ends step 5: takes a block of the calling thread's cache, if one is `safe` or if a growth would
 * exceed the budget: a larger block than requested may serve then. Returns whether request->block
 * was found. Keeps the pool's lock; enters and leaves the cache.
 */
static bool try_own_blocks(struct pool *pool, struct cache *cache, struct alloc_request *request,
                           bool safe) {
    bool found = false;
    request->over_budget = peaks_over_budget(pool, source_growth(request));
    if (safe || request->over_budget) {
        cache_enter(cache);
        found = cache_find_any(cache, request);
        cache_leave(cache);
    }
    return found;
}

/*
 * Step 6 (small requests without pressure): if frees are deferred, takes free memory. If there is
 * none, reclaims a few deferred frees, because a stream often frees many blocks at once. Returns
 * whether request->block was found; step 9 finds the reclaimed blocks. Releases the pool's lock to
 * reclaim.
 */
static bool try_free_or_reclaim(struct pool *pool, struct alloc_request *request) {
    struct source *source = &pool->source;
    if (atomic_load_explicit(&pool->deferred_bytes, memory_order_relaxed) == 0 ||
        try_free(source, request))
        return request->block != NULL;
    lock_release(&source->lock);
    reclaim_deferred(pool, false);
    lock_acquire(&source->lock);
    return false;
}

/*
 * Step 8 (vmm backend, large requests over the budget): puts all pending memory behind a
 * barrier before the search, not only if the search fails. Best fit then chooses among all free
 * memory, which keeps free ranges large. The pool's lock is held throughout.
 *
 * Skips the barrier while little memory is pending (BARRIER_AHEAD_SHARE), and with several streams
 * while live memory is below the floor: parallel streams would lose more than best fit gains.
 */
static void barrier_ahead(struct pool *pool, const struct alloc_request *request) {
    struct source *source = &pool->source;
    uint64_t all = epochs_latest_in_free(&source->epochs); /* covers all that a barrier can */
    if (!is_ablated(ABLATION_BARRIER_AHEAD) && all > 0 && budget_is_beyond_floor(source) &&
        source->pending_bytes > source->goal / BARRIER_AHEAD_SHARE &&
        !epochs_is_safe(&source->epochs, all) && peaks_over_budget(pool, source_growth(request))) {
        if (!sync_query(source, all))
            sync_make_safe(source, all, SYNC_NO_WAIT);
    }
}

/*
 * Step 12: moves blocks of this thread's cache and of all transfer caches to the pool, because
 * growth past the budget comes next. Returns whether any block moved. Entered with the pool's lock,
 * outside the cache.
 *
 *  large blocks  always: some dozens at most, little work compared with a growth
 *  small blocks  for a small request, if the cache holds 2 MiB (one slab): there may be thousands
 *  transfer      all transfer caches are emptied
 */
static bool flush_own_cache(struct pool *pool, struct cache *cache,
                            const struct alloc_request *request) {
    if (is_ablated(ABLATION_FLUSH_OWN))
        return false;
    cache_enter(cache);
    uint64_t before = cache->bytes; /* other threads may change the common cache outside it */
    bool small = !request->large && before >= PAGE_BYTES;
    cache_flush(cache, small ? 0 : SMALL_CLASSES);
    bool any = cache->bytes < before;
    cache_leave(cache);
    return quota_empty_transfers(pool) || any;
}

/*
 * Step 13: grows the pool, within the budget if possible. Takes steps 14 to 21 if the driver or the
 * limit refuses. Counts the outcome. Returns 0 with request->block, or the error. The pool's lock
 * is held on entry and on return; it is released in between.
 *
 * Sets request->over_budget anew. From here on only segments_policy reads it: no cache is searched
 * any more, and the other policy compares with the budget itself.
 */
static int try_growth(struct pool *pool, struct alloc_request *request) {
    struct source *source = &pool->source;
    bool releases = source->policy->releases_first && !source->backend->release_waits;
    request->over_budget = releases && peaks_over_budget(pool, source_growth(request));
    int r = source->policy->grow_within_budget(source, request);
    if (r == 0 && source_reserved(source) > source->refused_at) {
        source->refused_at = 0; /* the pool now holds more than at the refusal */
        source->budget_stale = true;
    }
    for (unsigned tries = 0; r == 0 && !request->block && tries < OTHERS_TRIES; tries++)
        if (!try_free_or_split(source, request)) /* another thread took the memory */
            r = source->policy->grow(source, request);
    if (source_refused(r)) {
        source->refused_at = source_reserved(source) > 0 ? source_reserved(source) : 1;
        source->budget_stale = true; /* slow_path_end() recomputes it */
        r = retry_refused(pool, request, r);
        counter_add(&source->counters.oom_retries, r == 0);
    }
    counter_add(&source->counters.cache_misses, r == 0);
    return request->block ? r : r == 0 ? -ENOMEM : r;
}

/*
 * Ends step 5 and takes steps 6 to 21, with the pool's lock, which is released in between. `safe`:
 * a cached block's stamp is safe. `reclaimed`: step 3 has reclaimed deferred frees, so step 6 is
 * skipped. Returns 0 with request->block, or the error. The cache is not entered.
 *
 * Step 7: until another thread's call that may end the context returns, the backend answers no
 * queries and freed memory stays pending. Without the wait the allocating threads would take all
 * free memory while the other thread is descheduled. The wait is short because the other thread may
 * be waiting for this one.
 */
static int alloc_under_lock(struct pool *pool, struct cache *cache, struct alloc_request *request,
                            bool safe, bool reclaimed) {
    ASSERT_HELD(&pool->source.lock);
    struct source *source = &pool->source;
    uint64_t growth = source_growth(request);
    if (try_own_blocks(pool, cache, request, safe) ||       /* ends 5 */
        (!reclaimed && try_free_or_reclaim(pool, request))) /* 6 */
        return 0;
    if (source->backend->suspended && peaks_over_budget(pool, growth))
        sync_wait_while_suspended(source, GROWTH_WAIT_NS); /* 7 */
    if (request->large && source->policy->barrier_ahead)
        barrier_ahead(pool, request);                                            /* 8 */
    if (try_completed(source, request) ||                                        /* 9 */
        (quota_deactivate_idle(pool, growth) && try_pending(source, request)) || /* 10 */
        (peaks_over_budget(pool, growth) &&
         (try_barrier(source, request) ||                                            /* 11 */
          (flush_own_cache(pool, cache, request) && try_pending(source, request))))) /* 12 */
        return 0;
    return try_growth(pool, request); /* 13 to 21 */
}

/* --- refill --- */

/*
 * Returns whether more blocks of this bin would make epochs less frequent. Rotation: a thread uses
 * the blocks of a bin in turn, while the blocks that it freed before are pending. False if most
 * requests since the bin's last miss were for other bins, whose epochs make this bin's blocks safe
 * too. Stores the counts of requests for the next call.
 */
static bool rotation_needs_blocks(struct cache *cache, struct bin *bin) {
    uint32_t all = (uint32_t)counter_get(&cache->watermarks[WATERMARK_BLOCKS].taken);
    uint32_t own = (uint32_t)counter_get(&bin->allocs);
    uint32_t all_since = all - bin->all_at_miss, own_since = own - bin->own_at_miss;
    bin->all_at_miss = all;
    bin->own_at_miss = own;
    return is_ablated(ABLATION_ROTATION) || all_since < ROTATION_ENOUGH ||
           2 * own_since >= all_since;
}

/*
 * Sets the target of the bin of a request, and returns how many blocks to add, so that the next
 * such requests stay out of the slow path. The pool's lock is held.
 *
 *  rotating   the thread's own blocks were still pending: the target doubles with every slow path,
 *             up to ROTATION_BLOCKS and the quota
 *  otherwise  the thread only asks for more: a few more small blocks avoid later slow paths (at
 *             most a magazine, and AHEAD_SHARE of active memory)
 */
static uint32_t refill_count(const struct pool *pool, struct cache *cache,
                             const struct alloc_request *request, bool rotating) {
    struct bin *bin = &cache->bins[request->bin];
    uint64_t target = rotating && bin->count > 0 ? bin->count : bin->target, few = 0;
    target = target > 0 ? 2 * target : 1;
    if (rotating) {
        if (!rotation_needs_blocks(cache, bin))
            return 0;
        target = min_u64(target, ROTATION_BLOCKS);
        if (!quota_grow(cache, target * request->bytes))
            target = min_u64(target, cache_quota(cache) / request->bytes);
    } else {
        if (!request->large && !is_ablated(ABLATION_AHEAD))
            few = counter_get(&pool->source.counters.active.current) / AHEAD_SHARE / request->bytes;
        target = min_u64(target, min_u64(few, magazine_blocks(request->bin)));
    }
    bin->target = (uint32_t)target;
    return target > bin->count ? (uint32_t)target - bin->count : 0;
}

/*
 * Finds one more block: free memory, or once per refill (*may_grow) a growth within the budget.
 * Returns whether request->block was found. The pool's lock is released during a growth.
 */
static bool refill_one(struct pool *pool, struct alloc_request *request, bool *may_grow) {
    struct source *source = &pool->source;
    if (try_free(source, request))
        return true;
    bool grows = *may_grow && !peaks_over_budget(pool, source_growth(request)) &&
                 source->policy->grow(source, request) == 0;
    *may_grow = false;
    return grows && try_free(source, request);
}

/*
 * Finds one more block after refill_one() failed. Returns whether request->block was found. The
 * pool's lock is held, and released in between.
 *
 * Does so on every REFILL_FAILURES-th failure only, because of the cost: flushes bins without
 * requests, then replaces an idle segment by a growth for this kind of block.
 */
static bool refill_after_failures(struct pool *pool, struct cache *cache,
                                  struct alloc_request *request) {
    struct source *source = &pool->source;
    uint64_t growth = source_growth(request);
    if (is_ablated(ABLATION_REFILL_FAILED) || ++cache->refill_failures < REFILL_FAILURES)
        return false;
    cache->refill_failures = 0;
    cache_enter(cache);
    cache_flush_idle(cache, request->bin, 0);
    cache_leave(cache);
    return try_free(source, request) ||
           (!source->backend->release_waits && source_release_idle(source, growth) == 0 &&
            !peaks_over_budget(pool, growth) && source->policy->grow(source, request) == 0 &&
            try_free(source, request));
}

/*
 * Adds free blocks (stamp 0) to the bin of a request that was just served, so that the next
 * requests stay out of the slow path. `rotating`: the thread's own blocks were still pending. The
 * pool's lock is held, and released in between: the context may end.
 */
static void refill(struct pool *pool, struct cache *cache, const struct alloc_request *request,
                   bool rotating) {
    ASSERT_HELD(&pool->source.lock);
    uint32_t more = refill_count(pool, cache, request, rotating);
    if (rotating && cache->bytes + more * request->bytes > cache_quota(cache)) {
        cache_enter(cache);
        quota_flush_for(cache, request->bin, more * request->bytes);
        cache_leave(cache);
    }
    bool may_grow = rotating && !atomic_load_explicit(&pool->source.pressure, memory_order_relaxed);
    while (more-- > 0 && cache->bytes + request->bytes <= cache_quota(cache)) {
        struct alloc_request other = {
            .bin = request->bin, .bytes = request->bytes, .large = request->large};
        if (!refill_one(pool, &other, &may_grow) &&
            !(rotating && refill_after_failures(pool, cache, &other)))
            break;
        other.block->stamp = 0;
        cache_enter(cache);
        if (quota_is_inactive(cache)) /* another thread deactivated the cache during the growth */
            quota_grow(cache, 0);
        cache_push_free(cache, other.block);
        cache_leave(cache);
    }
}

/* --- entry of the slow path --- */

/*
 * Takes steps 3 to 21 once. Returns 0 and the address, or the error. No lock is held on entry or on
 * return. If the search fails, sets *reclaims to pool->reclaims, read before the lock is released.
 */
static int alloc_once(struct pool *pool, struct cache *cache, struct alloc_request *request,
                      uint64_t requested, uint64_t *address, uint64_t *reclaims) {
    struct source *source = &pool->source;
    bool reclaimed =
        request->large || atomic_load_explicit(&source->pressure, memory_order_relaxed) > 0;
    int code = pool_health(pool);
    if (code)
        return code;
    if (reclaimed)
        reclaim_deferred(pool, true);
    uint64_t stamp = 0; /* safe epoch with which cache_find_any() will find a block; 0: none fits */
    if (request->bin < BINS) {
        cache_enter(cache);
        stamp = cache_stamp(cache, request);
        stamp = stamp > 0 ? stamp : transfer_stamp(cache, request);
        cache_leave(cache);
    }
    bool advancing;
    if (!lock_unless_safe(pool, stamp, &advancing)) {
        if (cache_alloc(cache, request, requested, address))
            return 0;
        lock_acquire(&source->lock); /* another thread took the safe block back for the pool */
    }
    /* Activates the cache, or doubles a quota that made it flush blocks since the last miss. */
    quota_grow(cache, cache->overflowed ? 2 * cache_quota(cache) : 0);
    cache->overflowed = false;
    cache->in_slow_path = true;
    /* Begins step 5: a query; over the budget a barrier or a wait too. */
    bool safe = stamp > 0 &&
                (sync_query(source, stamp) || (peaks_over_budget(pool, source_growth(request)) &&
                                               sync_make_safe(source, stamp, SYNC_WAIT)));
    if (advancing) /* another thread may query now */
        atomic_store_explicit(&pool->advancing, false, memory_order_release);
    int r = alloc_under_lock(pool, cache, request, safe, reclaimed);
    if (r == 0) {
        cache_enter(cache);
        *address = cache_hand_out(cache, request, requested);
        cache_leave(cache);
        pool->peaks.has_large |= request->large;
        if (request->bin < BINS)
            refill(pool, cache, request, stamp > 0); /* releases the lock: the context may end */
    } else {
        *reclaims = atomic_load(&pool->reclaims);
    }
    cache->in_slow_path = false;
    slow_path_end(pool);
    lock_release(&source->lock);
    return r;
}

/*
 * Step 22: reclaims deferred frees of all pools, because memory of another pool can serve this one
 * too. If there is none at once, waits for the barriers that hold up streams and retries. Returns
 * whether any was reclaimed, also by another thread since this pool's count was `reclaims`. Called
 * with no lock.
 */
static bool reclaim_or_wait(struct pool *pool, uint64_t reclaims) {
    struct backend *backend = pool->source.backend;
    const struct backend_ops *ops = backend->ops;
    bool any = false;
    if (ops->reclaim_deferred) {
        any = ops->reclaim_deferred(backend, true) ||
              (ops->pass_barriers && ops->pass_barriers(backend) &&
               ops->reclaim_deferred(backend, true));
    }
    return any || atomic_load(&pool->reclaims) != reclaims;
}

/* Steps 3 to 22: repeats a refused request while deferred frees are reclaimed. */
int slow_path_alloc(struct pool *pool, struct cache *cache, struct alloc_request *request,
                    uint64_t requested, uint64_t *address) {
    uint64_t reclaims = 0;
    unsigned tries = 0;
    for (;;) {
        int r = alloc_once(pool, cache, request, requested, address, &reclaims);
        if (likely(!source_refused(r)) || tries++ == OTHERS_TRIES ||
            !reclaim_or_wait(pool, reclaims))
            return r;
        int broken = epochs_broken(&pool->source.epochs);
        if (broken)
            return broken;
        *request = (struct alloc_request){.bin = request->bin,
                                          .bytes = request->bytes,
                                          .large = request->large,
                                          .requester = request->requester};
    }
}
