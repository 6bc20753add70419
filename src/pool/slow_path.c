/*
 * The slow path of an allocation. The table is the whole ladder. pool_alloc() and alloc_general()
 * (alloc.c) take steps 1 and 2, and call slow_path_alloc() if no cache serves the request.
 *
 * step  function                    what is tried                          lock  longest wait
 *    1  pool_alloc()                head of the bin in the thread's cache  cache none
 *    2  cache_find_any()            larger bins, then transfer caches      cache none
 *    3  alloc_slow()                deferred frees: large, or pressure     none  none
 *    4  lock_unless_safe()          result of another thread's query       none  SPINS_BEFORE_LOCK
 *    5  alloc_locked()              own cached blocks: query or barrier    pool* event (1)
 *    6  try_free_or_reclaim()       a few deferred frees: small            pool* none
 *    7  wait_for_context_end()      end of another thread's call           pool* GROWTH_WAIT_NS
 *    8  barrier_ahead()             barrier for all pending memory         pool  none
 *    9  try_completed()             free memory, queries                   pool* none
 *   10  quota_take_back()           caches of idle threads                 pool  none
 *   11  try_barrier()               over budget: barrier or wait           pool* event (1)
 *   12  flush_own_cache()           over budget: this thread's cache       pool  none
 *   13  grow_for()                  a segment from the driver              pool* RETURN_WAIT_NS (1)
 *       --- the driver or the limit has refused: 14 to 21, up to OTHERS_TRIES times (2) ---
 *   14  wait_for_growths()          growths of other threads               pool* their driver calls
 *   15  quota_take_all_back()       caches of all threads                  pool  none
 *   16  sync_wait_while_suspended() end of another thread's call           pool* LATE_WAIT_NS
 *   17  try_grow()                  the driver once more                   pool* RETURN_WAIT_NS
 *   18  sync_wait_barriers()        work in front of barriers              pool* event (1)
 *   19  source_release_idle()       idle segments, then growth             pool* RETURN_WAIT_NS
 *   20  try_other_pools()           idle memory of other pools, growth     pool* (3)
 *   21  try_wait()                  all pending memory; then 19, 20 again  pool* LATE_WAIT_NS (4)
 *   22  slow_path_alloc()           all deferred frees; then 3 again       none  event (1)
 *
 * Lock: "cache" is the biased lock of the thread's cache. "pool" is source.lock, held throughout.
 * "pool*" is source.lock, released around every call that can block; state is read anew afterwards.
 * (1) For an event recorded in a free, without a limit: the native free waited for the same work.
 * (2) After 10, 12 and 14 to 16, try_pending() repeats 9 and 11.
 * (3) The limits of release_others() (source/backend.h); after 21 also for work of those pools.
 * (4) For each event recorded later. Waits that failed before count against the limit.
 */
#include "pool/slow_path.h"

#include "pool/internal.h"
#include "pool/out_of_memory.h"
#include "pool/refill.h"
#include "tcache/hand_out.h"

#include <errno.h>

