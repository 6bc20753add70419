/*
 * Supply: where the memory for a request comes from, the cheapest source first.
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

#include "pool/page_map.h"

#include <errno.h>
#include <time.h>

#define SEGMENT_STEP_MAX                                                                           \
    ((uint64_t)32 << 20)       /* large blocks: a sixteenth of what they have, up to this, */
#define SEGMENT_STEP_SHARE 256 /* and this part of the device: others need room too */
#define STARTS_LEAST                                                                               \
    ((uint64_t)64 << 10) /* small blocks larger than this may start where a page does */
#define STARTS_BYTES ((uint64_t)64 << 20) /* beyond so much of pages */
#define EXCESS_SHARE 16 /* giving back ahead of growing may take one part in this of all time */
#define EXCESS_MOST_NS                                                                             \
    ((uint64_t)10 * 1000000) /* but no more than this of what it did not take is kept for later */
#define RESERVE_TENTHS 13 /* segments lie idle in a reserve of at most so many tenths of the peak */
#define RESERVE_BYTES                                                                              \
    ((uint64_t)32 << 20) /* and this much more; the last step may exceed it by as much */
#define PARKED_SHARE 8 /* a thread's cache is given up if it holds one part in this of the budget */
#define RETURN_WAIT_NS                                                                             \
    ((uint64_t)1 * 1000000000) /* longest wait for memory that is on its way back; 1 ms is usual */
#define RETURN_SOON_NS ((uint64_t)2 * 1000000) /* where memory is not short */
#define RETURN_POLL_NS 50000
#define LATE_WAIT_NS ((uint64_t)10 * 1000000000) /* longest wait for work that need not end */

/*
 * The unit that a page keeps back (page.h) takes a whole block out of the few large ones that fit there.
 * That is borne for little memory only.
 */
static bool take_block(struct pool *pool, struct want *want) {
    unsigned units = size_class_units(want->size_class);
    bool dear = (uint64_t)units << UNIT_SHIFT > STARTS_LEAST;
    bool any = want->any || (dear && pool->small.reserved_bytes > STARTS_BYTES);
    want->block = runs_take(&pool->runs, units, want->size_class, any);
    return want->block != NULL;
}

bool supply_ready(struct pool *pool, struct want *want) {
    reclaim_usable(pool);
    if (want->bytes > 0) {
        want->range = arena_take(&pool->large, want->bytes, ARENA_UNIT, want->care);
        if (want->range) {
            page_map_set_start(want->range->address, want->range);
        }
        return want->range != NULL;
    }
    if (take_block(pool, want)) {
        return true;
    }
    struct range *range = arena_take(&pool->small, PAGE_BYTES, PAGE_BYTES, ARENA_ALL);
    if (!range) {
        return false;
    }
    range_become(range, RANGE_PAGE);
    if (runs_add_page(&pool->runs, range, range->address) != 0) {
        arena_give(&pool->small, range);
        return false;
    }
    return take_block(pool, want);
}

/* --- giving back --- */

static int give_back(struct pool *pool, uint64_t base, uint64_t bytes) {
    struct backend *backend = pool->backend;
    if (!backend->release_waits) {
        return backend->ops->release(backend, base, bytes);
    }
    pool->waiting++;
    pthread_mutex_unlock(&pool->lock);
    int r = backend->ops->release(backend, base, bytes);
    pthread_mutex_lock(&pool->lock);
    pool->waiting--;
    return r;
}

/* Bytes given back: one segment, or 0. Where that waits for the device, only if it is idle: nothing but
 * what another thread submits at that very moment is then waited for (Known gaps in docs/design.md). */
