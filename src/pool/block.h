/*
 * A block of device memory, small or large, as its cache, its magazines and the pending queue know it.
 *
 * A small one is a unit's descriptor in a page (page.h), a large one the first part of a range's
 * (arena.h). What the descriptor says of it is one word, its life; without the pool's lock it is only
 * changed by whoever frees or hands out the block:
 *
 *      63 requested 41 | 40 owner 25 | 24 units 12 | 11 bin 4 | 3 named | 2 state 0
 *
 *   named      live, small: somebody has asked for its number (CU_POINTER_ATTRIBUTE_BUFFER_ID)
 *   bin        live or cached: where caches keep it
 *   units      of a small block, or of the run that starts or ends here; 0: a large block
 *   owner      live: the number of the cache that handed it out (cache.h); else 0
 *   requested  live, small: what the program asked for, in bytes; else 0
 */
#ifndef GPUCACHE_POOL_BLOCK_H
#define GPUCACHE_POOL_BLOCK_H

#include "pool/size_class.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define UNIT_SHIFT 9
#define SMALL_MAX_BYTES ((uint64_t)1 << 20)

enum block_state {
    BLOCK_INSIDE = 0, /* no block starts here */
    BLOCK_FREE,       /* free memory of a page or a segment starts here */
    BLOCK_TAIL,       /* a free run of more than one unit ends here */
    BLOCK_LIVE,       /* the program has it */
    BLOCK_CACHED, /* freed: in a cache, a magazine or the pending queue, with a stamp, or retired */
    BLOCK_PAGE,   /* 2 MiB that small blocks live in */
};

struct block {
    union {
        uint64_t stamp;         /* cached: its epoch; 0: usable already */
        struct block *previous; /* free run: the list of its length */
    };
    struct block *next; /* cached or free run: the list it is in */
    uint64_t address;   /* live or cached: on the device */
    _Atomic uint64_t life;
};

_Static_assert(sizeof(struct block) == 32, "a descriptor is half a cache line");

#define LIFE_STATE ((uint64_t)0x7)
#define LIFE_NAMED ((uint64_t)0x8)
#define LIFE_BIN_SHIFT 4
#define LIFE_BIN ((uint64_t)0xff << LIFE_BIN_SHIFT)
#define LIFE_UNITS_SHIFT 12
#define LIFE_UNITS ((uint64_t)0x1fff << LIFE_UNITS_SHIFT)
#define LIFE_OWNER_SHIFT 25
#define LIFE_OWNER ((uint64_t)0xffff << LIFE_OWNER_SHIFT)
#define LIFE_REQUESTED_SHIFT 41
_Static_assert(SMALL_MAX_BYTES < (uint64_t)1 << (64 - LIFE_REQUESTED_SHIFT),
               "a life holds what was asked for");

/*
 * Bins: one for each size class of small blocks; for large ones, which are not rounded to a class, one
 * for all of at least its class and less than the next. What is too large for any is not cached.
 */
#define LARGE_BINS 64
#define BINS (SMALL_CLASSES + LARGE_BINS)
#define BIN_NONE 255
#define BIN_MAX_BYTES ((uint64_t)16 << 20)

/** The bin that a large block lies in; where a request for as much begins to look. */
static inline unsigned bin_of_large(uint64_t bytes) {
    return bytes < BIN_MAX_BYTES ? size_class_below(bytes) + 1 : BIN_NONE;
}
_Static_assert(SMALL_CLASSES - 1 + 1 + LARGE_BINS == BINS, "from 1 MiB to less than 16 MiB");

static inline enum block_state life_state(uint64_t life) {
    return (enum block_state)(life & LIFE_STATE);
}

static inline unsigned life_bin(uint64_t life) {
    return (unsigned)((life & LIFE_BIN) >> LIFE_BIN_SHIFT);
}

static inline unsigned life_owner(uint64_t life) {
    return (unsigned)((life & LIFE_OWNER) >> LIFE_OWNER_SHIFT);
}

/** Of a small block. */
static inline uint64_t life_bytes(uint64_t life) {
    return (life & LIFE_UNITS) >> LIFE_UNITS_SHIFT << UNIT_SHIFT;
}

static inline uint64_t life_requested(uint64_t life) {
    return life >> LIFE_REQUESTED_SHIFT;
}

static inline bool life_is_large(uint64_t life) {
    return (life & LIFE_UNITS) == 0;
}

static inline uint64_t block_life(const struct block *block) {
    return atomic_load_explicit(&block->life, memory_order_acquire);
}

static inline void block_become(struct block *block, uint64_t life) {
    atomic_store_explicit(&block->life, life, memory_order_release);
}

static inline enum block_state block_state(const struct block *block) {
    return life_state(block_life(block));
}

static inline unsigned block_units(const struct block *block) {
    return (unsigned)((block_life(block) & LIFE_UNITS) >> LIFE_UNITS_SHIFT);
}

static inline unsigned block_bin(const struct block *block) {
    return life_bin(block_life(block));
}

static inline bool block_is_large(const struct block *block) {
    return life_is_large(block_life(block));
}

/* For a descriptor that is going to be written and that another thread wrote last: fetched for
 * reading first, it would cross from one processor to the other twice. */
static inline void block_fetch(const struct block *block) {
#if defined(__x86_64__)
    __asm__ volatile("prefetchw %0"
                     :
                     : "m"(*block)); /* which gcc only writes if told the processor */
#else
    __builtin_prefetch(block, 1);
#endif
}

#endif
