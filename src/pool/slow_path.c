/*
 * Supply: where the memory for a request comes from, the cheapest way first.
 *
 *      ready memory                     a free range or run that fits
 *      what has finished meanwhile      one or two queries
 *      order                            over budget only: a barrier, or a wait, on an on-time event
 *      grow                             a segment from the driver; over budget idle ones go back first
 *      --- the driver or the limit has refused ---
 *      order, then the other threads' caches, on-time epochs waited for, idle segments given back,
 *      late epochs waited for with a limit; after each of them, everything once more
 *
 * The lock is dropped around every call that can block, so whatever was true before such a call is
 * looked at again after it.
 */
#include "pool/internal.h"

#include "source/try.h"

#include <errno.h>

/*
 * Returns the bytes that are neither live nor held back by a stream: free, pending, in threads'
 * caches, or on their way from the reserve to the driver.
 */
static uint64_t idle_bytes(const struct pool *pool) {
    const struct source *source = &pool->source;
    uint64_t in_use = peaks_live_at_most(pool) + atomic_load(&pool->deferred_bytes);
    uint64_t idle = budget_used(source) > in_use ? budget_used(source) - in_use : 0;
    return idle + atomic_load(&source->remap.unmapping_bytes);
}

/*
 * Returns whether what the driver has left, what other pools hold idle, and what is not live in
 * this pool would be enough, in whichever thread's cache it lies. If not, neither the driver is
 * asked again nor any work waited for. *none: nothing is pending, and nothing could go back to the
 * driver. Lets go of the lock before it counts.
 */
static bool may_suffice(struct pool *pool, const struct alloc_request *request, bool *none) {
    struct source *source = &pool->source;
    uint64_t others = 0, room = budget_room(source, &others);
    *none = source->pending_bytes + source_idle(source) + others == 0;
    return request->bytes <= room + others + idle_bytes(pool);
}

/* What is known when the driver, or the limit, has refused. */
struct oom_state {
    /* Of one wait yet; none is left once a call that may end the context has taken all of it. */
    uint64_t time_budget;
    bool taken_by_others; /* what other pools gave back for the request went elsewhere */
};

static int try_after_refusal(struct pool *pool, struct alloc_request *request,
                             struct oom_state *oom, int refusal) {
    struct source *source = &pool->source;
    request->any = true;
    request->placement = PLACE_ANYWHERE;
    grow_wait_for_others(source);
    if (try_pending(source, request)) {
        return 0;
    }
    if (quota_take_all_back(pool) && try_pending(source, request)) {
        return 0;
    }
    bool none;
    if (!may_suffice(pool, request, &none)) {
        return refusal;
    }
    bool answers = sync_wait_while_suspended(source, oom->time_budget);
    if (source->backend->suspended) {
        oom->time_budget = 0; /* all of it is spent */
    }
    if (answers && try_pending(source, request)) {
        return 0;
    }
    int r = try_grow(source, request, &refusal); /* what was lent to others may be there again */
    if (r != -EAGAIN || none) {
        return r == -EAGAIN ? refusal : r;
    }
    sync_wait_barriers(source); /* what lies idle behind a barrier can go back then */
    for (int last = 0; last < 2; last++) {
        if (last && try_wait(source, request, oom->time_budget)) {
            return 0;
        }
        uint64_t need = source_growth(request);
        while (r == -EAGAIN && source_release_idle(source, need) == 0) {
            r = try_grow(source, request, &refusal);
        }
        if (r == -EAGAIN && try_other_pools(source, request, last)) {
            uint64_t others = 0;
            r = try_grow(source, request, &refusal);
            /* if not, it is there, and the driver refuses all the same */
            oom->taken_by_others = r == -EAGAIN && budget_room(source, &others) < need;
        }
        if (r != -EAGAIN) {
            return r;
        }
    }
    return try_free_or_split(source, request) ? 0 : refusal;
}

/*
 * What the asking thread has cached goes to the pool. Of large blocks there are some dozens, which
 * is little beside the growth that comes next. Of small ones there may be thousands: they go if that
 * is enough to serve the request and a good part of the budget. True if there was anything.
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
 * Returns a number that grows with every free by any thread, into whichever cache or queue, and
 * with every reclaimed block.
 */
