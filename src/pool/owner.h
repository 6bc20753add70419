/* Whose caches they are: that of the calling thread, and the common one of a pool. */
#ifndef GPUCACHE_POOL_OWNER_H
#define GPUCACHE_POOL_OWNER_H

#include "pool/cache.h"

/** Makes a zeroed cache one that any thread may use. */
void cache_start_common(struct cache *cache, struct pool *pool);

/** The calling thread's cache for a pool, made if need be; the pool's common one for a thread that
 * cannot have its own. */
struct cache *cache_of_thread(struct pool *pool);

/** The cache this thread used last, or one of no pool that cannot be entered; checked by the caller
 * against the pool it wants. */
extern _Thread_local struct cache *cache_last __attribute__((tls_model("initial-exec")));

/** None. */
void cache_forget_last(void);

static inline struct cache *cache_mine(struct pool *pool) {
    struct cache *cache = cache_last;
    return __builtin_expect(cache->pool == pool, 1) ? cache : cache_of_thread(pool);
}

#endif
