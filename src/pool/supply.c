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

#include <errno.h>
#include <sched.h>

/* Other threads may be bringing what we were refused, or were lent it for as long as the driver is asked. */
static void let_others_grow(struct pool *pool) {
    uint64_t all = pool->grown + pool->growers;
    while (pool->growers > 0 && pool->grown < all) {
        lock_release(&pool->lock);
        sched_yield();
        lock_acquire(&pool->lock);
    }
}

/* What is ready. A segment that would stay for a small part of it is split before, if the driver plays along. */
static bool take(struct pool *pool, struct want *want) {
    bool served;
    while (!(served = source_take(pool, want)) && want->splits) {
        want->care = mapper_split(pool, &pool->large, want->bytes) ? want->care : ARENA_ALL;
    }
    return served;
}

/* --- the ladder --- */

/* Orders just enough pending memory for the request, then all that can be by then: a wait for the former
 * may have gone to another thread, which has freed something since. */
static bool supply_ordered(struct pool *pool, struct want *want) {
    uint64_t enough = pending_stamp(pool, want->bytes), all = epochs_orderable(&pool->epochs);
    if (enough > 0 && enough < all && order_now(pool, enough, want->any) && take(pool, want)) {
        return true;
    }
    all = epochs_orderable(&pool->epochs);
    return all > 0 && !epochs_usable(&pool->epochs, all) && order_now(pool, all, want->any) &&
           take(pool, want);
}

/* Asks for what has finished: enough for the request, then everything. */
static bool supply_cheap(struct pool *pool, struct want *want) {
    if (take(pool, want)) {
        return true;
    }
    uint64_t enough = pending_stamp(pool, want->bytes), all = pending_stamp(pool, UINT64_MAX);
    if (enough == 0) {
        return false;
    }
    order_cheaply(pool, enough);
    if (take(pool, want)) {
        return true;
    }
    return all > enough && order_cheaply(pool, all) && take(pool, want);
}

/*
 * Whether all that is pending or idle, here and in other pools of the device, would be enough if it came back.
 * What the device is known to have besides counts too. If not, the driver is not asked again, and nothing is
 * waited for; nor is it if there is nothing that could come back (`none`).
 */
static bool may_be_had(struct pool *pool, const struct want *want, bool *none) {
    uint64_t others = 0, room = budget_room(pool, &others);
    uint64_t idle = source_idle(pool), free_bytes = budget_ready(pool) + pool->pending_bytes;
    *none = pool->pending_bytes + idle + others == 0;
    return want->bytes <= room + free_bytes + others;
}

static bool gather(struct pool *pool, const struct want *want, bool wait) {
    struct backend *backend = pool->backend;
    if (!backend->ops->gather) {
        return false;
    }
    lock_release(&pool->lock);
    bool any = backend->ops->gather(backend, source_growth(want), wait);
    lock_acquire(&pool->lock);
    return any;
}

/* 0: served. Else why growing was refused, or -EAGAIN while more could be given back for it. */
static int grow_after(struct pool *pool, struct want *want, int *refusal) {
    *refusal = source_grow(pool, want);
    return take(pool, want) ? 0 : source_refused(*refusal) ? -EAGAIN : *refusal;
}

/* All that was freed by now is waited for. What comes of it on the way is taken, before others come who have not waited. */
static bool supply_finished(struct pool *pool, struct want *want, uint64_t patience) {
    uint64_t last = epochs_stamp(&pool->epochs), before;
    bool served, more;
    do {
        before = pool->epochs.finished;
        more = order_finish(pool, patience, false);
        served = take(pool, want);
    } while (!served && more && pool->epochs.finished > before && pool->epochs.finished < last);
    return served;
}

