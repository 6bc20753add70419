/*
 * Lists the segments and live blocks of an arena, for memory snapshots.
 */
#ifndef GPUCACHE_DEBUG_MEMORY_H
#define GPUCACHE_DEBUG_MEMORY_H

#include "stats/memory_list.h"

struct arena;

/**
 * Adds the segments and live blocks of an arena to a list. The caller holds the pool's lock, so
 * segments and ranges agree. Thread caches hand blocks out and take them back without that lock: a
 * block may be added that was freed during the call.
 */
void memory_of_arena(const struct arena *arena, struct memory_list *to);

#endif
