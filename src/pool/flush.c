/*
 * What a cache gives to the pool, because it holds more than it may or nobody needs it. The caller is
 * inside the cache, and has the pool's lock.
 */
#include "pool/internal.h"

static void flush(struct cache *cache, unsigned at, uint32_t count) {
    pending_add_list(&cache->pool->source, cache_take(cache, at, count).first);
}

void cache_flush_idle(struct cache *cache, unsigned keep, uint64_t most) {
    for (unsigned turns = 0; cache->bytes > most && turns < BINS; turns++) {
        cache->hand = (uint16_t)((cache->hand + 1u) % BINS);
        struct bin *bin = &cache->bins[cache->hand];
        if (!cache_bin_check_idle(bin) || cache->hand == keep) {
            continue;
        }
        bin->target = 0;
        if (bin->count > 0) {
            flush(cache, cache->hand, bin->count);
        }
    }
}

/* Of bytes, not of blocks: halving a bin of tiny ones makes no room, and the next free is back. */
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
