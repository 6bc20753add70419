/*
 * The slow path of an allocation. The table is the whole ladder, with the steps of alloc.c.
 *
 * step  function                    what is tried                          lock  longest wait
 *    1  pool_alloc()                head of the bin in the thread's cache  cache none
 *    2  find_cached()               larger bins, then transfer caches      cache none
 *    3  alloc_slow()                deferred frees: large, or pressure     none  none
 *    4  lock_unless_safe()          result of another thread's query       none  SPINS_BEFORE_LOCK
 *    5  alloc_locked()              own cached blocks: query or barrier    pool* event (1)
 *    6  try_free_or_reclaim()       a few deferred frees: small            pool* none
 *    7  wait_for_context_end()      end of another thread's call           pool* SUSPENDED_WAIT_NS
 *    8  barrier_ahead()             barrier for all pending memory         pool  none
 *    9  try_completed()             free memory, queries                   pool* none
 *   10  quota_take_back()           caches of idle threads                 pool  none
 *   11  try_barrier()               over budget: barrier or wait           pool* event (1)
 *   12  flush_own_cache()           over budget: this thread's cache       pool  none
 *   13  grow_for()                  a segment from the driver              pool* RETURN_WAIT_NS (1)
 *       --- the driver or the limit has refused: 14 to 21, up to OTHERS_TRIES times (2) ---
 *   14  grow_wait_for_others()      growths of other threads               pool* their driver calls
 *   15  quota_take_all_back()       caches of all threads                  pool  none
 *   16  sync_wait_while_suspended() end of another thread's call           pool* LATE_WAIT_NS
 *   17  try_grow()                  the driver once more                   pool* RETURN_WAIT_NS
 *   18  sync_wait_barriers()        work in front of barriers              pool* event (1)
 *   19  source_release_idle()       idle segments, then growth             pool* RETURN_WAIT_NS
 *   20  try_other_pools()           idle memory of other pools, growth     pool* (3)
 *   21  try_wait()                  all pending memory; then 19, 20 again  pool* LATE_WAIT_NS (4)
 *   22  alloc_missed()              all deferred frees; then 3 again       none  event (1)
 *
 * Lock: "cache" is the biased lock of the thread's cache. "pool" is source.lock, held throughout.
 * "pool*" is source.lock, released around every call that can block; state is read anew afterwards.
 * (1) For an event recorded in a free, without a limit: the native free waited for the same work.
 * (2) After 10, 12 and 14 to 16, try_pending() repeats 9 and 11.
 * (3) The limits of release_others() (source/backend.h); after 21 also for work of those pools.
 * (4) For each event recorded later. Waits that failed before count against the limit.
 */
#include "pool/internal.h"

#include "source/try.h"

#include <errno.h>

/*
 * Returns the bytes that are neither live nor deferred: free, pending, in caches, or being
 * unmapped. The pool's lock is held.
 */
static uint64_t idle_bytes(const struct pool *pool) {
    const struct source *source = &pool->source;
    uint64_t in_use = peaks_live_at_most(pool) + atomic_load(&pool->deferred_bytes);
    uint64_t idle = budget_used(source) > in_use ? budget_used(source) - in_use : 0;
    return idle + atomic_load(&source->remap.unmapping_bytes);
}

/*
 * Returns whether enough memory may exist for the request: what the driver has left, what other
 * pools hold idle, and what this pool holds idle in any cache. Otherwise another request to the
 * driver or a wait would be in vain.
 *
 * Sets *none if nothing is pending, and neither this pool nor another one has idle memory.
 * Entered with the pool's lock, which is released in between, before the idle bytes are counted.
 */
static bool may_suffice(struct pool *pool, const struct alloc_request *request, bool *none) {
    struct source *source = &pool->source;
    uint64_t others = 0, available = budget_room(source, &others);
    *none = source->pending_bytes + source_idle(source) + others == 0;
    return request->bytes <= available + others + idle_bytes(pool);
}

/* State of an allocation after a refusal by the driver or the limit. */
struct oom_state {
    /* Limit of each further wait, in ns; 0 once a call that may end the context used it up. */
    uint64_t time_budget;
    bool taken_by_others; /* other requests took what other pools gave back */
};

/*
 * Steps 14 to 21: tries each source once after a refusal. Returns 0 with request->block,
 * `refusal` if nothing served the request, or another error of the growth. The pool's lock is
 * held on entry and on return; it is released in between.
 */
