/*
 * Size classes: one for every 512 bytes up to 16 KiB, then sixteen classes per doubling.
 *
 * Rounding up to a class adds less than one unit (512 bytes) or at most one sixteenth of the
 * request. Every power of two from 512 bytes on is a class. Small blocks have the size of their
 * class. Large blocks are not rounded up; for them a class only selects the bin of a cache
 * (block.h). Pure functions, without state or lock. tests/unit/test_size_class.c checks the bounds.
 */
#ifndef GPUCACHE_HEAP_SIZE_CLASS_H
#define GPUCACHE_HEAP_SIZE_CLASS_H

#include <stdint.h>

#define SMALL_CLASSES 128       /* classes of small blocks, up to 1 MiB */
#define CLASSES_PER_DOUBLING 16 /* from 8 KiB on; fewer below, one for every 512 bytes */

/** Returns the smallest class that holds `bytes`, which must not be 0. */
static inline unsigned size_class_of(uint64_t bytes) {
    uint64_t above = (bytes - 1) >> 9; /* in units, minus one */
    /* log2 of the units, minus 4, but at least 0 */
    unsigned shift = 59u - (unsigned)__builtin_clzll(above | 16);
    return shift * 16 + (unsigned)(above >> shift);
}

/** Returns the size of a class in units of 512 bytes. */
static inline unsigned size_class_units(unsigned size_class) {
    if (size_class < 32)
        return size_class + 1;
    unsigned shift = size_class / 16 - 1;
    return (size_class % 16 + 17) << shift;
}

static inline uint64_t size_class_bytes(unsigned size_class) {
    return (uint64_t)size_class_units(size_class) << 9;
}

#endif
