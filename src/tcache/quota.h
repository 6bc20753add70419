/*
 * Quotas: how many bytes caches may hold, and when idle caches lose their blocks (quota.c). The
 * pool's lock is held, except in quota_is_inactive() and quota_is_little().
 */
#ifndef GPUCACHE_TCACHE_QUOTA_H
#define GPUCACHE_TCACHE_QUOTA_H

#include "tcache/pool_state.h"

/**
 * Raises a cache's quota to `bytes`, within quota_limit(), and activates the cache. Lowers a quota
 * that exceeds quota_limit() now. Returns whether the quota is at least `bytes`. The caller need
 * not be inside the cache.
 */
bool quota_grow(struct cache *cache, uint64_t bytes);

/**
 * Makes the cache fit `bytes` more of bin `keep`: moves blocks of idle bins to the pool until one
 * part in UNUSED_SHARE of the quota is unused, then raises a small quota, or else moves halves of
 * the largest bins. The cache is entered by its owner, or seized.
 */
void quota_flush_for(struct cache *cache, unsigned keep, uint64_t bytes);

/**
 * Moves all blocks of a cache and its transfer cache to the pool and sets the quota to 0. The
 * cache is entered by its owner, or seized.
 */
void quota_deactivate(struct cache *cache);

/*
 * Move cached blocks to the pool. All return whether there were any.
 *
 *  deactivate_idle  deactivates caches of idle threads, if `growth` bytes would exceed the goal
 *  deactivate_all   deactivates all caches
 *  empty_transfers  empties the transfer caches; the caches keep their blocks
 */
bool quota_deactivate_idle(struct pool *pool, uint64_t growth);
bool quota_deactivate_all(struct pool *pool);
bool quota_empty_transfers(struct pool *pool);

/**
 * Returns a list of the caches whose threads did nothing for DECAY_TICKS ticks; NULL: none. Leaves
 * these caches their blocks. Skips a cache whose transfer cache has blocks, and empties that
 * transfer cache: other threads freed these blocks, perhaps later.
 */
struct biased *quota_list_idle_threads(struct pool *pool);

/** Seizes the caches of a list and deactivates them. Returns whether they held any block. */
bool quota_deactivate_list(struct pool *pool, struct biased *first);

/* Returns whether a cache has quota 0, and therefore no blocks. */
static inline bool quota_is_inactive(const struct cache *cache) {
    return cache_quota(cache) == 0;
}

/*
 * Returns whether a cache's quota is below quota_most / share. Such a quota grows without a miss of
 * the thread.
 */
static inline bool quota_is_little(const struct cache *cache, unsigned share) {
    return cache_quota(cache) < cache->pool->quota_most / share;
}

/* Returns the bytes in a cache and its transfer cache. */
static inline uint64_t quota_cached(const struct cache *cache) {
    return cache->bytes + counter_get(&cache->transfer.bytes);
}

#endif