static uint64_t release_one(struct pool *pool, struct arena *arena, uint64_t bytes) {
    if (arena->idle_bytes == 0 || (pool->backend->release_waits && !order_is_idle(pool))) {
        return 0;
    }
    struct segment *segment = arena_idle_segment(arena, bytes, pool->epochs.finished);
    if (!segment) {
        return 0;
    }
    uint64_t base = segment->base, size = segment->bytes;
    bool reached = segment->reached_from_outside;
    arena_remove(arena, segment);
    if (give_back(pool, base, size) != 0) {
        struct segment *kept = arena_add(arena, base, size) == 0 ? arena->segments : NULL;
        if (kept) {
            kept->reached_from_outside = reached;
        }
        return 0;
    }
    pool->returning = true;
    books_add(&pool->books.driver_frees, 1);
    budget_book_reserve(pool); /* a growth in the same visit would hide it */
    return size;
}

uint64_t supply_idle(const struct pool *pool) {
    return pool->large.idle_bytes + pool->small.idle_bytes;
}

int supply_release_idle(struct pool *pool, uint64_t bytes) {
    uint64_t released = 0;
    while (released < bytes) {
        uint64_t one = release_one(pool, &pool->large, bytes - released);
        one = one > 0 ? one : release_one(pool, &pool->small, bytes - released);
        if (one == 0) {
            break;
        }
        released += one;
    }
    return released > 0 ? 0 : supply_idle(pool) > 0 ? -EBUSY : -ENOENT;
}

/* By counting, not by the clock, which may stand still. */
void supply_wait_for_return(struct pool *pool, uint64_t limit_ns) {
    uint64_t waited = 0;
    int r = pool->backend->ops->returned(pool->backend);
    while (r == -EAGAIN && waited < limit_ns) {
        pthread_mutex_unlock(&pool->lock);
        nanosleep(&(struct timespec){.tv_nsec = RETURN_POLL_NS}, NULL);
        pthread_mutex_lock(&pool->lock);
        waited += RETURN_POLL_NS;
        r = pool->backend->ops->returned(pool->backend);
    }
    pool->returning = r == -EAGAIN;
}

/* --- growing --- */

static uint64_t round_up(uint64_t bytes, uint64_t unit) {
    return (bytes + unit - 1) & ~(unit - 1);
}

static uint64_t least_bytes(const struct want *want) {
    return want->bytes > 0 ? want->bytes
                           : (uint64_t)size_class_units(want->size_class) << UNIT_SHIFT;
}

uint64_t supply_growth(const struct want *want) {
    return want->bytes > 0 ? round_up(want->bytes, PAGE_BYTES) : PAGE_BYTES;
}

/*
 * Blocks share a segment in a whole number of the size that is asked for. With the unit that the first one
 * leaves (arena.h) none takes more of it than a segment of its own would be rounded up to. So to the brim of
 * the device as many fit as natively, and what fills a segment gets one of its own. Pages never share one:
 * a block that lives on holds up nothing but its own page, as natively.
 */
static uint64_t good_growth(const struct pool *pool, const struct want *want) {
    uint64_t least = supply_growth(want);
    if (want->bytes == 0 || want->bytes == least) {
        return least;
    }
    uint64_t most = pool->backend->capacity / SEGMENT_STEP_SHARE;
    most = most > SEGMENT_STEP_MAX ? SEGMENT_STEP_MAX : most;
    uint64_t step = pool->large.reserved_bytes / 16;
    step = step > most ? most : step;
    uint64_t blocks = step > want->bytes ? (step + want->bytes - 1) / want->bytes : 1;
    return round_up(blocks * want->bytes + ARENA_UNIT, PAGE_BYTES);
}

/* One reserve() of the backend, without the lock. */
static int grow_by(struct pool *pool, struct arena *arena, uint64_t bytes) {
    uint64_t base = 0, life = pool_lives(pool);
    struct backend *backend = pool->backend;
    pool->growing += bytes;
    pthread_mutex_unlock(&pool->lock);
    int r = backend->ops->reserve(backend, bytes, &base);
    pthread_mutex_lock(&pool->lock);
    if (r == 0 && life != pool_lives(pool)) {
        backend->ops->lose(backend, bytes); /* the context ended meanwhile */
        r = -ENOMEM;
    } else if (r == 0) {
        r = base & (PAGE_BYTES - 1) ? -ERANGE : arena_add(arena, base, bytes);
        pool->unmanageable |= r == -ERANGE;
        if (r != 0) {
            give_back(pool, base, bytes);
            r = -ERANGE;
        }
    }
    pool->growing -= bytes;
    pool->grown++;
    if (r == 0) {
        books_add(&pool->books.driver_allocs, 1);
    }
    return r;
}

