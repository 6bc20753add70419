/*
 * Caches that are asleep: they hold nothing, and their shelves neither. A cache sleeps until its thread
 * parks something in it, and says so by a visit to the pool, because nothing fits in; nor does it take
 * anything along from a shelf. So what has to be taken back is looked for only where something may be,
 * however many threads there are.
 *
 *      awake    newest -> [ thread 9 ] [ thread 2 ] ... [ thread 5 ] [ common ]
 *                                                        ^ looked at first
 *
 * Before the pool grows past what its program needs, threads that have not been seen at work for a while
 * give up what they have parked.
 */
#include "pool/internal.h"

/* A thread that has done nothing for so long is idle. One that has lost its CPU for a while is not. */
#define IDLE_NS ((uint64_t)10 * 1000 * 1000)
#define LOOK_NS ((uint64_t)100 * 1000) /* none has been found: the next look comes so much later */
#define IDLE_LOOKS 32                  /* caches that are looked at before one growth */
#define WORKING_BLOCKS 1024            /* a thread that has taken so many is at work */

static void link_awake(struct pool *pool, struct cache *cache) {
    cache->previous_awake = NULL;
    cache->next_awake = pool->awake;
    *(pool->awake ? &pool->awake->previous_awake : &pool->awake_last) = cache;
    pool->awake = cache;
}

static void unlink_awake(struct pool *pool, struct cache *cache) {
    struct cache *next = cache->next_awake, *previous = cache->previous_awake;
    *(previous ? &previous->next_awake : &pool->awake) = next;
    *(next ? &next->previous_awake : &pool->awake_last) = previous;
}

/* So many as many threads need for their benefit may be full; more of them share that. */
static void count_full(struct cache *cache, bool full) {
    struct pool *pool = cache->pool;
    if (full != cache->full) {
        cache->full = full;
        pool->full += full ? 1 : -1u;
        uint64_t most = pool->cache_bytes_max;
        uint64_t share = pool->full > CACHES_FULL ? most * CACHES_FULL / pool->full : most;
        share = share < most / CACHE_FULL_SHARE ? most / CACHE_FULL_SHARE : share;
        atomic_store_explicit(&pool->cache_room, share, memory_order_relaxed);
    }
}

static uint64_t taken_by(const struct cache *cache) {
    return books_get(&cache->tides[TIDE_COUNT].taken);
}

static void count_working(struct cache *cache, bool works) {
    if (works != cache->works) {
        cache->works = works;
        cache->pool->working += works ? 1 : -1u;
        cache->pool->budget_follows = true;
    }
}

void idle_start(struct cache *cache) {
    cache->bytes_max = cache->large_bytes_max = 0;
    atomic_store_explicit(&cache->asleep, true, memory_order_relaxed);
}

void idle_wake(struct cache *cache) {
    atomic_store_explicit(&cache->asleep, false, memory_order_relaxed);
    cache_open_room(cache);
    cache->seen = (struct seen){0};
    cache->taken_asleep = taken_by(cache);
    link_awake(cache->pool, cache);
    shelf_set_number(&cache->shelf, cache->number);
}

/* The common one stays awake: what others put on its shelf, nobody says. */
void idle_sleep(struct cache *cache) {
    struct pool *pool = cache->pool;
    if (!idle_sleeps(cache)) {
        cache_empty(cache);
        shelf_set_number(&cache->shelf, 0);
        shelf_empty(pool, &cache->shelf);
        range_shelf_empty(pool, &cache->shelf);
        pool->parked -= cache->parked;
        pool->budget_follows = true;
        cache->parked = 0;
        count_full(cache, false);
        count_working(cache, false);
        if (cache != pool->common) {
            unlink_awake(pool, cache);
            idle_start(cache);
        }
    }
}

void idle_count(struct cache *cache, uint64_t parked) {
    struct pool *pool = cache->pool;
    if (cache != pool->common && !idle_sleeps(cache) &&
        taken_by(cache) - cache->taken_asleep >= WORKING_BLOCKS) {
        count_working(cache, true);
    }
    if (parked > cache->parked && !idle_sleeps(cache)) {
        pool->parked += parked - cache->parked;
        pool->budget_follows = true;
        cache->parked = parked;
        count_full(cache, parked > pool->cache_bytes_max / CACHE_FULL_SHARE);
    }
}

/* Whether a number has been the same for so long, as far as is known. */
static bool is_still(struct still *still, uint64_t number, uint64_t now) {
    if (number != still->number || still->since == 0) {
        *still = (struct still){number, now};
    }
    return now - still->since >= IDLE_NS;
}

/* What has been put on a shelf for a thread that asks for nothing is of no use there. */
static bool look_at(struct cache *cache, uint64_t now, bool *any) {
    const struct tide *tide = &cache->tides[TIDE_COUNT];
    uint64_t taken = books_get(&tide->taken), worked = taken + books_get(&tide->crest);
    if (is_still(&cache->seen.taken, taken, now)) {
        *any |= shelf_empty(cache->pool, &cache->shelf);
        *any |= range_shelf_empty(cache->pool, &cache->shelf);
    }
    return is_still(&cache->seen.worked, worked, now);
}

bool idle_take_back(struct pool *pool, uint64_t growth) {
    if (budget_used(pool) + growth <= pool->goal) {
        return false;
    }
    struct cache *idle = NULL, *before, *newest = pool->awake;
    uint64_t now = order_clock(pool);
    if (now < pool->look_at_ns) {
        return false;
    }
    bool any = false;
    unsigned looks = 0;
    for (struct cache *cache = pool->awake_last; cache && looks < IDLE_LOOKS; cache = before) {
        before = cache == newest ? NULL : cache->previous_awake;
        looks++;
        if (cache->owner && !cache->visiting && look_at(cache, now, &any)) {
            cache->next_seized = idle;
            idle = cache;
        } else {
            unlink_awake(pool, cache);
            link_awake(pool, cache);
        }
    }
    cache_seize_list(pool, idle);
    for (struct cache *cache = idle; cache; cache = cache->next_seized) {
        any |= idle_parked(cache) > 0;
        idle_sleep(cache);
    }
    cache_return_list(idle);
    pool->look_at_ns = any ? 0 : now + LOOK_NS;
    return any;
}

bool idle_take_all_back(struct pool *pool) {
    struct cache *all = NULL;
    bool any = false;
    for (struct cache *cache = pool->awake; cache; cache = cache->next_awake) {
        cache->next_seized = all;
        all = cache;
    }
    cache_seize_list(pool, all);
    for (struct cache *cache = all; cache; cache = cache->next_seized) {
        any |= idle_parked(cache) > 0;
        idle_sleep(cache);
    }
    cache_return_list(all);
    return any;
}
