/*
 * Keeps the free ranges of an arena in an array sorted by (size, address). Cuts and merges ranges.
 *
 * An arena has tens to thousands of free ranges. A binary search and a short memmove are faster
 * than a tree, and the last entry is the largest range. arena.c selects a range for a request;
 * idle.c searches the array for idle segments.
 *
 * The pool's lock protects everything. Invariant: the array has capacity for every range of the
 * arena, so that making memory free never needs host memory.
 */
#ifndef GPUCACHE_HEAP_RANGES_H
#define GPUCACHE_HEAP_RANGES_H

#include "heap/arena.h"

/**
 * Returns the index of the smallest free range of at least `bytes`, the lowest address among
 * equals; free_count if there is none.
 */
size_t ranges_of_size(const struct arena *arena, uint64_t bytes);

/**
 * Returns the index of a range in the array, or the index at which the range has to be inserted if
 * the array does not have it. Reads the addresses only of entries with the same size.
 */
size_t ranges_index(const struct arena *arena, const struct range *range);

/**
 * Takes `bytes` out of the free range at index i, after its first `skip` bytes. The parts before
 * and behind stay free. Requires arena_prepare() if a part stays free. Returns the range taken;
 * the caller sets its state.
 */
struct range *ranges_cut_out(struct arena *arena, size_t i, uint64_t skip, uint64_t bytes);

/** Makes a range free, merged with free neighbours. Needs no host memory. */
void ranges_merge(struct arena *arena, struct range *range);

/**
 * Makes the page map and the segments' `first` lead from the addresses of `part` to `range`. Both
 * are the same, or about to be joined.
 */
void ranges_enter(const struct range *part, struct range *range);

/** Recycles a range's descriptor, after marking it BLOCK_INSIDE for readers without the lock. */
void ranges_recycle(struct arena *arena, struct range *range);

#endif