/* *patience: of one wait yet; nothing is left of it once a call that may end the context has taken all of it. */
static int supply_hard(struct pool *pool, struct want *want, uint64_t *patience, int refusal) {
    want->any = true;
    want->care = ARENA_ALL;
    let_others_grow(pool);
    if (supply_cheap(pool, want) || supply_ordered(pool, want)) {
        return 0;
    }
    if (quota_take_all_back(pool) && (supply_cheap(pool, want) || supply_ordered(pool, want))) {
        return 0;
    }
    bool none;
    if (!may_be_had(pool, want, &none)) {
        return refusal;
    }
    bool answers = order_wait_for_answers(pool, *patience);
    *patience = pool->backend->quiet ? 0 : *patience; /* all of it is spent */
    if (answers && (supply_cheap(pool, want) || supply_ordered(pool, want))) {
        return 0;
    }
    int r = grow_after(pool, want, &refusal); /* what was lent to others may be there again */
    if (r != -EAGAIN || none) {
        return r == -EAGAIN ? refusal : r;
    }
    order_finish_ordered(pool); /* what lies idle behind a barrier can go back then */
    for (int last = 0; last < 2; last++) {
        if (last && supply_finished(pool, want, *patience)) {
            return 0;
        }
        uint64_t need = source_growth(want);
        while (r == -EAGAIN && source_release_idle(pool, need) == 0) {
            r = grow_after(pool, want, &refusal);
        }
        if (r == -EAGAIN && gather(pool, want, last)) {
            uint64_t others = 0;
            r = grow_after(pool, want, &refusal);
            /* if not, it is there, and the driver refuses all the same */
            want->lost = r == -EAGAIN && budget_room(pool, &others) < need;
        }
        if (r != -EAGAIN) {
            return r;
        }
    }
    return take(pool, want) ? 0 : refusal;
}

/*
 * What the asking thread has cached goes to the pool. Of large blocks there are some dozens, which
 * is little beside the growth that comes next. Of small ones there may be thousands: they go if that
 * is enough to serve the request and a good part of the budget. True if there was anything.
 */
static bool give_up_own_cache(struct pool *pool, const struct want *want) {
    struct cache *cache = want->cache;
    uint64_t budget = atomic_load_explicit(&pool->budget, memory_order_relaxed);
    uint64_t before = cache->bytes;
    bool small = !want->large && before >= PAGE_BYTES && before >= budget / CACHED_SHARE;
    cache_enter(cache);
    cache_empty(cache, small ? 0 : SMALL_CLASSES);
    bool any = cache->bytes < before;
    cache_leave(cache);
    return quota_empty_transfers(pool) || any;
}

static uint64_t given_back(struct pool *pool) {
    uint64_t count = 0;
    if (pool->backend->ops->given_back) {
        lock_release(&pool->lock);
        count = pool->backend->ops->given_back(pool->backend);
        lock_acquire(&pool->lock);
    }
    return count;
}

/* What was waited for, or what other pools gave back, may have gone to another thread, which has freed enough since. */
static bool others_freed(struct pool *pool, const struct want *want, uint64_t since) {
    bool none, freed = false;
    for (enum reach reach = 0; reach < REACHES; reach++) {
        const struct pending *queue = &pool->pending[reach];
        freed |= queue->head && queue->tail->stamp >= since;
    }
    return (want->lost || freed) && may_be_had(pool, want, &none);
}

/* What others had taken when we were refused may have been too little for them, and have come back. */
static int supply_as_natively(struct pool *pool, struct want *want, int refusal) {
    uint64_t before, now = given_back(pool), since, patience = LATE_WAIT_NS;
    unsigned tries = 0;
    do {
        before = now;
        since = epochs_stamp(&pool->epochs);
        want->lost = false;
        refusal = supply_hard(pool, want, &patience, refusal);
        now = source_refused(refusal) ? given_back(pool) : before;
    } while ((now != before || (source_refused(refusal) && others_freed(pool, want, since))) &&
             ++tries < OTHERS_TRIES);
    return refusal;
}

/* How far the pool may grow while anything of it lies idle. The request may raise the peak
 * of what is in use: neither ready nor pending. */