static bool is_refusal(int r) {
    return r == -ENOMEM || r == -EDQUOT;
}

/*
 * Host memory for what the growth and the request will need. It is asked for before the driver is, because
 * giving a segment back can wait for the device.
 */
static bool has_descriptors(struct pool *pool, const struct want *want) {
    struct arena *arena = want->bytes > 0 ? &pool->large : &pool->small;
    return arena_prepare(arena) && page_map_spare() &&
           (want->bytes > 0 || runs_prepare(&pool->runs));
}

int supply_grow(struct pool *pool, const struct want *want) {
    if (pool->unmanageable || !has_descriptors(pool, want)) {
        return -ERANGE;
    }
    struct arena *arena = want->bytes > 0 ? &pool->large : &pool->small;
    uint64_t good = good_growth(pool, want), least = supply_growth(want);
    int r = grow_by(pool, arena, good);
    if (is_refusal(r) && pool->returning) {
        supply_wait_for_return(pool, RETURN_WAIT_NS);
        r = grow_by(pool, arena, good);
    }
    if (is_refusal(r) && good > least) {
        r = grow_by(pool, arena, least);
    }
    return r;
}

/* Other threads may be bringing what we were refused, or were lent it for as long as the driver is asked. */
static void let_others_grow(struct pool *pool) {
    uint64_t all = pool->grown + pool->growing;
    while (pool->growing > 0 && pool->grown < all) {
        pthread_mutex_unlock(&pool->lock);
        sched_yield();
        pthread_mutex_lock(&pool->lock);
    }
}

/* --- the ladder --- */

/* Orders just enough pending memory for the request, then all that can be by then: a wait for the former
 * may have gone to another thread, which has freed something since. */
static bool supply_ordered(struct pool *pool, struct want *want) {
    uint64_t enough = reclaim_stamp(pool, want->bytes), all = epochs_orderable(&pool->epochs);
    if (enough > 0 && enough < all && order_now(pool, enough, want->any) &&
        supply_ready(pool, want)) {
        return true;
    }
    all = epochs_orderable(&pool->epochs);
    return all > 0 && !epochs_usable(&pool->epochs, all) && order_now(pool, all, want->any) &&
           supply_ready(pool, want);
}

/* Asks for what has finished: enough for the request, then everything. */
static bool supply_cheap(struct pool *pool, struct want *want) {
    if (supply_ready(pool, want)) {
        return true;
    }
    uint64_t enough = reclaim_stamp(pool, want->bytes), all = reclaim_stamp(pool, UINT64_MAX);
    if (enough == 0) {
        return false;
    }
    order_cheaply(pool, enough);
    if (supply_ready(pool, want)) {
        return true;
    }
    return all > enough && order_cheaply(pool, all) && supply_ready(pool, want);
}

/*
 * Whether all that is pending or idle, here and in other pools of the device, would be enough if it came back.
 * What the device is known to have besides counts too. If not, the driver is not asked again, and nothing is
 * waited for; nor is it if there is nothing that could come back (`none`).
 */
static bool may_be_had(struct pool *pool, const struct want *want, bool *none) {
    struct backend *backend = pool->backend;
    uint64_t others = 0, used = budget_used(pool);
    uint64_t room = backend->capacity > used ? backend->capacity - used : 0;
    if (backend->ops->room) {
        pthread_mutex_unlock(&pool->lock);
        room = backend->ops->room(backend, &others);
        pthread_mutex_lock(&pool->lock);
    }
    uint64_t idle = supply_idle(pool), free_bytes = budget_ready(pool) + pool->pending_bytes;
    *none = pool->pending_bytes + idle + others == 0;
    return least_bytes(want) <= room + free_bytes + others;
}

