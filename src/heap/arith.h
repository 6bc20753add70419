/* Arithmetic on numbers of bytes: min, max, clamp, and rounding up. */
#ifndef GPUCACHE_HEAP_ARITH_H
#define GPUCACHE_HEAP_ARITH_H

#include <stdint.h>

static inline uint64_t min_u64(uint64_t a, uint64_t b) {
    return a < b ? a : b;
}

static inline uint64_t max_u64(uint64_t a, uint64_t b) {
    return a > b ? a : b;
}

static inline uint64_t clamp_u64(uint64_t least, uint64_t value, uint64_t most) {
    return min_u64(max_u64(least, value), most);
}

/** Returns `bytes` rounded up to a multiple of `unit`, which must be a power of two. */
static inline uint64_t round_up(uint64_t bytes, uint64_t unit) {
    return (bytes + unit - 1) & ~(unit - 1);
}

#endif
