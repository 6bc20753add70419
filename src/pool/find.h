/* What starts at an address, or lies around it. For the files of this room. */
#ifndef GPUCACHE_POOL_FIND_H
#define GPUCACHE_POOL_FIND_H

#include "memory/page_map.h"
#include "memory/segment.h"
#include "memory/slab.h"

struct pool_block;

/** The range around a live block, or NULL. Under the lock. */
struct range *find_range(uint64_t address, struct pool_block *block);

/* What may start at an address. */
struct start {
    struct pool *pool;   /* whose address it is, or NULL */
    struct slab *slab;   /* of a small block; else NULL */
    struct block *block; /* which the map names, or NULL */
    uint64_t header;     /* of it, or 0 */
};

/**
 * Nobody keeps the block from being freed meanwhile, or its descriptor from being used for another one: then what is read of it
 * means nothing, and whoever asks about blocks that are not its own has to notice.
 */
__attribute__((no_sanitize("thread"))) static inline struct start find_start(uint64_t address) {
    struct start at = {.slab = page_map_page(page_map_get(address))};
    at.pool = at.slab ? at.slab->pool : page_map_owner(address);
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
