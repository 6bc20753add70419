/* Adds blocks to a thread's cache after a miss, so that the next requests stay out of the slow path. */
#ifndef GPUCACHE_POOL_REFILL_H
#define GPUCACHE_POOL_REFILL_H

#include "source/alloc_request.h"
#include "tcache/pool_state.h"

/**
 * Adds free blocks (stamp 0) to the bin of the request `like`, which was just served. `rotating`:
 * the thread's own blocks were still pending. The pool's lock is held, and released in between: the
 * context may end.
 */
void refill(struct pool *pool, struct cache *cache, const struct alloc_request *like,
            bool rotating);

#endif
