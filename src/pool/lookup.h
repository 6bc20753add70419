/* Internal look-up of the blocks at an address, for files of src/pool. Public part: address.h. */
#ifndef GPUCACHE_POOL_LOOKUP_H
#define GPUCACHE_POOL_LOOKUP_H

#include "heap/page_map.h"
#include "heap/segment.h"
#include "heap/slab.h"

struct pool_block;

/**
 * Describes the live block around `address` in `*block`, and returns its range: for a small block
 * the range of its slab. Returns NULL if no live block covers the address. Needs source.lock.
 */
struct range *find_range(uint64_t address, struct pool_block *block);

/* Candidate block at an address; all fields are 0 or NULL if there is none. */
struct block_at {
    struct pool *pool;   /* pool that owns the address */
    struct slab *slab;   /* slab, if the address lies in one */
    struct block *block; /* descriptor whose block starts at the address */
    uint64_t header;     /* header of `block` */
};

/**
 * Returns the block that may start at `address`, without a lock. If another thread frees the block
 * or reuses its descriptor during the call, the result is meaningless. A caller that does not own
 * the block must detect that, as claim() in free.c does. Fields are read as volatile,
 * because other threads may write them meanwhile.
 */
__attribute__((no_sanitize("thread"))) static inline struct block_at
find_block_at(uint64_t address) {
    struct block_at at = {.slab = page_map_slab(page_map_get(address))};
    at.pool = at.slab ? at.slab->pool : page_map_pool(address);
    if (at.slab && address % ((uint64_t)1 << UNIT_SHIFT) == 0) {
        at.block = slab_block(at.slab, address);
    } else if (!at.slab && at.pool) {
        struct range *range = page_map_start(address);
        const volatile uint64_t *start = range ? &range->block.address : NULL;
        at.block = start && *start == address ? &range->block : NULL;
    }
    at.header = at.block ? *(const volatile uint64_t *)&at.block->header : 0;
    atomic_thread_fence(memory_order_acquire);
    return at;
}

#endif
