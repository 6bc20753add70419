/*
 * Mappings: what the driver has mapped in the slots of a window (layout.h).
 *
 * Whoever changes them holds the mapper's lock. For a window that is being mapped the pool's is let go of before; at
 * the end of a context it is held.
 */
#ifndef GPUCACHE_POOL_MAPPING_H
#define GPUCACHE_POOL_MAPPING_H

#include "pool/state.h"

/** What was in stale slots goes. Where the driver keeps it they stay stale, the window cannot be used, and the answer
 * is its. */
int mappings_drop_stale(struct pool *pool, const struct window *window);

/** Everything goes. False: the driver has kept some of it. */
bool mappings_drop_all(struct pool *pool, const struct window *window);

/** The window's extent, and the frames of its slots, are mapped where they are not. */
int mappings_make(struct pool *pool, const struct window *window);

#endif
