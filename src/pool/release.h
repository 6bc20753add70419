/*
 * Release: frames and extents (layout.h) go back to the driver.
 *
 * By whoever holds the mapper's lock, and the pool's, which is let go of around the driver's calls. What is mapped
 * still after them, as after a fault, is not given back: nobody uses it again, and it stays charged.
 */
#ifndef GPUCACHE_POOL_RELEASE_H
#define GPUCACHE_POOL_RELEASE_H

#include "pool/state.h"

/** Up to a batch of idle frames, or an extent where there is no frame; no more than one beyond so many bytes. Bytes that
 * have left the pool; 0: there is nothing, or the driver keeps it. */
uint64_t release_some(struct pool *pool, enum idle which, uint64_t bytes);

/** The window's extent, which is in no block, or could not be mapped. The same; what the driver will not unmap stays
 * what it was. */
uint64_t release_extent(struct pool *pool, struct window *window);

/** At the end of the context, which takes nothing of this along: everything. The pool's lock is held throughout. */
void release_all(struct pool *pool);

#endif
