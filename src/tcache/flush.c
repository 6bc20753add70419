/*
 * Flush: moves blocks of a cache to the pool, because the cache exceeds its quota or its thread
 * does not need them. Blocks keep their stamps: unsafe ones become pending memory.
 *
 * The caller is inside the cache, or has seized it, and holds the pool's lock. Callers: quota.c,
 * free.c, alloc.c, slow_path.c.
 */
#include "tcache/internal.h"

static void flush(struct cache *cache, unsigned at, uint32_t count) {
    ASSERT_INSIDE(&cache->lock);
    pending_add_list(&cache->pool->source, cache_take(cache, at, count).first);
}

void cache_flush_idle(struct cache *cache, unsigned keep, uint64_t most) {
    for (unsigned turns = 0; cache->bytes > most && turns < BINS; turns++) {
        cache->last_flushed = (uint16_t)((cache->last_flushed + 1u) % BINS);
        struct bin *bin = &cache->bins[cache->last_flushed];
        if (!cache_bin_check_idle(bin) || cache->last_flushed == keep) {
            continue;
        }
        bin->target = 0;
        if (bin->count > 0) {
            flush(cache, cache->last_flushed, bin->count);
        }
    }
}

/*
 * Returns the bin with the most bytes, `keep` only if no other bin has blocks. Bytes count, not
 * blocks: half a bin of tiny blocks has few bytes, and the next free would overflow again.
 */
static unsigned largest_bin(const struct cache *cache, unsigned keep) {
    unsigned largest = keep;
    uint64_t most = 0;
    for (unsigned at = 0; at < BINS; at++) {
        const struct bin *bin = &cache->bins[at];
        uint64_t each = at < SMALL_CLASSES ? size_class_bytes(at) : size_class_bytes(at - 1);
        if (bin->count * each > most && at != keep) {
            most = bin->count * each;
            largest = at;
        }
    }
    return largest;
}

void cache_flush_half(struct cache *cache, unsigned keep, uint64_t most) {
    while (cache->bytes > most) {
        unsigned at = largest_bin(cache, keep);
        flush(cache, at, (cache->bins[at].count + 1) / 2);
        cache->bins[at].target /= 2;
    }
}

void cache_flush(struct cache *cache, unsigned first) {
    for (unsigned at = first; cache->bytes > 0 && at < BINS; at++) {
        if (cache->bins[at].count > 0) {
            flush(cache, at, cache->bins[at].count);
        }
    }
}
