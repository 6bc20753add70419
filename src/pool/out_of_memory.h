/* The part of the slow path after the driver or the limit has refused (out_of_memory.c). */
#ifndef GPUCACHE_POOL_OUT_OF_MEMORY_H
#define GPUCACHE_POOL_OUT_OF_MEMORY_H

#include "source/source.h"
#include "tcache/pool_state.h"

/**
 * Takes steps 14 to 21 of the ladder (slow_path.c), up to OTHERS_TRIES times. `refusal` is what the
 * growth returned. Returns 0 with request->block, or the refusal. The pool's lock is held on entry
 * and on return; it is released in between.
 */
int retry_refused(struct pool *pool, struct alloc_request *request, int refusal);

#endif
