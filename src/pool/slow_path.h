/* The slow path: where the memory for a request comes from if no cache serves it. */
#ifndef GPUCACHE_POOL_SLOW_PATH_H
#define GPUCACHE_POOL_SLOW_PATH_H

#include "source/source.h"
#include "tcache/pool_state.h"

/**
 * Finds memory for a request: sets request->block and returns 0. Else returns -ENOMEM or -EDQUOT
 * if the driver or the limit refused, -ERANGE if the pool cannot manage more memory, or the
 * driver's positive code.
 *
 * `cache` is the calling thread's; it is flushed before the pool grows past its budget. The
 * pool's lock is held on entry and on return, and released in between; the cache is not entered.
 */
int slow_path_alloc(struct pool *pool, struct cache *cache, struct alloc_request *request);

#endif