static int try_after_refusal(struct pool *pool, struct alloc_request *request,
                             struct oom_state *oom, int refusal) {
    ASSERT_HELD(&pool->source.lock);
    struct source *source = &pool->source;
    request->any = true;
    request->placement = PLACE_ANYWHERE;
    grow_wait_for_others(source); /* step 14 */
    if (try_pending(source, request)) {
        return 0;
    }
    if (quota_take_all_back(pool) && try_pending(source, request)) { /* step 15 */
        return 0;
    }
    bool none;
    if (!may_suffice(pool, request, &none)) {
        return refusal;
    }
    bool answers = sync_wait_while_suspended(source, oom->time_budget); /* step 16 */
    if (source->backend->suspended) {
        oom->time_budget = 0; /* the wait above used it up */
    }
    if (answers && try_pending(source, request)) {
        return 0;
    }
    /* step 17: memory that another growth held may be available again */
    int r = try_grow(source, request, &refusal);
    if (r != -EAGAIN || none) {
        return r == -EAGAIN ? refusal : r;
    }
    /* step 18: idle segments behind a barrier can be released afterwards */
    sync_wait_barriers(source);
    for (int last = 0; last < 2; last++) {
        if (last && try_wait(source, request, oom->time_budget)) { /* step 21 */
            return 0;
        }
        uint64_t need = source_growth(request);
        while (r == -EAGAIN && source_release_idle(source, need) == 0) { /* step 19 */
            r = try_grow(source, request, &refusal);
        }
        if (r == -EAGAIN && try_other_pools(source, request, last)) { /* step 20 */
            uint64_t others = 0;
            r = try_grow(source, request, &refusal);
            /* false: the memory is there, and the driver still refuses */
            oom->taken_by_others = r == -EAGAIN && budget_room(source, &others) < need;
        }
        if (r != -EAGAIN) {
            return r;
        }
    }
    return try_free_or_split(source, request) ? 0 : refusal;
}

/*
 * Step 12: gives the cached blocks of the calling thread to the pool, because growth past the
 * budget comes next. Returns whether there were any. Entered with the pool's lock, outside the
 * cache.
 *
 *  large blocks  always: some dozens at most, little work compared with a growth
 *  small blocks  for a small request, if the cache holds 2 MiB (one slab) and 1/CACHED_SHARE of
 *                the budget: there may be thousands
 *  transfer      all transfer caches are emptied
 */
static bool flush_own_cache(struct pool *pool, struct cache *cache,
                            const struct alloc_request *request) {
    uint64_t budget = atomic_load_explicit(&pool->source.budget, memory_order_relaxed);
    uint64_t before = cache->bytes;
    bool small = !request->large && before >= PAGE_BYTES && before >= budget / CACHED_SHARE;
    cache_enter(cache);
    cache_flush(cache, small ? 0 : SMALL_CLASSES);
    bool any = cache->bytes < before;
    cache_leave(cache);
    return quota_empty_transfers(pool) || any;
}

/*
 * Returns how often memory came back to threads that ask for memory of the device; 0 if the
 * backend does not count that. Releases the pool's lock for the call, which waits for other
 * requests in flight.
 */
static uint64_t return_count(struct source *source) {
    uint64_t count = 0;
    if (source->backend->ops->return_count) {
        lock_release(&source->lock);
        count = source->backend->ops->return_count(source->backend);
        lock_acquire(&source->lock);
    }
    return count;
}

/*
 * Returns a number that grows with every free by any thread, into any cache or queue, and with
 * every reclaimed deferred free.
 */
static uint64_t count_frees(const struct pool *pool) {
    return peaks_sums(pool).of[WATERMARK_COUNT].given + atomic_load(&pool->reclaims);
}

/* The state of the pool when one try of a refused request began. */
struct moment {
    uint64_t stamp; /* of a free made at that time */
    uint64_t frees; /* count_frees() at that time */
};

/*
 * Returns whether the refused request may have missed memory. One of these happened after
 * `since`:
 *
 *  1. memory became pending
 *  2. a thread freed a block, or a deferred free was reclaimed
 *  3. free memory went into caches (refill()) after quota_take_all_back()
 */