static bool gather(struct pool *pool, const struct want *want, bool wait) {
    struct backend *backend = pool->backend;
    if (!backend->ops->gather) {
        return false;
    }
    pthread_mutex_unlock(&pool->lock);
    bool any = backend->ops->gather(backend, supply_growth(want), wait);
    pthread_mutex_lock(&pool->lock);
    return any;
}

/* 0: served. Else why growing was refused, or -EAGAIN while more could be given back for it. */
static int grow_after(struct pool *pool, struct want *want, int *refusal) {
    *refusal = supply_grow(pool, want);
    return supply_ready(pool, want) ? 0 : is_refusal(*refusal) ? -EAGAIN : *refusal;
}

static int supply_hard(struct pool *pool, struct want *want, int refusal) {
    want->any = true;
    want->care = ARENA_ALL;
    let_others_grow(pool);
    if (supply_cheap(pool, want) || supply_ordered(pool, want)) {
        return 0;
    }
    if (idle_take_all_back(pool) && (supply_cheap(pool, want) || supply_ordered(pool, want))) {
        return 0;
    }
    bool none;
    if (!may_be_had(pool, want, &none)) {
        return refusal;
    }
    int r = grow_after(pool, want, &refusal); /* what was lent to others may be there again */
    if (r != -EAGAIN || none) {
        return r == -EAGAIN ? refusal : r;
    }
    order_finish_ordered(pool); /* what lies idle behind a barrier can go back then */
    for (int last = 0; last < 2; last++) {
        if (last && order_finish(pool, LATE_WAIT_NS) && supply_ready(pool, want)) {
            return 0;
        }
        uint64_t need = supply_growth(want);
        while (r == -EAGAIN && supply_release_idle(pool, need) == 0) {
            r = grow_after(pool, want, &refusal);
        }
        if (r == -EAGAIN && gather(pool, want, last)) {
            r = grow_after(pool, want, &refusal);
        }
        if (r != -EAGAIN) {
            return r;
        }
    }
    return supply_ready(pool, want) ? 0 : refusal;
}

/*
 * What the asking thread has parked goes to the pool. Of large blocks there are some dozens, which
 * is little beside the growth that comes next. Of small ones there may be thousands: they go if that
 * is enough to serve the request and a good part of the budget. True if there was anything.
 */
static bool give_up_own_cache(struct pool *pool, const struct want *want) {
    struct cache *cache = want->cache;
    uint64_t budget = atomic_load_explicit(&pool->budget, memory_order_relaxed);
    bool large = cache->large_bytes > 0, any = large;
    bool small =
        want->bytes == 0 && cache->bytes >= PAGE_BYTES && cache->bytes >= budget / PARKED_SHARE;
    cache_enter(cache);
    if (small) {
        cache_empty(cache);
    } else if (large) {
        cache_empty_drawers(cache);
    }
    cache_leave(cache);
    any |= reclaim_shelves(pool, want->bytes == 0 ? shelf_empty : range_shelf_empty);
    return any || small;
}

/* How far the pool may grow while anything of it lies idle. The request may raise the peak
 * of what is in use: neither ready nor pending. */
static uint64_t most_reserved(const struct pool *pool, uint64_t growth) {
    uint64_t in_use = budget_expected(pool) - budget_ready(pool) - pool->pending_bytes;
    uint64_t peak = books_get(&pool->books.allocated.peak), then = in_use + growth;
    uint64_t budget = atomic_load_explicit(&pool->budget, memory_order_relaxed);
    peak = peak > then ? peak : then;
    uint64_t most = peak + peak / 10 * (RESERVE_TENTHS - 10) + RESERVE_BYTES;
    return most > budget ? most : budget;
}

static bool would_exceed(const struct pool *pool, uint64_t growth, uint64_t most) {
    return budget_expected(pool) + growth > most;
}

static void release_down_to(struct pool *pool, uint64_t growth, uint64_t most) {
    if (would_exceed(pool, growth, most)) {
        supply_release_idle(pool, budget_expected(pool) + growth - most);
    }
}

