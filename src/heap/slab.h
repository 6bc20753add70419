/*
 * Slabs: 2 MiB of device memory, divided into small blocks, which are runs of 512-byte units.
 *
 *      units    0    1    2    3    4    5    6    7    8   ...   4095
 *             [ live block 3 ][  free run 3  ][ live 2  ][ free ... ]
 *      first    L              F              L          F
 *      last                              T                     T        (only free runs need one)
 *
 * Every unit has a descriptor. Only the first descriptor of a block or free run has a meaning. The
 * last one of a free run repeats the length (boundary tags), so that a freed block finds both
 * neighbours without a search. Free runs are in one list per length. A two-level bitmap of the
 * lengths finds the exact best fit with two bit scans.
 *
 * The descriptors of SLAB_REGION_SLABS slabs lie at equal distances in an aligned region of host
 * memory. Arithmetic leads from a block to its slab and its address. The region's end has a bitmap
 * for each slab: a bit is set for each unit where a block begins. An address inside a block leads
 * to the block's start in a few steps.
 *
 * The pool's lock protects everything but atomic fields. Invariant: a live block's descriptor and
 * bits do not change. sync/pending.c takes blocks and gives them back. pool/free.c and
 * pool/lookup.c look blocks up without the lock.
 */
#ifndef GPUCACHE_HEAP_SLAB_H
#define GPUCACHE_HEAP_SLAB_H

#include "heap/block.h"
#include "heap/host.h"
#include "heap/page_map.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define SLAB_UNITS ((unsigned)(PAGE_BYTES >> UNIT_SHIFT))
#define SLAB_REGION_BYTES ((size_t)8 << 20) /* size and alignment */

struct range;

struct slab {
    uint64_t address;    /* device address of unit 0 */
    struct pool *pool;   /* constant: a pool recycles its own slabs only */
    struct range *range; /* the slab's range in the arena */
    /*
     * See struct segment. A slab in an externally visible segment is externally visible, too. The
     * slab's entry in the page map has the same mark.
     */
    atomic_bool externally_visible;
    /* Number of times the slab was opened, perhaps at another address (pool/lookup.c). */
    _Atomic uint32_t opened;
    /* Names (ID and flag, pool/lookup.c) of its blocks, by unit; NULL until a block gets one. */
    _Atomic uint64_t *names;
    struct slab *next; /* closed slab: next in runs.closed */
    /* Host memory may back the descriptors; false: runs_trim() gave it back, they read as zeros. */
    bool resident;
    /* Written under the pool's lock. Separate cache line from the fields that every free reads. */
    _Alignas(64) uint32_t used_units;
    _Atomic uint64_t head_words; /* bit w: word w of slab_heads() is not 0 */
    _Alignas(64) struct block blocks[4096];
};

/*
 * Distance between slabs. Each slab begins some cache lines further into a host page than the slab
 * before, and each region's first slab further than that of the region before (SLAB_REGION_SHIFT).
 * At equal offsets, the cache lines that every allocation and free reads would share a few sets of
 * the CPU's caches. The descriptors of one unit in all slabs would, too.
 */
#define SLAB_STRIDE (sizeof(struct slab) + 64)
#define SLAB_REGION_SLABS (SLAB_REGION_BYTES / SLAB_STRIDE)
#define SLAB_REGION_COLOURS 8
#define SLAB_REGION_SHIFT (SLAB_REGION_SLABS * (SLAB_STRIDE % 4096))
_Static_assert(SLAB_STRIDE / 64 % 2 == 1,
               "no two slabs of a region share more cache sets than others");
#define SLAB_HEAD_WORDS (SLAB_UNITS / 64)
_Static_assert(SLAB_HEAD_WORDS == 64, "head_words has a bit for each word");
#define SLAB_HEAD_BYTES (SLAB_HEAD_WORDS * sizeof(uint64_t))
_Static_assert(SLAB_REGION_SLABS *(SLAB_STRIDE + SLAB_HEAD_BYTES) +
                       (SLAB_REGION_COLOURS - 1) * SLAB_REGION_SHIFT <=
                   SLAB_REGION_BYTES,
               "a region holds its slabs and their bitmaps of block starts");

/** Returns the address of a region's first slab. */
static inline uintptr_t slab_first(uintptr_t region) {
    return region + region / SLAB_REGION_BYTES % SLAB_REGION_COLOURS * SLAB_REGION_SHIFT;
}

/** Returns the slab of a small block's descriptor. */
static inline struct slab *slab_of(const struct block *block) {
    uintptr_t first = slab_first((uintptr_t)block & ~(uintptr_t)(SLAB_REGION_BYTES - 1));
    uint32_t offset = (uint32_t)((uintptr_t)block - first);
    return (struct slab *)(first + offset / SLAB_STRIDE * SLAB_STRIDE);
}

/**
 * Returns the slab's bitmap of block starts. Bit u: a live or cached block begins at unit u. The
 * pool's lock protects writes. The bits of a live block's units do not change, so a reader that
 * holds the block needs no lock.
 */
static inline _Atomic uint64_t *slab_heads(const struct slab *slab) {
    uintptr_t region = (uintptr_t)slab & ~(uintptr_t)(SLAB_REGION_BYTES - 1);
    uintptr_t index = ((uintptr_t)slab - slab_first(region)) / SLAB_STRIDE;
    return (_Atomic uint64_t *)(region + SLAB_REGION_BYTES -
                                (SLAB_REGION_SLABS - index) * SLAB_HEAD_BYTES);
}

