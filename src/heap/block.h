/*
 * The descriptor of a block, small or large, as caches, magazines and the pending queue use it.
 *
 * A small block's descriptor is that of its first unit in a slab (slab.h). A large block's
 * descriptor is the first member of its range (arena.h, segment.h). One word of the descriptor, the
 * header, holds the fields below. The thread that hands a block out or frees it may change the
 * header without the pool's lock. Every other change needs that lock.
 *
 *      63 requested 43 | 42 owner 27 | 26 units 14 | 13 bin 6 | 3 has_id | 2 state 0
 *
 *   has_id     live small block: a CU_POINTER_ATTRIBUTE_BUFFER_ID was given out for it
 *   bin        live or cached block: its bin in a thread's cache
 *   units      length of the small block or free run; 0: a large block
 *   owner      live block: owner ID of the cache that handed it out (tcache/owner_id.h); else 0
 *   requested  live small block: bytes that the program asked for; live large block: number of its
 *              requester (stats/requesters.h); else 0
 */
#ifndef GPUCACHE_HEAP_BLOCK_H
#define GPUCACHE_HEAP_BLOCK_H

#include "heap/size_class.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define UNIT_SHIFT 9
#define SMALL_MAX_BYTES ((uint64_t)1 << 20)

enum block_state {
    BLOCK_INSIDE = 0, /* no block or free run begins at this descriptor */
    BLOCK_FREE,       /* a free run of a slab, or a free range of an arena, begins here */
    BLOCK_TAIL,       /* a free run of more than one unit ends here */
    BLOCK_LIVE,       /* the program holds the block */
    /*
     * Freed by the program, or not handed out yet: in a cache, a magazine or the pending queue,
     * with a stamp. Also a block of a deferred free, and a free range held for a growth.
     */
    BLOCK_CACHED,
    BLOCK_SLAB, /* a range that is a slab of small blocks */
};

struct block {
    union {
        /*
         * Cached block: the epoch of its free; 0: may be handed out now. Live block: the tag that
         * pool_tag() sets, the time of the allocation in a trace.
         */
        uint64_t stamp;
        struct block *previous; /* free run: neighbour in the list of its length */
    };
    struct block *next; /* cached block or free run: neighbour in its list */
    uint64_t address;   /* device address of a live or cached block */
    _Atomic uint64_t header;
};

_Static_assert(sizeof(struct block) == 32, "a descriptor is half a cache line");

#define HEADER_STATE ((uint64_t)0x7)
#define HEADER_HAS_ID ((uint64_t)0x8)
#define HEADER_BIN_SHIFT 6 /* log2 of sizeof(struct bin), tcache/cache.h asserts it */
#define HEADER_BIN ((uint64_t)0xff << HEADER_BIN_SHIFT)
#define HEADER_UNITS_SHIFT 14
#define HEADER_UNITS ((uint64_t)0x1fff << HEADER_UNITS_SHIFT)
#define HEADER_OWNER_SHIFT 27
#define HEADER_OWNER ((uint64_t)0xffff << HEADER_OWNER_SHIFT)
#define HEADER_REQUESTED_SHIFT 43
_Static_assert(SMALL_MAX_BYTES < (uint64_t)1 << (64 - HEADER_REQUESTED_SHIFT),
               "a header holds the requested bytes");

/*
 * Bins of a thread's cache. Each size class of small blocks has the bin of its number. Large blocks
 * are not rounded to a class: bin c + 1 holds sizes from class c up to, not including, class c + 1.
 * Blocks of more than BIN_MAX_BYTES have no bin and are not cached.
 */
#define LARGE_BINS 17
#define BINS (SMALL_CLASSES + LARGE_BINS)
#define BIN_NONE 255
#define BIN_MAX_BYTES ((uint64_t)2 << 20)

/**
 * Returns the bin that holds a large block of `bytes`, where a request for `bytes` looks first.
 * Returns BIN_NONE if the block is too large for a bin.
 */
static inline unsigned bin_of_large(uint64_t bytes) {
    return bytes <= BIN_MAX_BYTES ? size_class_of(bytes + 1) : BIN_NONE;
}
_Static_assert(BIN_MAX_BYTES == SMALL_MAX_BYTES << (LARGE_BINS - 1) / 16,
               "sixteen bins for each doubling, and one for BIN_MAX_BYTES");

static inline enum block_state header_state(uint64_t header) {
    return (enum block_state)(header & HEADER_STATE);
}

static inline unsigned header_bin(uint64_t header) {
    return (unsigned)((header & HEADER_BIN) >> HEADER_BIN_SHIFT);
}

static inline unsigned header_owner(uint64_t header) {
    return (unsigned)((header & HEADER_OWNER) >> HEADER_OWNER_SHIFT);
}

/** Returns the bytes of a small block. */
static inline uint64_t header_bytes(uint64_t header) {
    return (header & HEADER_UNITS) >> HEADER_UNITS_SHIFT << UNIT_SHIFT;
}

static inline uint64_t header_requested(uint64_t header) {
    return header >> HEADER_REQUESTED_SHIFT;
}

/** Returns the requester of a live large block. */
static inline unsigned header_requester(uint64_t header) {
    return (unsigned)(header >> HEADER_REQUESTED_SHIFT);
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

/**
 * Prefetches a descriptor for writing, and returns it. A plain read of a cache line that another
 * CPU wrote last would move the line twice: once to read it, once more to own it. `block` passes
 * through the asm: the compiler then keeps the address in a register and does not compute it again.
 */
static inline struct block *block_fetch(struct block *block) {
#if defined(__x86_64__)
    __asm__ volatile("prefetchw (%0)"
                     : "+r"(block)); /* gcc's builtin emits prefetchw only for named CPUs */
#else
    __builtin_prefetch(block, 1);
#endif
    return block;
}

#endif
