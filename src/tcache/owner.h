/* The calling thread's cache of a pool, and a pool's common cache. No function needs a lock. */
#ifndef GPUCACHE_TCACHE_OWNER_H
#define GPUCACHE_TCACHE_OWNER_H

#include "base/likely.h"
#include "tcache/cache.h"

/** Initialises a zeroed cache as the common cache of a pool: any thread may enter it. */
void cache_start_common(struct cache *cache, struct pool *pool);

/**
 * Returns the calling thread's cache for a pool, created if necessary. Returns the pool's common
 * cache if the thread cannot have its own: it is ending, or host memory is short. Called with no
 * lock.
 */
struct cache *cache_of_thread(struct pool *pool);

/**
 * The cache that this thread used last, of any pool: the caller compares cache_last->pool. At first
 * a cache of no pool, for which biased_try_enter() fails.
 */
extern _Thread_local struct cache *cache_last __attribute__((tls_model("initial-exec")));

extern struct cache no_cache; /* the cache of no pool */

/**
 * Returns the calling thread's cache for a pool, as cache_of_thread(), without a call in the
 * usual case.
 */
static inline struct cache *cache_mine(struct pool *pool) {
    struct cache *cache = cache_last;
    return likely(cache->pool == pool) ? cache : cache_of_thread(pool);
}

/** Called in the child of a fork: the end of the child's only thread then returns no blocks. */
void owner_forked(void);

#endif