/* Waits for the work in front of what lies idle, has not finished and was freed in epoch `last` at the
 * latest. False: none can be waited for. */
static bool wait_for_idle(struct pool *pool, uint64_t last) {
    uint64_t finished = pool->epochs.finished;
    uint64_t large = arena_idle_stamp(&pool->large, finished);
    uint64_t small = arena_idle_stamp(&pool->small, finished);
    uint64_t stamp = large < small ? large : small;
    return stamp <= last && order_finish_stamp(pool, stamp);
}

/*
 * Growing would exceed what the peak allows: what lies idle behind a barrier is waited for and goes back
 * too, and ranges that are spared otherwise are cut. What other threads free meanwhile is not waited for:
 * that need not end. True: that has served the request.
 */
static bool spare_growing(struct pool *pool, struct want *want, uint64_t growth) {
    uint64_t most = most_reserved(pool, growth), last = epochs_stamp(&pool->epochs);
    while (would_exceed(pool, growth, most) && wait_for_idle(pool, last)) {
        if (supply_ready(pool, want)) {
            return true;
        }
        release_down_to(pool, growth, most);
    }
    if (pool->returning) { /* what grows meanwhile would come on top of it */
        supply_wait_for_return(pool, RETURN_SOON_NS);
    }
    if (!would_exceed(pool, growth, most)) {
        return false;
    }
    want->care = ARENA_CUTTING;
    bool served = supply_ready(pool, want);
    want->care = ARENA_SPARING;
    return served;
}

/*
 * Growing past the budget while segments lie idle: they go back first, as long as that and the growth
 * do not take more than a share of the time. What they did not take of that is forgotten but for a
 * little: after a rest every growth would else cost twice as much for long. Past what the peak allows
 * they go back whatever it takes: natively all of them would have gone.
 */
static int grow_with_excess(struct pool *pool, struct want *want) {
    uint64_t growth = supply_growth(want);
    if (pool->backend->release_waits || !budget_is_short(pool, growth)) {
        return supply_grow(pool, want);
    }
    uint64_t budget = atomic_load_explicit(&pool->budget, memory_order_relaxed);
    uint64_t most = most_reserved(pool, growth), before = order_clock(pool);
    uint64_t share = (before - pool->started_ns) / EXCESS_SHARE;
    if (share > pool->excess_ns + EXCESS_MOST_NS) {
        pool->excess_ns = share - EXCESS_MOST_NS;
    }
    bool idle = pool->large.idle_bytes + pool->small.idle_bytes > 0;
    bool due = idle && pool->excess_ns <= share, exceeds = would_exceed(pool, growth, most);
    if (idle) { /* what is usable behind a barrier may have finished */
        epochs_poll(&pool->epochs, pool->backend);
    }
    release_down_to(pool, growth, due ? budget : most);
    if (exceeds && spare_growing(pool, want, growth)) {
        return 0;
    }
    int r = supply_grow(pool, want);
    if (pool->returning) {
        supply_wait_for_return(pool, 0); /* the driver has it as soon as it is asked */
    }
    if (due) {
        pool->excess_ns += order_clock(pool) - before;
    }
    return r;
}

int supply(struct pool *pool, struct want *want) {
    if (supply_cheap(pool, want)) {
        return 0;
    }
    if (idle_take_back(pool, supply_growth(want)) && supply_cheap(pool, want)) {
        return 0;
    }
    if (budget_is_short(pool, supply_growth(want)) &&
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
    if (r == 0 && !(want->block || want->range) && !supply_ready(pool, want)) {
        r = supply_grow(pool, want); /* another thread took what we brought */
        r = supply_ready(pool, want) ? 0 : r;
    }
    if (is_refusal(r)) {
        pool->refused_at = budget_used(pool) > 0 ? budget_used(pool) : 1;
        pool->budget_follows = true; /* at the end of this visit */
        r = supply_hard(pool, want, r);
        books_add(&pool->books.oom_retries, r == 0);
    }
    books_add(&pool->books.cache_misses, r == 0);
    return want->block || want->range ? r : r == 0 ? -ENOMEM : r;
}