/**
 * Finds the first block that starts at unit *unit of a slab or later. Returns false if there is
 * none, else sets *unit. Takes no lock: blocks that other threads cut or merge may be missed.
 */
static inline bool slab_next_block(const struct slab *slab, unsigned *unit) {
    uint64_t from = ~(uint64_t)0 << (*unit & 63);
    for (unsigned word = *unit >> 6; word < SLAB_HEAD_WORDS; word++, from = ~(uint64_t)0) {
        uint64_t heads = atomic_load_explicit(&slab_heads(slab)[word], memory_order_acquire) & from;
        if (heads != 0) {
            *unit = word << 6 | (unsigned)__builtin_ctzll(heads);
            return true;
        }
    }
    return false;
}

/**
 * Returns the index of a unit's descriptor in `blocks`, or the unit of an index: the function is
 * its own inverse. It swaps bits 1 to 5 of the 12 bits with bits 7 to 11. `shift` is the number of
 * further bits below, which stay.
 *
 * Blocks of one size begin a power of two apart. Swapped, their descriptors are adjacent, each in
 * its own cache line: they use few host pages, and all sets of the CPU's cache. Unswapped, each
 * would lie in another host page, in few sets.
 */
static inline uint64_t slab_swizzle(uint64_t unit, unsigned shift) {
    uint64_t differ = (unit ^ unit >> 6) & (uint64_t)0x3e << shift;
    return unit ^ differ * (1 | 1 << 6);
}
_Static_assert(SLAB_UNITS == 1 << 12, "a unit's number has 12 bits");

static inline unsigned block_unit(const struct block *block) {
    return (unsigned)slab_swizzle((uint64_t)(block - slab_of(block)->blocks), 0);
}

/**
 * Returns the descriptor of the unit that `address` belongs to. The address must be in the slab.
 * One division turns the address into an offset in `blocks`: bytes / 512 * sizeof(struct block).
 */
static inline struct block *slab_block(struct slab *slab, uint64_t address) {
    uint64_t bytes =
        slab_swizzle(address, UNIT_SHIFT) / (((uint64_t)1 << UNIT_SHIFT) / sizeof(struct block));
    return (struct block *)((char *)slab->blocks +
                            (bytes & (SLAB_UNITS - 1) * sizeof(struct block)));
}

static inline struct block *slab_unit(struct slab *slab, unsigned unit) {
    return slab_block(slab, (uint64_t)unit << UNIT_SHIFT);
}

/** Returns the descriptor `units` units further on in the same slab. */
static inline struct block *block_after(struct block *block, unsigned units) {
    return slab_unit(slab_of(block), block_unit(block) + units);
}

/**
 * Returns the live or cached block that covers `address`, or NULL. Without the pool's lock, the
 * result is reliable only for a live block, and only if the slab was not closed in between
 * (slab.opened).
 */
struct block *slab_find(struct slab *slab, uint64_t address);

/** Returns whether a slab has a live block. Takes some ns for each block that is not live. Needs
 * the pool's lock, so that no block is cut or merged. A block may still become live or cached. */
bool slab_has_live(struct slab *slab);

/* The free runs of all slabs of a pool. The pool's lock protects them. */
struct runs {
    struct pool *pool;
    struct block *lists[SLAB_UNITS + 1];     /* by units that may be handed out */
    uint64_t lengths[(SLAB_UNITS >> 6) + 1]; /* bit i: lists[i] is not empty */
    uint64_t words[2];                       /* bit i: lengths[i] is not 0 */
    struct slab *closed;                     /* slabs whose descriptors are free for reuse */
    uintptr_t fresh; /* next unused slab of the last region, if fresh_count > 0 */
    unsigned fresh_count;
    uint64_t free_units;
    uint64_t count; /* of free runs */
};

/**
 * Makes sure that the next runs_add_slab() finds descriptors. Returns false without host memory.
 */
bool runs_prepare(struct runs *runs);

/** Opens a slab in a 2 MiB range of the arena. Returns 0, or -ENOMEM without host memory. */
int runs_add_slab(struct runs *runs, struct range *range);

/**
 * Takes the shortest free run of at least `units` units and cuts it to size. Returns a BLOCK_CACHED
 * block of bin `bin` with stamp 0, or NULL if nothing fits. `any` allows blocks at the base of a
 * segment (segments backend; arena.h says why not by default).
 */
struct block *runs_take(struct runs *runs, unsigned units, unsigned bin, bool any);

/**
 * Makes a block free and merges it with free neighbours. Returns NULL; or, if the slab is empty
 * now, closes the slab and returns its range, which the caller gives to the arena.
 */
struct range *runs_give(struct runs *runs, struct block *block);

/** Returns the bytes of the longest free run, without a reserved first unit. */
uint64_t runs_largest(const struct runs *runs);

/**
 * Gives the host memory of closed slabs' descriptors back to the system. They stay readable and
 * read as zeros, which means BLOCK_INSIDE.
 */
void runs_trim(struct runs *runs);

/** Closes an open slab with all its blocks, when the context and its memory are gone. */
void runs_forget_slab(struct runs *runs, struct slab *slab);

/** Forgets all free runs, after every open slab was forgotten. */
void runs_forget(struct runs *runs);

#endif
