/*
 * Quotas: how many bytes each thread's cache may hold, and all caches together.
 *
 * A cache starts inactive: quota 0, no blocks. The thread's first free or miss in the slow path
 * gives it a small quota. The quota grows with the thread's need, up to quota_limit(). The budget
 * grows with the sum of all quotas. Blocks are taken back from active caches only, so inactive
 * caches add no cost.
 *
 * A deactivated cache loses its blocks and its quota. That happens to caches of idle threads before
 * the pool grows past its goal and at decay, to all caches before out of memory and when idle
 * memory is given back, and to the cache of a thread that ends. The pool's lock protects
 * pool->active and all quotas; quotas are read without it. Callers hold it. Callers of
 * quota_flush_for() and quota_deactivate() have also entered or seized the cache. Invariant: a
 * cache is in pool->active if and only if its quota is not 0. Callers: slow_path.c,
 * out_of_memory.c, free.c, pool.c, decay.c and owner.c.
 */
#include "tcache/internal.h"

/*
 * Returns the quota in bytes of one of many caches. All caches with their transfer caches then
 * hold at most 1/QUOTA_MANY_SHARE of the peak of allocated bytes, plus BUDGET_FLOOR.
 */
static uint64_t part_of_peak(const struct pool *pool) {
    const struct source *source = &pool->source;
    uint64_t peak = counter_get(&source->counters.allocated.peak);
    uint64_t each = (peak / QUOTA_MANY_SHARE + BUDGET_FLOOR) / source->active_caches;
    return each / 2; /* the other half is for the transfer cache */
}

/*
 * Returns the largest quota in bytes that a cache may have now. The pool's lock is held.
 *
 *  active caches          limit of each
 *  0 or 1                 quota_most, or less while the program is small (budget_highest_goal())
 *  up to QUOTA_CACHES     quota_most
 *  more                   falls with the square of their number: twice as many hold half as much
 *                         together. At most part_of_peak(), at least QUOTA_FIRST
 */
static uint64_t quota_limit(const struct pool *pool) {
    const struct source *source = &pool->source;
    uint64_t most = pool->quota_most, highest = budget_highest_goal(source);
    uint64_t active = source->active_caches;
    if (active > QUOTA_CACHES) {
        uint64_t share = most * QUOTA_CACHES / active * QUOTA_CACHES / active;
        return max_u64(min_u64(share, part_of_peak(pool)), QUOTA_FIRST);
    }
    return active <= 1 ? min_u64(most, highest) : most;
}

/* Sets a cache's quota in bytes, and updates the sum of all quotas. The pool's lock is held. */
static void set_quota(struct cache *cache, uint64_t quota) {
    struct source *source = &cache->pool->source;
    ASSERT_HELD(&source->lock);
    source->quotas += quota - cache_quota(cache);
    atomic_store_explicit(&cache->quota, quota, memory_order_relaxed);
    source->budget_stale = true;
}

static void link_active(struct pool *pool, struct cache *cache) {
    cache->previous_active = NULL;
    cache->next_active = pool->active;
    if (pool->active)
        pool->active->previous_active = cache;
    pool->active = cache;
}

static void unlink_active(struct pool *pool, struct cache *cache) {
    struct cache *next = cache->next_active, *previous = cache->previous_active;
    *(previous ? &previous->next_active : &pool->active) = next;
    if (next)
        next->previous_active = previous;
}

bool quota_grow(struct cache *cache, uint64_t bytes) {
    struct pool *pool = cache->pool;
    uint64_t before = cache_quota(cache);
    if (before == 0) {
        pool->source.active_caches++;
        cache->seen_ns = cache->seen_ticks = (struct unchanged){0};
        link_active(pool, cache);
        transfer_set_owner_id(&cache->transfer, cache->owner_id);
    }
    uint64_t most = quota_limit(pool), quota = max_u64(before, QUOTA_FIRST);
    if (is_ablated(ABLATION_QUOTAS))
        most = quota = QUOTA_LEAST;
    while (quota < bytes && quota < most)
        quota *= 2;
    quota = min_u64(quota, most);
    if (quota != before)
        set_quota(cache, quota);
    return cache_quota(cache) >= bytes;
}

