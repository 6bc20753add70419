/*
 * Sorts arrays without malloc, which qsort() calls for a long array. Elements begin with a
 * uint64_t, their key, and have at most SORT_MOST bytes. Equal keys get any order. Takes no lock.
 */
#ifndef GPUCACHE_BASE_SORT_H
#define GPUCACHE_BASE_SORT_H

#include <stddef.h>

#define SORT_MOST 64

/** Sorts `count` elements of `bytes` bytes, lowest key first. */
void sort_by_key(void *base, size_t count, size_t bytes);

/**
 * Moves the element at `at` to its place in a heap of `count` elements with the highest key first.
 * All elements behind `at` are in their places.
 */
void sort_sift(void *base, size_t count, size_t bytes, size_t at);

#endif