static uint64_t most_reserved(const struct pool *pool, uint64_t growth) {
    uint64_t in_use = budget_expected(pool) - budget_ready(pool) - pool->pending_bytes;
    uint64_t peak = most_of(books_get(&pool->books.allocated.peak), in_use + growth);
    uint64_t budget = atomic_load_explicit(&pool->budget, memory_order_relaxed);
    return most_of(peak + peak / 10 * (RESERVE_TENTHS - 10) + RESERVE_BYTES, budget);
}

static void release_down_to(struct pool *pool, uint64_t growth, uint64_t most) {
    if (budget_would_exceed(pool, growth, most)) {
        source_release_idle(pool, budget_expected(pool) + growth - most);
    }
}

/* Waits for the work in front of what lies idle, has not finished and was freed in epoch `last` at the
 * latest. False: none can be waited for. */
static bool wait_for_idle(struct pool *pool, uint64_t last) {
    uint64_t finished = pool->epochs.finished;
    uint64_t stamp =
        least_of(idle_stamp(&pool->large, finished), idle_stamp(&pool->small, finished));
    return stamp <= last && order_finish_stamp(pool, stamp);
}

/*
 * Growing would exceed what the peak allows: what lies idle behind a barrier is waited for and goes back
 * too, and ranges that are spared otherwise are cut. What other threads free meanwhile is not waited for:
 * that need not end. True: that has served the request.
 */
static bool spare_growing(struct pool *pool, struct want *want, uint64_t growth) {
    uint64_t most = most_reserved(pool, growth), last = epochs_stamp(&pool->epochs);
    while (budget_would_exceed(pool, growth, most) && wait_for_idle(pool, last)) {
        if (take(pool, want)) {
            return true;
        }
        release_down_to(pool, growth, most);
    }
    if (!budget_would_exceed(pool, growth, most)) {
        return false;
    }
    want->care = ARENA_CUTTING;
    bool served = take(pool, want);
    want->care = ARENA_SPARING;
    return served;
}

/*
 * What was released is the driver's only when the stream that frees it has got there, and a barrier holds that stream up
 * like any other of the context. What grows meanwhile comes on top.
 */
static int grow_after_returns(struct pool *pool, struct want *want, uint64_t growth) {
    uint64_t most = most_reserved(pool, growth);
    if (pool->returning > 0) {
        source_wait_for_return(pool, 0);
    }
    if (pool->returning > 0 && budget_would_exceed(pool, growth + pool->returning, most)) {
        order_finish_ordered(pool);
        source_wait_for_return(pool, RETURN_SOON_NS);
    }
    return source_grow(pool, want);
}

/*
 * In a line what lies idle makes room for the growth (mapper.c), if it may move or has finished; where that is not enough, work is waited
 * for rather than that the pool grows past its budget, and past what it has already. Not where that would not be enough either.
 */
static int grow_line(struct pool *pool, struct want *want) {
    const struct arena *arena = want->large ? &pool->large : &pool->small;
    uint64_t bytes = want->large ? want->bytes : PAGE_BYTES, last = epochs_stamp(&pool->epochs);
    uint64_t budget = budget_with(pool, bytes);
    struct growth growth = mapper_growth(pool, arena, bytes, budget);
    if (budget_would_exceed(pool, growth.bytes, budget)) {
        epochs_poll(&pool->epochs, pool->backend);
        growth = mapper_growth(pool, arena, bytes, budget);
    }
    uint64_t most = most_of(budget, budget_expected(pool));
    while (budget_would_exceed(pool, growth.bytes, most + growth.ready) &&
           !budget_would_exceed(pool, growth.bytes, most + growth.idle) &&
           wait_for_idle(pool, last)) {
        if (take(pool, want)) {
            return 0;
        }
        growth = mapper_growth(pool, arena, bytes, budget);
    }
    return source_grow(pool, want);
}

/*
 * Growing past the budget while segments lie idle: they go back first, as long as that and the growth
 * do not take more than a share of the time. What they did not take of that is forgotten but for a
 * little: after a rest every growth would else cost twice as much for long. Past what the peak allows
 * they go back whatever it takes: natively all of them would have gone.
 */