static bool may_have_missed(const struct pool *pool, const struct moment *since) {
    const struct source *source = &pool->source;
    bool pending = false;
    for (enum reach reach = 0; reach < REACHES; reach++) {
        const struct pending *queue = &source->pending[reach];
        pending |= queue->head && queue->tail->stamp >= since->stamp;
    }
    return pending || count_frees(pool) != since->frees ||
           idle_bytes(pool) > budget_free(source) + source->pending_bytes;
}

/*
 * Takes steps 14 to 21, up to OTHERS_TRIES times. Returns 0 or the refusal. The pool's lock is held
 * on entry and on return; it is released in between.
 *
 * Another thread may take the memory that this thread waited for or released, and free as much.
 * A refusal is therefore final only if no more memory exists than when the last try began. The lock
 * is held from that last check until the return.
 */
static int retry_after_refusal(struct pool *pool, struct alloc_request *request, int refusal) {
    ASSERT_HELD(&pool->source.lock);
    struct source *source = &pool->source;
    struct oom_state oom = {.time_budget = LATE_WAIT_NS};
    uint64_t now = return_count(source);
    bool again = true, none;
    for (unsigned tries = 0; again && tries < OTHERS_TRIES; tries++) {
        uint64_t before = now;
        struct moment since = {epochs_stamp(&source->epochs), count_frees(pool)};
        oom.taken_by_others = false;
        refusal = try_after_refusal(pool, request, &oom, refusal);
        bool refused = source_refused(refusal);
        now = refused ? return_count(source) : before;
        again =
            now != before || (refused && (oom.taken_by_others || may_have_missed(pool, &since)) &&
                              may_suffice(pool, request, &none));
    }
    return refusal;
}

/*
 * Step 7: over the budget, waits while another thread's call may be ending the context, at most
 * SUSPENDED_WAIT_NS. The pool's lock is held on entry and on return.
 *
 * Until that call returns, the backend answers no queries and freed memory stays pending. Without
 * the wait the allocating threads would take all free memory while the other thread is
 * descheduled. The wait is short because the other thread may be waiting for this one.
 */
static void wait_for_context_end(struct pool *pool, const struct alloc_request *request) {
    struct source *source = &pool->source;
    if (source->backend->suspended && peaks_over_budget(pool, source_growth(request))) {
        sync_wait_while_suspended(source, SUSPENDED_WAIT_NS);
    }
}

/*
 * Step 8 (pages backend, large requests over the budget): puts all pending memory behind a
 * barrier before the search, not only if the search fails. Best fit then chooses among all free
 * memory, which keeps free ranges large. The pool's lock is held throughout.
 *
 * Skips the barrier while little memory is pending (BARRIER_AHEAD_SHARE), and with several streams
 * while live memory is below the floor: streams that run side by side would lose more by it.
 */
static void barrier_ahead(struct pool *pool, const struct alloc_request *request) {
    struct source *source = &pool->source;
    uint64_t all = epochs_latest_on_time(&source->epochs);
    if (source->policy->barrier_ahead && request->large && all > 0 &&
        budget_is_beyond_floor(source) &&
        source->pending_bytes > source->goal / BARRIER_AHEAD_SHARE &&
        !epochs_is_safe(&source->epochs, all) && peaks_over_budget(pool, source_growth(request))) {
        if (!sync_query(source, all)) {
            sync_make_safe(source, all, SYNC_NO_WAIT);
        }
    }
}

/*
 * Step 13: grows the pool by a segment, within the budget if possible. Only the segments backend,
 * without `release_waits`, releases idle segments first: only there it matters whether the growth
 * exceeds the budget. Returns 0, with or without request->block, or the refusal.
 */
static int grow_for(struct pool *pool, struct alloc_request *request) {
    struct source *source = &pool->source;
    bool releases = source->policy->releases_first && !source->backend->release_waits;
    bool over_budget = releases && peaks_over_budget(pool, source_growth(request));
    return source->policy->grow_within_budget(source, request, over_budget);
}

/* Takes steps 7 to 21 of the ladder above, and counts the outcome. */
int slow_path_alloc(struct pool *pool, struct cache *cache, struct alloc_request *request) {
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
        r = retry_after_refusal(pool, request, r);
        counter_add(&source->counters.oom_retries, r == 0);
    }
    counter_add(&source->counters.cache_misses, r == 0);
    return request->block ? r : r == 0 ? -ENOMEM : r;
}
