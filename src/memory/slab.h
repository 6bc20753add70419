/*
 * Small blocks: runs of 512-byte units inside 2 MiB pages.
 *
 *      units    0    1    2    3    4    5    6    7    8   ...   4095
 *             [ live block 3 ][  free run 3  ][ live 2  ][ free ... ]
 *      heads    L              F              L          F
 *      tails                             T                     T        (only free runs need one)
 *
 * Every unit has a descriptor; only the one where a block or a free run starts means anything, and
 * the last one of a free run repeats its length, so that both neighbours of a freed block are found
 * without a search (boundary tags). Free runs hang in one list per length, and a two-level bitmap
 * over the 4096 lengths gives the exact best fit with two bit scans.
 *
 * The descriptors of SLAB_REGION_SLABS pages lie in one aligned region of host memory, at equal
 * distances, so a block finds its page, and the page its address, by arithmetic. At the end of the region
 * each page has one bit per unit, set where a block starts: so an address inside a block finds it in a
 * few steps.
 */
#ifndef GPUCACHE_MEMORY_SLAB_H
#define GPUCACHE_MEMORY_SLAB_H

#include "memory/block.h"
#include "memory/host.h"
#include "memory/page_map.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define SLAB_UNITS ((unsigned)(PAGE_BYTES >> UNIT_SHIFT))
#define SLAB_REGION_BYTES ((size_t)8 << 20) /* of descriptors; also the alignment */

struct range;

struct slab {
    uint64_t address;    /* of unit 0 on the device */
    struct pool *pool;   /* never changes: pages are recycled within their pool */
    struct range *range; /* the arena's side of it */
    /* See struct segment. A page opened later in it inherits it; its entry in the page map says so too. */
    atomic_bool externally_visible;
    _Atomic uint32_t opened; /* how often it has been: it lay elsewhere before */
    _Atomic uint64_t *names; /* of the blocks that have one, by unit; NULL until somebody asks */
    struct slab *next;       /* of a closed one: in the list of those */
    bool resident;           /* since it has been a closed one without memory for its descriptors */
    /* Written with the pool's lock: on another line than what every free reads. */
    _Alignas(64) uint32_t used_units;
    _Atomic uint64_t head_words; /* which words of slab_heads() are not 0 */
    _Alignas(64) struct block blocks[4096];
};

/*
 * Pages lie one after another, each some cache lines further into a power of two than its neighbour,
 * and each region's first page further in than the region's before. At equal places, the lines that
 * every allocation and free reads, and those of the same unit of every page, would share a few sets of
 * the CPU's caches.
 */
#define SLAB_STRIDE (sizeof(struct slab) + 64)
#define SLAB_REGION_SLABS (SLAB_REGION_BYTES / SLAB_STRIDE)
#define SLAB_REGION_COLOURS 8
#define SLAB_REGION_SHIFT (SLAB_REGION_SLABS * (SLAB_STRIDE % 4096))
_Static_assert(SLAB_STRIDE / 64 % 2 == 1,
               "no two of a region's pages share a set more than others");
#define SLAB_HEAD_WORDS (SLAB_UNITS / 64)
_Static_assert(SLAB_HEAD_WORDS == 64, "one word tells which of them are not 0");
#define SLAB_HEAD_BYTES (SLAB_HEAD_WORDS * sizeof(uint64_t))
_Static_assert(SLAB_REGION_SLABS *(SLAB_STRIDE + SLAB_HEAD_BYTES) +
                       (SLAB_REGION_COLOURS - 1) * SLAB_REGION_SHIFT <=
                   SLAB_REGION_BYTES,
               "a region holds its pages, and where their blocks start");

/** The first page of a region. */
static inline uintptr_t slab_first(uintptr_t region) {
    return region + region / SLAB_REGION_BYTES % SLAB_REGION_COLOURS * SLAB_REGION_SHIFT;
}

static inline struct slab *slab_of(const struct block *block) {
    uintptr_t first = slab_first((uintptr_t)block & ~(uintptr_t)(SLAB_REGION_BYTES - 1));
    uint32_t offset = (uint32_t)((uintptr_t)block - first);
    return (struct slab *)(first + offset / SLAB_STRIDE * SLAB_STRIDE);
}

/* Bit u: a block, live or cached, starts at unit u. Written under the pool's lock; what lies between the
 * start and the end of a live block stays as it is, so that is found without. */
