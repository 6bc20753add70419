/* Where memory for a request comes from. */
#ifndef GPUCACHE_POOL_SLOW_PATH_H
#define GPUCACHE_POOL_SLOW_PATH_H

#include "pool/state.h"
#include "source/source.h"

/** For the thread of that cache, which is emptied before the pool grows past its budget. Takes and returns with the pool's lock held;
 * lets go of it in between. 0, and want->block; or why there is none. */
int slow_path_alloc(struct pool *pool, struct cache *cache, struct alloc_request *request);

#endif
