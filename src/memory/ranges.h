/*
 * The ranges of an arena: the sorted array of those that are free, and how one is cut in two and two become one.
 *
 * Under the pool's lock. For arena.c, which knows what the ranges are for.
 */
#ifndef GPUCACHE_MEMORY_RANGES_H
#define GPUCACHE_MEMORY_RANGES_H

#include "memory/arena.h"

/** The index of the first free range, the lowest address first among equals, of at least so many bytes; free_count: there is none. */
size_t ranges_of_size(const struct arena *arena, uint64_t bytes);

/** The index of a free range. */
size_t ranges_index(const struct arena *arena, const struct range *range);

/** Makes sure of descriptors, and of a place when they are free, for so many more segments and for what one request has cut off on
 * both sides. False without host memory. */
bool ranges_prepare(struct arena *arena, unsigned segments);

/** `bytes` of the free range at an index, behind `skip` of it, are free no longer; what is left of it is. Prepared before, if
 * anything is. */
struct range *ranges_cut_out(struct arena *arena, size_t i, uint64_t skip, uint64_t bytes);

/** Becomes free, as one with free neighbours. There is room. */
void ranges_merge(struct arena *arena, struct range *range);

/** What `part` covers, or covered, is `range`'s: in the page map and in the segments. */
void ranges_enter(const struct range *part, struct range *range);

/** Its descriptor can be used again. Until then no block starts there. */
void ranges_recycle(struct arena *arena, struct range *range);

#endif
