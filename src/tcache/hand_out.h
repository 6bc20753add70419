/*
 * Hands out cached blocks. A block becomes live inside the cache that hands it out, so only one
 * thread gets it. The caller is inside the cache, unless a comment says otherwise.
 */
#ifndef GPUCACHE_TCACHE_HAND_OUT_H
#define GPUCACHE_TCACHE_HAND_OUT_H

#include "source/source.h"
#include "tcache/internal.h"

/** Makes a cached small block live and counts it. Returns its device address. */
static inline __attribute__((always_inline)) uint64_t
hand_out_small(struct cache *cache, struct bin *bin, struct block *block, uint64_t header,
               uint64_t requested) {
    block_become(block, (header ^ cache->live_mask) | requested << HEADER_REQUESTED_SHIFT);
    cache_count_alloc(cache, &bin->allocs, requested, header_bytes(header));
    return block->address;
}

/**
 * Makes the cached block of a request live, whatever its size, and counts it. Returns its device
 * address.
 */
static inline uint64_t cache_hand_out(struct cache *cache, const struct alloc_request *request,
                                      uint64_t requested) {
    ASSERT_INSIDE(&cache->lock);
    struct block *block = request->block;
    uint64_t header = atomic_load_explicit(&block->header, memory_order_relaxed);
    if (!header_is_large(header))
        return hand_out_small(cache, cache_bin(cache, header), block, header, requested);
    struct range *range = range_of(block);
    atomic_store_explicit(&range->requested, requested, memory_order_relaxed);
    atomic_store_explicit(&range->name, 0, memory_order_relaxed);
    block_become(block, (header ^ cache->live_mask) | (uint64_t)request->requester
                                                          << HEADER_REQUESTED_SHIFT);
    struct requester_row *requesters = cache->pool->source.backend->requesters;
    if (requesters)
        requester_add(&requesters[request->requester], requested);
    if (header_bin(header) < BINS)
        counter_add(&cache->bins[header_bin(header)].allocs, 1);
    counter_add(&cache->large_live_bytes, range->bytes);
    cache_count_alloc(cache, &cache->large_allocs[stats_size_class(requested)], requested,
                      range->bytes);
    return block->address;
}

/**
 * Removes a block that may be handed out from the cache or a transfer cache, and sets
 * request->block to it, or to NULL. Returns whether there was one.
 */
static inline bool cache_find_any(struct cache *cache, struct alloc_request *request) {
    ASSERT_INSIDE(&cache->lock);
    uint64_t safe = atomic_load_explicit(&cache->pool->source.epochs.safe, memory_order_acquire);
    request->block = NULL;
    if (request->bin < BINS) {
        request->block = cache_find(cache, request, safe);
        if (!request->block)
            request->block = transfer_take(cache, request, safe);
    }
    return request->block != NULL;
}

/**
 * Takes steps 1 and 2 of the ladder (pool/slow_path.c): hands out a cached block. Returns whether
 * there was one. Enters and leaves the cache.
 */
static inline bool cache_alloc(struct cache *cache, struct alloc_request *request,
                               uint64_t requested, uint64_t *address) {
    cache_enter(cache);
    bool found = cache_find_any(cache, request);
    if (likely(found))
        *address = cache_hand_out(cache, request, requested);
    cache_leave(cache);
    return found;
}

#endif
