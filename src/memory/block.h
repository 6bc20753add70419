/*
 * A block of device memory, small or large, as its cache, its magazines and the pending queue know it.
 *
 * A small one is a unit's descriptor in a page (page.h), a large one the first part of a range's
 * (arena.h). What the descriptor says of it is one word, its header; without the pool's lock it is only
 * changed by whoever frees or hands out the block:
 *
 *      63 requested 43 | 42 owner 27 | 26 units 14 | 13 bin 6 | 3 named | 2 state 0
 *
 *   named      live, small: somebody has asked for its number (CU_POINTER_ATTRIBUTE_BUFFER_ID)
 *   bin        live or cached: where caches keep it
 *   units      of a small block, or of the run that starts or ends here; 0: a large block
 *   owner      live: the number of the cache that handed it out (cache.h); else 0
 *   requested  live, small: what the program asked for, in bytes; else 0
 */
#ifndef GPUCACHE_MEMORY_BLOCK_H
#define GPUCACHE_MEMORY_BLOCK_H

#include "memory/size_class.h"

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
    BLOCK_SLAB,   /* 2 MiB that small blocks live in */
};

struct block {
    union {
        /* Cached: its epoch, 0: usable already; live: what was noted for it (pool_tag()). */
        uint64_t stamp;
        struct block *previous; /* free run: the list of its length */
    };
    struct block *next; /* cached or free run: the list it is in */
    uint64_t address;   /* live or cached: on the device */
    _Atomic uint64_t header;
};

_Static_assert(sizeof(struct block) == 32, "a descriptor is half a cache line");

#define HEADER_STATE ((uint64_t)0x7)
#define HEADER_HAS_ID ((uint64_t)0x8)
#define HEADER_BIN_SHIFT 6 /* as long as a bin (cache.h) is */
#define HEADER_BIN ((uint64_t)0xff << HEADER_BIN_SHIFT)
#define HEADER_UNITS_SHIFT 14
#define HEADER_UNITS ((uint64_t)0x1fff << HEADER_UNITS_SHIFT)
#define HEADER_OWNER_SHIFT 27
#define HEADER_OWNER ((uint64_t)0xffff << HEADER_OWNER_SHIFT)
#define HEADER_REQUESTED_SHIFT 43
_Static_assert(SMALL_MAX_BYTES < (uint64_t)1 << (64 - HEADER_REQUESTED_SHIFT),
               "a header holds what was asked for");

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
_Static_assert(BIN_MAX_BYTES == SMALL_MAX_BYTES << LARGE_BINS / 16,
               "sixteen for each doubling, from 1 MiB to less than 16 MiB");

static inline enum block_state header_state(uint64_t header) {
    return (enum block_state)(header & HEADER_STATE);
}

static inline unsigned header_bin(uint64_t header) {
    return (unsigned)((header & HEADER_BIN) >> HEADER_BIN_SHIFT);
}

static inline unsigned header_owner(uint64_t header) {
    return (unsigned)((header & HEADER_OWNER) >> HEADER_OWNER_SHIFT);
}

/** Of a small block. */
static inline uint64_t header_bytes(uint64_t header) {
    return (header & HEADER_UNITS) >> HEADER_UNITS_SHIFT << UNIT_SHIFT;
}

static inline uint64_t header_requested(uint64_t header) {
    return header >> HEADER_REQUESTED_SHIFT;
}

static inline bool header_is_large(uint64_t header) {
    return (header & HEADER_UNITS) == 0;
}

static inline uint64_t block_header(const struct block *block) {
    return atomic_load_explicit(&block->header, memory_order_acquire);
}

static inline void block_become(struct block *block, uint64_t header) {
    atomic_store_explicit(&block->header, header, memory_order_release);
}

static inline enum block_state block_state(const struct block *block) {
    return header_state(block_header(block));
}

static inline unsigned block_units(const struct block *block) {
    return (unsigned)((block_header(block) & HEADER_UNITS) >> HEADER_UNITS_SHIFT);
}

static inline unsigned block_bin(const struct block *block) {
    return header_bin(block_header(block));
}

static inline bool block_is_large(const struct block *block) {
    return header_is_large(block_header(block));
}

/* For a descriptor that is going to be written and that another thread wrote last: fetched for
 * reading first, it would cross from one processor to the other twice. What comes back is an address that
 * the compiler has in a register, and does not work out again. */
static inline struct block *block_fetch(struct block *block) {
#if defined(__x86_64__)
    __asm__ volatile("prefetchw (%0)"
                     : "+r"(block)); /* which gcc only writes if told the processor */
#else
    __builtin_prefetch(block, 1);
#endif
    return block;
}

#endif