static uint64_t count_frees(const struct pool *pool) {
    return peaks_sums(pool).of[WATERMARK_COUNT].given + atomic_load(&pool->reclaims);
}

/* What a refused request saw when it began to look for memory. */
struct moment {
    uint64_t stamp; /* of a free made then */
    uint64_t frees; /* count_frees() */
};

/*
 * Returns whether memory that the request may have missed is there now: it is pending since,
 * threads have freed since, or free memory went into caches (refill()) after quota_take_all_back().
 */
static bool is_more_there(const struct pool *pool, const struct moment *since) {
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
 * Tries everything that try_after_refusal() does, up to OTHERS_TRIES times. Another thread may take
 * what was waited for or given back, and free as much as that: so a refusal is final only if no
 * more memory is there than when the last try began. The lock is held from that last look on.
 */
static int retry_after_refusal(struct pool *pool, struct alloc_request *request, int refusal) {
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
        again = now != before || (refused && (oom.taken_by_others || is_more_there(pool, &since)) &&
                                  may_suffice(pool, request, &none));
    }
    return refusal;
}

/*
 * While another thread's call may be ending the context, nothing can be asked of it, and what is freed stays
 * pending: whoever goes on would take all there is in the time that the other one has lost its processor.
 * Not for long: it may be waiting for what this thread does next.
 */
static void wait_for_context_end(struct pool *pool, const struct alloc_request *request) {
    struct source *source = &pool->source;
    if (source->backend->suspended && peaks_over_budget(pool, source_growth(request))) {
        sync_wait_while_suspended(source, SUSPENDED_WAIT_NS);
    }
}

/*
 * In a line, near the budget: what is pending goes behind a barrier before a large request looks for its place, not only when there
 * is none. So it gets the best of all that is free, and what is free stays in few pieces. But streams that run side by side would
 * lose more by it where little is at stake.
 */
static void barrier_ahead(struct pool *pool, const struct alloc_request *request) {
    struct source *source = &pool->source;
    uint64_t all = epochs_latest_on_time(&source->epochs);
    if (backend_maps(source->backend) && request->large && all > 0 &&
        budget_is_beyond_floor(source) &&
        source->pending_bytes > source->goal / BARRIER_AHEAD_SHARE &&
        !epochs_is_safe(&source->epochs, all) && peaks_over_budget(pool, source_growth(request))) {
        sync_query_or_barrier(source, all);
    }
}

/* Only where idle segments could go back before it does it matter whether the growth would exceed the budget. */
static int grow_for(struct pool *pool, struct alloc_request *request) {
    struct source *source = &pool->source;
    const struct backend *backend = source->backend;
    bool may_go_back = !backend_maps(backend) && !backend->release_waits;
    return grow(source, request, may_go_back && peaks_over_budget(pool, source_growth(request)));
}

int slow_path_alloc(struct pool *pool, struct cache *cache, struct alloc_request *request) {
    struct source *source = &pool->source;
    wait_for_context_end(pool, request);
    barrier_ahead(pool, request);
    if (try_completed(source, request)) {
        return 0;
    }
    if (quota_take_back(pool, source_growth(request)) && try_pending(source, request)) {
        return 0;
    }
    if (peaks_over_budget(pool, source_growth(request)) &&
        (try_barrier(source, request) ||
         (flush_own_cache(pool, cache, request) && try_pending(source, request)))) {
        return 0;
    }
    int r = grow_for(pool, request);
    if (r == 0 && budget_used(source) > source->refused_at) {
        source->refused_at = 0; /* there is more now than there was then */
        source->budget_stale = true;
    }
    if (r == 0 && !request->block && !try_free_or_split(source, request)) {
        r = source_grow(source, request); /* another thread took what we brought */
        r = try_free_or_split(source, request) ? 0 : r;
    }
    if (source_refused(r)) {
        source->refused_at = budget_used(source) > 0 ? budget_used(source) : 1;
        source->budget_stale = true; /* at the end of this visit */
        r = retry_after_refusal(pool, request, r);
        counter_add(&source->counters.oom_retries, r == 0);
    }
    counter_add(&source->counters.cache_misses, r == 0);
    return request->block ? r : r == 0 ? -ENOMEM : r;
}
