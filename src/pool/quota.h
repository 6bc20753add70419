/* How much caches may hold, and what becomes of what nobody needs. Under the lock. */
#ifndef GPUCACHE_POOL_QUOTA_H
#define GPUCACHE_POOL_QUOTA_H

#include "pool/state.h"

/** The most that one cache may hold. */
uint64_t quota_of_capacity(uint64_t capacity);

/** Raises a cache's quota to so many bytes, as far as it may be. False: it may not hold so much. */
bool quota_grow(struct cache *cache, uint64_t bytes);

/** Doubles that of its transfer cache. */
void quota_grow_transfer(struct cache *cache);

/** Makes room for so many bytes of a bin, from what other bins have. Seized, or by its owner. */
void quota_flush_for(struct cache *cache, unsigned keep, uint64_t bytes);

/** Its thread asks for what it has not: it gets a first quota, or more if it had no room for that. */
void quota_follow_miss(struct cache *cache);

/** All that it holds goes to the pool, and its quota. Seized, or without a thread. */
void quota_deactivate(struct cache *cache);

/** Takes back what idle threads hold, if it is due; what all hold; what waits for threads. True if there was any. */
bool quota_take_back(struct pool *pool, uint64_t growth);
bool quota_take_all_back(struct pool *pool);
bool quota_empty_transfers(struct pool *pool);

/** A list of the caches of threads that have done nothing for the decay time. What others have freed for them need not be as old: it
 * goes to the pool first, and they are found the next time. */
struct biased *quota_find_idle(struct pool *pool);

/** Those give up everything, and their quotas. True if there was anything. */
bool quota_deactivate_list(struct pool *pool, struct biased *first);

/* No block is cached that is larger than one part in this of what a cache may hold. */
static inline uint64_t quota_largest_block(const struct pool *pool) {
    uint64_t most = pool->quota_most / CACHE_BLOCK_SHARE;
    return backend_maps(pool->source.backend) ? min_u64(most, VMM_CACHED_BLOCK) : most;
}

static inline bool quota_is_inactive(const struct cache *cache) {
    return cache_quota(cache) == 0;
}

/* Less than one part in this of what one cache may have: it grows without the thread asking for more. */
static inline bool quota_is_little(const struct cache *cache, unsigned share) {
    return cache_quota(cache) < cache->pool->quota_most / share;
}

static inline uint64_t quota_cached(const struct cache *cache) {
    return cache->bytes + counter_get(&cache->transfer.bytes);
}

/* Whether anything may go back later. Also where all is live, as long as threads may free it into their caches: no
 * visit tells of that. */
static inline bool decay_is_any(const struct pool *pool) {
    return !pool->source.backend->release_waits && epochs_broken(&pool->source.epochs) == 0 &&
           pool->source.large.idle_bytes + pool->source.small.idle_bytes +
                   pool->source.freeing_bytes + pool->source.pending_bytes + pool->source.quotas +
                   atomic_load_explicit(&pool->deferred_bytes, memory_order_relaxed) >
               0;
}

/* After every visit: whoever ticks is told if something is idle that nobody watches. */
static inline void decay_watch(struct pool *pool) {
    if (pool->source.config.decays && !pool->source.decay.watched && decay_is_any(pool)) {
        pool->source.decay.watched = true;
        pool->source.backend->ops->watch_idle(pool->source.backend);
    }
}

#endif