static inline _Atomic uint64_t *slab_heads(const struct slab *slab) {
    uintptr_t region = (uintptr_t)slab & ~(uintptr_t)(SLAB_REGION_BYTES - 1);
    uintptr_t index = ((uintptr_t)slab - slab_first(region)) / SLAB_STRIDE;
    return (_Atomic uint64_t *)(region + SLAB_REGION_BYTES -
                                (SLAB_REGION_SLABS - index) * SLAB_HEAD_BYTES);
}

/*
 * Where in a page a descriptor lies, and which unit a descriptor is of: the same function both ways, which swaps bits 1 to 5 of
 * 12 with bits 7 to 11. `shift`: so many bits below them are as they were. The descriptors of blocks of one size lie side by side so, each in a
 * cache line of its own, in few pages of the host and in all sets of the CPU's cache. In the order of units they would lie a power of
 * two apart, in as many pages as there are blocks and in few sets.
 */
static inline uint64_t slab_swizzle(uint64_t unit, unsigned shift) {
    uint64_t differ = (unit ^ unit >> 6) & (uint64_t)0x3e << shift;
    return unit ^ differ * (1 | 1 << 6);
}
_Static_assert(SLAB_UNITS == 1 << 12, "a unit's number has 12 bits");

static inline unsigned block_unit(const struct block *block) {
    return (unsigned)slab_swizzle((uint64_t)(block - slab_of(block)->blocks), 0);
}

/** The descriptor of the unit that `address`, which lies in `page`, belongs to. */
static inline struct block *slab_block(struct slab *slab, uint64_t address) {
    uint64_t bytes =
        slab_swizzle(address, UNIT_SHIFT) / (((uint64_t)1 << UNIT_SHIFT) / sizeof(struct block));
    return (struct block *)((char *)slab->blocks +
                            (bytes & (SLAB_UNITS - 1) * sizeof(struct block)));
}

static inline struct block *slab_unit(struct slab *slab, unsigned unit) {
    return slab_block(slab, (uint64_t)unit << UNIT_SHIFT);
}

/** The descriptor so many units further on in the same page. */
static inline struct block *block_after(struct block *block, unsigned units) {
    return slab_unit(slab_of(block), block_unit(block) + units);
}

/** The block that covers `address`, a live or cached one, or NULL. Without the pool's lock only what is
 * said of a live block is true, and of a page that stays where it is. */
struct block *slab_find(struct slab *slab, uint64_t address);

/* The free runs of all pages of a pool. Under the pool's lock. */
struct runs {
    struct pool *pool;
    struct block *lists[SLAB_UNITS + 1]; /* by usable length in units */
    uint64_t lengths[(SLAB_UNITS >> 6) + 1];
    uint64_t words[2];   /* which of lengths[] are not 0 */
    struct slab *closed; /* whose descriptors are used again */
    uintptr_t fresh;     /* the next page of the last region; 0: there is none */
    unsigned fresh_count;
    uint64_t free_units;
    uint64_t count; /* of them */
    uint64_t slab_count;
};

void runs_start(struct runs *runs, struct pool *pool);

/** Makes sure that there is a descriptor for one more page. False without host memory. */
bool runs_prepare(struct runs *runs);

/** Opens a page over a 2 MiB range of the arena. 0 or -ENOMEM. */
int runs_add_slab(struct runs *runs, struct range *range, uint64_t address);

/** The best fit for `units`, as a block in state BLOCK_CACHED with stamp 0, of size class `bin`. The
 * first unit of a segment only with `any`. NULL: nothing fits. */
struct block *runs_take(struct runs *runs, unsigned units, unsigned bin, bool any);

/**
 * Gives a block back, merged with its neighbours. If its page is empty then, the page is closed and
 * its range returned, which the caller gives to the arena; else NULL.
 */
struct range *runs_give(struct runs *runs, struct block *block);

/** The longest free run, in usable bytes. */
uint64_t runs_largest(const struct runs *runs);

/** Gives the host memory of closed pages' descriptors back. They stay readable: nothing is in them. */
void runs_trim(struct runs *runs);

/** The context is gone: each open page, then all free runs are forgotten. */
void runs_forget_slab(struct runs *runs, struct slab *slab);
void runs_forget(struct runs *runs);

#endif
