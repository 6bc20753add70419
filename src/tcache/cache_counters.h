/*
 * Counters of a cache: requests by size, and live blocks and bytes. The caller is inside the
 * cache.
 */
#ifndef GPUCACHE_TCACHE_CACHE_COUNTERS_H
#define GPUCACHE_TCACHE_CACHE_COUNTERS_H

#include "tcache/cache.h"

/**
 * Returns the size class of a request in the statistics: the first of the powers of two from 512
 * that holds it.
 */
static inline unsigned stats_class(uint64_t requested) {
    unsigned class = 63u - (unsigned)__builtin_clzll((requested - 1) >> 8 | 1);
    return class < STATS_SIZE_CLASSES ? class : STATS_SIZE_CLASSES - 1;
}

/*
 * Count a block of `bytes` that was handed out for a request of `requested` bytes; count its
 * free.
 */
static inline void cache_count_alloc(struct cache *cache, stat_counter *allocs, uint64_t requested,
                                     uint64_t bytes) {
    counter_add(allocs, 1);
    int64_t least = watermark_rise(&cache->watermarks[WATERMARK_REQUESTED], requested) |
                    watermark_rise(&cache->watermarks[WATERMARK_ALLOCATED], bytes) |
                    watermark_rise(&cache->watermarks[WATERMARK_COUNT], 1);
    if (__builtin_expect(least < 0, 0)) {
        for (unsigned i = 0; i < WATERMARKS; i++) {
            watermark_raise(&cache->watermarks[i]);
        }
    }
}

static inline void cache_count_free(struct cache *cache, stat_counter *frees, uint64_t requested,
                                    uint64_t bytes) {
    counter_add(frees, 1);
    watermark_fall(&cache->watermarks[WATERMARK_REQUESTED], requested);
    watermark_fall(&cache->watermarks[WATERMARK_ALLOCATED], bytes);
    watermark_fall(&cache->watermarks[WATERMARK_COUNT], 1);
}

#endif
