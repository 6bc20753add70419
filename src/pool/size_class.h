/*
 * Size classes of small blocks: every 512 bytes up to 16 KiB, then sixteen classes per doubling up
 * to 1 MiB. A block is at most one sixteenth larger than what was asked for, and every power of two
 * is a class of its own.
 */
#ifndef GPUCACHE_POOL_SIZE_CLASS_H
#define GPUCACHE_POOL_SIZE_CLASS_H

#include <stdint.h>

#define SIZE_CLASSES 128

/** The class of a request of 1 to 1 MiB bytes. */
static inline unsigned size_class_of(uint64_t bytes) {
    unsigned above = (unsigned)((bytes - 1) >> 9); /* units, less one */
    if (above < 32) {
        return above;
    }
    unsigned shift = 27u - (unsigned)__builtin_clz(above); /* log2 - 4 */
    return shift * 16 + (above >> shift);
}

/** How many 512-byte units a block of that class has. */
static inline unsigned size_class_units(unsigned size_class) {
    if (size_class < 32) {
        return size_class + 1;
    }
    unsigned shift = size_class / 16 - 1;
    return (size_class % 16 + 17) << shift;
}

#endif