static int grow_with_excess(struct pool *pool, struct want *want) {
    uint64_t growth = source_growth(want);
    if (backend_maps(pool->backend)) {
        return grow_line(pool, want);
    }
    if (pool->backend->release_waits || !budget_is_short(pool, growth)) {
        return grow_after_returns(pool, want, growth);
    }
    uint64_t budget = atomic_load_explicit(&pool->budget, memory_order_relaxed);
    uint64_t most = most_reserved(pool, growth), before = backend_clock(pool->backend);
    uint64_t share = (before - pool->started_ns) / EXCESS_SHARE;
    if (share > pool->excess_ns + EXCESS_MOST_NS) {
        pool->excess_ns = share - EXCESS_MOST_NS;
    }
    bool idle = pool->large.idle_bytes + pool->small.idle_bytes > 0;
    bool due = idle && pool->excess_ns <= share, exceeds = budget_would_exceed(pool, growth, most);
    if (idle) { /* what is usable behind a barrier may have finished */
        epochs_poll(&pool->epochs, pool->backend);
    }
    release_down_to(pool, growth, due ? budget : most);
    if (exceeds && spare_growing(pool, want, growth)) {
        return 0;
    }
    int r = grow_after_returns(pool, want, growth);
    if (pool->returning > 0) {
        source_wait_for_return(pool, 0);
    }
    if (due) {
        pool->excess_ns += backend_clock(pool->backend) - before;
    }
    return r;
}

/*
 * While another thread's call may be ending the context, nothing can be asked of it, and what is freed stays
 * pending: whoever goes on would take all there is in the time that the other one has lost its processor.
 * Not for long: it may be waiting for what this thread does next.
 */
static void let_the_context_end(struct pool *pool, const struct want *want) {
    if (pool->backend->quiet && budget_is_short(pool, source_growth(want))) {
        order_wait_for_answers(pool, QUIET_WAIT_NS);
    }
}

/*
 * In a line, near the budget: what is pending goes behind a barrier before a large request looks for its place, not only when there
 * is none. So it gets the best of all that is free, and what is free stays in few pieces. But streams that run side by side would
 * lose more by it where little is at stake.
 */
static void order_ahead(struct pool *pool, const struct want *want) {
    uint64_t all = epochs_orderable(&pool->epochs);
    if (backend_maps(pool->backend) && want->large && all > 0 && budget_is_beyond_floor(pool) &&
        pool->pending_bytes > pool->goal / ORDER_AHEAD_SHARE &&
        !epochs_usable(&pool->epochs, all) && budget_is_short(pool, source_growth(want))) {
        order_soon(pool, all);
    }
}

int supply(struct pool *pool, struct want *want) {
    let_the_context_end(pool, want);
    order_ahead(pool, want);
    if (supply_cheap(pool, want)) {
        return 0;
    }
    if (quota_take_back(pool, source_growth(want)) &&
        (supply_cheap(pool, want) || supply_ordered(pool, want))) {
        return 0;
    }
    if (budget_is_short(pool, source_growth(want)) &&
        (supply_ordered(pool, want) ||
         (give_up_own_cache(pool, want) &&
          (supply_cheap(pool, want) || supply_ordered(pool, want))))) {
        return 0;
    }
    int r = grow_with_excess(pool, want);
    if (r == 0 && budget_used(pool) > pool->refused_at) {
        pool->refused_at = 0; /* there is more now than there was then */
        pool->budget_follows = true;
    }
    if (r == 0 && !want->block && !take(pool, want)) {
        r = source_grow(pool, want); /* another thread took what we brought */
        r = take(pool, want) ? 0 : r;
    }
    if (source_refused(r)) {
        pool->refused_at = budget_used(pool) > 0 ? budget_used(pool) : 1;
        pool->budget_follows = true; /* at the end of this visit */
        r = supply_as_natively(pool, want, r);
        books_add(&pool->books.oom_retries, r == 0);
    }
    books_add(&pool->books.cache_misses, r == 0);
    return want->block ? r : r == 0 ? -ENOMEM : r;
}