int slow_path_health(struct pool *pool) {
    struct source *source = &pool->source;
    int (*health)(struct backend *) = source->backend->ops->health;
    int code = health ? health(source->backend) : 0;
    if (code > 0 && source->backend->ops->is_deadly(code)) {
        pool_break(pool, code);
    }
    return code;
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

/* Lets another thread query to advance the safe epoch. */
static void stop_advancing(struct pool *pool, bool advancing) {
    if (advancing) {
        atomic_store_explicit(&pool->advancing, false, memory_order_release);
    }
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
 * Step 12: gives the cached blocks of the calling thread to the pool, because growth past the
 * budget comes next. Returns whether there were any. Entered with the pool's lock, outside the
 * cache.
 *
 *  large blocks  always: some dozens at most, little work compared with a growth
 *  small blocks  for a small request, if the cache holds 2 MiB (one slab): there may be thousands
 *  transfer      all transfer caches are emptied
 */
static bool flush_own_cache(struct pool *pool, struct cache *cache,
                            const struct alloc_request *request) {
    uint64_t before = cache->bytes;
    if (is_ablated(ABLATION_FLUSH_OWN)) {
        return false;
    }
    bool small = !request->large && before >= PAGE_BYTES;
    cache_enter(cache);
    cache_flush(cache, small ? 0 : SMALL_CLASSES);
    bool any = cache->bytes < before;
    cache_leave(cache);
    return quota_empty_transfers(pool) || any;
}

/*
 * Step 7: over the budget, waits while another thread's call may be ending the context, at most
 * GROWTH_WAIT_NS. The pool's lock is held on entry and on return.
 *
 * Until that call returns, the backend answers no queries and freed memory stays pending. Without
 * the wait the allocating threads would take all free memory while the other thread is
 * descheduled. The wait is short because the other thread may be waiting for this one.
 */
static void wait_for_context_end(struct pool *pool, const struct alloc_request *request) {
    struct source *source = &pool->source;
    if (source->backend->suspended && peaks_over_budget(pool, source_growth(request))) {
        sync_wait_while_suspended(source, GROWTH_WAIT_NS);
    }
}

/*
 * Step 8 (vmm backend, large requests over the budget): puts all pending memory behind a
 * barrier before the search, not only if the search fails. Best fit then chooses among all free
 * memory, which keeps free ranges large. The pool's lock is held throughout.
 *
 * Skips the barrier while little memory is pending (BARRIER_AHEAD_SHARE), and with several streams
 * while live memory is below the floor: streams that run side by side would lose more by it.
 */
static void barrier_ahead(struct pool *pool, const struct alloc_request *request) {
    struct source *source = &pool->source;
    uint64_t all = epochs_latest_on_time(&source->epochs);
    if (!is_ablated(ABLATION_BARRIER_AHEAD) && source->policy->barrier_ahead && request->large &&
        all > 0 && budget_is_beyond_floor(source) &&
        source->pending_bytes > source->goal / BARRIER_AHEAD_SHARE &&
        !epochs_is_safe(&source->epochs, all) && peaks_over_budget(pool, source_growth(request))) {
        if (!sync_query(source, all)) {
            sync_make_safe(source, all, SYNC_NO_WAIT);
        }
    }
}

/*
 * Step 13: grows the pool, within the budget if possible. `over_budget` is computed only for a
 * policy that releases idle segments first; the other policy ignores it. Returns 0, with or without
 * request->block, or the refusal. The pool's lock is held on entry and on return; it is released in
 * between.
 */
static int grow_for(struct pool *pool, struct alloc_request *request) {
    struct source *source = &pool->source;
    bool releases = source->policy->releases_first && !source->backend->release_waits;
    bool over_budget = releases && peaks_over_budget(pool, source_growth(request));
    return source->policy->grow_within_budget(source, request, over_budget);
}

/*
 * Takes steps 7 to 21, and counts the outcome. Returns 0 with request->block, or the error. The
 * pool's lock is held on entry and on return, and released in between; the cache is not entered.
 */
static int grow_or_retry(struct pool *pool, struct cache *cache, struct alloc_request *request) {
    ASSERT_HELD(&pool->source.lock);
    struct source *source = &pool->source;
    wait_for_context_end(pool, request);
    barrier_ahead(pool, request);
    if (try_completed(source, request)) { /* step 9 */
        return 0;
    }
    /* step 10 */
    if (quota_take_back(pool, source_growth(request)) && try_pending(source, request)) {
        return 0;
    }
    /* steps 11 and 12 */
    if (peaks_over_budget(pool, source_growth(request)) &&
        (try_barrier(source, request) ||
         (flush_own_cache(pool, cache, request) && try_pending(source, request)))) {
        return 0;
    }
    int r = grow_for(pool, request);
    if (r == 0 && budget_used(source) > source->refused_at) {
        source->refused_at = 0; /* the pool now holds more than at the refusal */
        source->budget_stale = true;
    }
    if (r == 0 && !request->block && !try_free_or_split(source, request)) {
        r = source_grow(source, request); /* another thread took the memory of this growth */
        r = try_free_or_split(source, request) ? 0 : r;
    }
    if (source_refused(r)) {
        source->refused_at = budget_used(source) > 0 ? budget_used(source) : 1;
        source->budget_stale = true; /* budget_update() at the end of this slow path */
        r = retry_refused(pool, request, r);
        counter_add(&source->counters.oom_retries, r == 0);
    }
    counter_add(&source->counters.cache_misses, r == 0);
    return request->block ? r : r == 0 ? -ENOMEM : r;
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
        found = cache_find_any(cache, request);
        cache_leave(cache);
    }
    return found || (!at_once && try_free_or_reclaim(pool, request))
               ? 0
               : grow_or_retry(pool, cache, request);
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
    int dead = slow_path_health(pool);
    if (dead) {
        return dead;
    }
    if (at_once) {
        reclaim_deferred(pool, true);
    }
    cache_enter(cache);
    uint64_t stamp = cache_stamp_of_any(cache, request);
    cache_leave(cache);
    bool advancing;
    if (!lock_unless_safe(pool, stamp, &advancing)) {
        if (cache_alloc(cache, request, requested, address)) {
            return 0;
        }
        lock_acquire(&source->lock); /* another thread took the safe block back for the pool */
    }
    int r = alloc_locked(pool, cache, request, stamp, at_once, advancing);
    if (r == 0) {
        cache_enter(cache);
        *address = cache_hand_out(cache, request, requested);
        cache_leave(cache);
        pool->peaks.has_large |= request->large;
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

/* Steps 3 to 22: repeats a refused request while deferred frees are reclaimed. */
int slow_path_alloc(struct pool *pool, struct cache *cache, struct alloc_request *request,
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
        *request = (struct alloc_request){.bin = request->bin,
                                          .bytes = request->bytes,
                                          .large = request->large,
                                          .requester = request->requester};
    }
}
