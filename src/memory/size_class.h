/*
 * Size classes: every 512 bytes up to 16 KiB, then sixteen classes per doubling. A class is at most
 * one sixteenth larger than what was asked for, and every power of two is a class of its own.
 *
 * Small blocks are as large as their class. Large ones are not rounded to it; for them it only
 * says which bin of a cache they lie in.
 */
#ifndef GPUCACHE_MEMORY_SIZE_CLASS_H
#define GPUCACHE_MEMORY_SIZE_CLASS_H

#include <stdint.h>

#define SMALL_CLASSES 128 /* up to 1 MiB: small blocks */

/** The smallest class that holds `bytes` > 0. */
static inline unsigned size_class_of(uint64_t bytes) {
    uint64_t above = (bytes - 1) >> 9;                            /* units, less one */
    unsigned shift = 59u - (unsigned)__builtin_clzll(above | 16); /* log2 - 4, at least 0 */
    return shift * 16 + (unsigned)(above >> shift);
}

/** The largest class that is not larger than `bytes` >= 512. */
static inline unsigned size_class_below(uint64_t bytes) {
    return size_class_of(bytes + 1) - 1;
}

/** How many 512-byte units a class has. */
static inline unsigned size_class_units(unsigned size_class) {
    if (size_class < 32) {
        return size_class + 1;
    }
    unsigned shift = size_class / 16 - 1;
    return (size_class % 16 + 17) << shift;
}

static inline uint64_t size_class_bytes(unsigned size_class) {
    return (uint64_t)size_class_units(size_class) << 9;
}

#endif
