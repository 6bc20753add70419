/* Numbers of bytes: the lesser and the greater of two, and whole units. */
#ifndef GPUCACHE_MEMORY_ARITH_H
#define GPUCACHE_MEMORY_ARITH_H

#include <stdint.h>

static inline uint64_t least_of(uint64_t a, uint64_t b) {
    return a < b ? a : b;
}

static inline uint64_t most_of(uint64_t a, uint64_t b) {
    return a > b ? a : b;
}

static inline uint64_t bounded(uint64_t least, uint64_t number, uint64_t most) {
    return least_of(most_of(least, number), most);
}

/** `unit` is a power of two. */
static inline uint64_t round_up(uint64_t bytes, uint64_t unit) {
    return (bytes + unit - 1) & ~(unit - 1);
}

#endif
