/*
 * The headers that the files of src/pool share, and the functions of its slow path. No other folder
 * includes this header. slow_path.c has the ladder.
 */
#ifndef GPUCACHE_POOL_INTERNAL_H
#define GPUCACHE_POOL_INTERNAL_H

#include "pool/pool.h"
#include "source/source.h"
#include "tcache/internal.h"

/**
 * Serves a request that the calling thread's cache could not serve: steps 3 to 22 of the ladder.
 * Sets request->block and *address and returns 0. Else returns as pool_alloc() does. Called with no
 * lock, outside the cache.
 */
int slow_path_alloc(struct pool *pool, struct cache *cache, struct alloc_request *request,
                    uint64_t requested, uint64_t *address);

/**
 * Reclaims deferred frees whose streams have reached them: `all`, or a few. Does nothing if this
 * pool has none, else also reclaims those of other pools. Returns whether any was reclaimed. Called
 * with no lock.
 */
bool reclaim_deferred(struct pool *pool, bool all);

/** Returns `reserved` less the bytes of live and deferred blocks, plus unmapping_bytes. No lock. */
uint64_t unused_bytes(const struct pool *pool, uint64_t reserved);

/**
 * Takes steps 14 to 21 of the ladder (slow_path.c), up to OTHERS_TRIES times. `refusal` is what the
 * growth returned. Returns 0 with request->block, the last refusal, or another error of the growth.
 * The pool's lock is held on entry and on return; it is released in between.
 */
int retry_refused(struct pool *pool, struct alloc_request *request, int refusal);

#endif