void quota_flush_for(struct cache *cache, unsigned keep, uint64_t bytes) {
    uint64_t quota = cache_quota(cache), most = quota - quota / UNUSED_SHARE;
    most = most > bytes ? most - bytes : 0;
    cache_flush_idle(cache, keep, most);
    bool full = cache->bytes + bytes > quota;
    if (full &&
        !(quota_is_little(cache, QUOTA_KEEPING_SHARE) && quota_grow(cache, cache->bytes + bytes))) {
        cache->overflowed = true;
        cache_flush_half(cache, keep, most);
    }
}

void quota_deactivate(struct cache *cache) {
    struct pool *pool = cache->pool;
    if (!quota_is_inactive(cache)) {
        cache_flush(cache, 0);
        /* Quota and owner ID become 0 before transfer_empty(): other threads may ship magazines
         * during this function. Owner ID 0 refuses magazines for the owner. The common cache always
         * has owner ID 0, so only quota 0 refuses magazines there. */
        set_quota(cache, 0);
        transfer_set_owner_id(&cache->transfer, 0);
        transfer_empty(&cache->transfer);
        unlink_active(pool, cache);
        pool->source.active_caches--;
    }
}

/* --- idle threads --- */

/*
 * Returns whether the value `number` has been the same in all calls for `least` units of time (ns
 * or ticks). The first call starts the time.
 */
static bool is_unchanged(struct unchanged *unchanged, uint64_t number, uint64_t now,
                         uint64_t least) {
    if (number != unchanged->number || unchanged->since == 0)
        *unchanged = (struct unchanged){number, now};
    return now - unchanged->since >= least;
}

/* Returns a number that changes with every allocation or free of the cache's thread. */
static uint64_t operations(const struct cache *cache) {
    const struct watermark *mark = &cache->watermarks[WATERMARK_BLOCKS];
    return counter_get(&mark->taken) + counter_get(&mark->given);
}

bool quota_deactivate_list(struct pool *pool, struct biased *first) {
    ASSERT_HELD(&pool->source.lock);
    bool any = false;
    cache_seize_list(pool, first);
    for (struct biased *lock = first; lock; lock = lock->next_seized) {
        any |= quota_cached(cache_of(lock)) > 0;
        quota_deactivate(cache_of(lock));
    }
    biased_return(first);
    return any;
}

bool quota_deactivate_idle(struct pool *pool, uint64_t growth) {
    ASSERT_HELD(&pool->source.lock);
    struct source *source = &pool->source;
    if (is_ablated(ABLATION_IDLE_THREADS) || source_reserved(source) + growth <= source->goal)
        return false;
    struct biased *idle = NULL;
    uint64_t now = backend_clock(source->backend);
    for (struct cache *cache = pool->active; cache; cache = cache->next_active) {
        bool idle_now = is_unchanged(&cache->seen_ns, operations(cache), now, IDLE_NS);
        if (idle_now && !cache->in_slow_path)
            idle = cache_listed(cache, idle);
    }
    return quota_deactivate_list(pool, idle);
}

struct biased *quota_list_idle_threads(struct pool *pool) {
    struct biased *idle = NULL;
    for (struct cache *cache = pool->active; cache; cache = cache->next_active) {
        bool idle_now = is_unchanged(&cache->seen_ticks, operations(cache), pool->source.decay.tick,
                                     DECAY_TICKS);
        if (idle_now && !cache->in_slow_path && !transfer_empty(&cache->transfer))
            idle = cache_listed(cache, idle);
    }
    return idle;
}

bool quota_deactivate_all(struct pool *pool) {
    struct biased *all = NULL;
    for (struct cache *cache = pool->active; cache; cache = cache->next_active)
        all = cache_listed(cache, all);
    return quota_deactivate_list(pool, all);
}

bool quota_empty_transfers(struct pool *pool) {
    ASSERT_HELD(&pool->source.lock);
    bool any = false;
    for (struct cache *cache = pool->active; cache; cache = cache->next_active)
        any |= counter_get(&cache->transfer.bytes) > 0 && transfer_empty(&cache->transfer);
    return any;
}
