/*
 * The ranges of an arena: the sorted array of those that are free, and how one is cut in two and two become one.
 *
 * Under the pool's lock. For arena.c, which knows what the ranges are for.
 */
#ifndef GPUCACHE_POOL_RANGES_H
#define GPUCACHE_POOL_RANGES_H

#include "pool/arena.h"

/** The index of the first free range that is not smaller than (bytes, address). */
size_t ranges_position(const struct arena *arena, uint64_t bytes, uint64_t address);

/** Makes sure of descriptors, and of a place when they are free, for so many more segments and for what one request has cut off on
 * both sides. False without host memory. */
bool ranges_prepare(struct arena *arena, unsigned segments);

/** Into the array and out of it. There is room. */
void ranges_insert(struct arena *arena, struct range *range);
void ranges_remove_at(struct arena *arena, size_t i);
void ranges_remove(struct arena *arena, struct range *range);

/** What `part` covers, or covered, is `range`'s: in the page map and in the segments. */
void ranges_enter(const struct range *part, struct range *range);

/** Cuts a range that is in no list in two, linked; the shorter one has the new descriptor, so that cutting a little from much
 * changes little. Prepared before. */
void ranges_cut(struct arena *arena, struct range *range, uint64_t bytes, struct range **left,
                struct range **right);

/** Its descriptor can be used again. Until then no block starts there. */
void ranges_recycle(struct arena *arena, struct range *range);

/** Into the array, as one with free neighbours. */
void ranges_merge(struct arena *arena, struct range *range);

#endif
