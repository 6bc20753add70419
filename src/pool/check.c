/*
 * Checks the invariants of a whole pool; see pool_check(). Tests call it after every step.
 * pool_check() takes remap.lock and source.lock, and seizes one cache after another. Each function
 * returns NULL, or the file and line of the first broken invariant (debug/check.h).
 */
#include "pool/internal.h"

#include "debug/check.h"

static const char *check_list(struct block *first, unsigned bin, uint32_t count, uint64_t bytes) {
    for (struct block *b = first; b; b = b->next) {
        HOLDS(block_state(b) == BLOCK_CACHED && block_bin(b) == bin);
        HOLDS(block_is_large(b) == (bin >= SMALL_CLASSES));
        HOLDS(!block_is_large(b) || bin_of_large(range_of(b)->bytes) == bin);
        bytes -= block_bytes(b);
        count--;
    }
    HOLDS(bytes == 0 && count == 0);
    return NULL;
}

static const char *check_transfer(struct transfer *transfer) {
    uint64_t bytes = 0;
    for (unsigned i = 0; i < transfer->count; i++) {
        const struct magazine *magazine =
            &transfer->magazines[(transfer->first + i) % TRANSFER_MAGAZINES];
        HOLDS(magazine->count > 0);
        const char *broken =
            check_list(magazine->first, magazine->bin, magazine->count, magazine->bytes);
        if (broken)
            return broken;
        HOLDS(!magazine->last->next && magazine->last->stamp <= magazine->stamp);
        bytes += magazine->bytes;
    }
    HOLDS(bytes == counter_get(&transfer->bytes));
    return NULL;
}

static const char *check_cache(struct cache *cache) {
    uint64_t bytes = 0;
    for (unsigned at = 0; at < BINS; at++) {
        const struct bin *bin = &cache->bins[at];
        uint64_t here = 0;
        for (struct block *b = bin->head; b; b = b->next) {
            here += block_bytes(b);
            HOLDS(b->next || b == bin->tail);
        }
        const char *broken = check_list(bin->head, at, bin->count, here);
        if (broken)
            return broken;
        bytes += here;
    }
    HOLDS(bytes == cache->bytes);
    HOLDS(!quota_is_inactive(cache) || cache->owner_id == 0 || cache->transfer.owner_id == 0);
    return NULL;
}

static const char *check_pending(const struct source *source) {
    uint64_t queued = 0;
    for (enum reach reach = 0; reach < REACHES; reach++) {
        for (struct block *b = source->pending[reach].head; b; b = b->next) {
            HOLDS(block_state(b) == BLOCK_CACHED);
            HOLDS(!b->next || b->stamp <= b->next->stamp);
            queued += block_bytes(b);
        }
    }
    HOLDS(queued == source->pending_bytes);
    return NULL;
}

/*
 * Checks all caches. Adds the bytes that they hold to `*held`, the live bytes that they count to
 * `*live`, and those of large blocks to `*large`.
 */
static const char *check_caches(struct pool *pool, uint64_t *held, uint64_t *live,
                                uint64_t *large) {
    uint64_t quotas = 0;
    const char *broken = NULL;
    for (struct cache *c = atomic_load(&pool->caches); c && !broken; c = c->next_in_pool) {
        cache_seize(c);
        broken = check_cache(c);
        *held += c->bytes;
        quotas += cache_quota(c);
        *live += watermark_live(&c->watermarks[WATERMARK_ALLOCATED]);
        *large += counter_get(&c->large_live_bytes);
        cache_return(c);
    }
    for (struct cache *c = atomic_load(&pool->caches); c && !broken; c = c->next_in_pool) {
        lock_acquire(&c->transfer.lock);
        broken = check_transfer(&c->transfer);
        *held += counter_get(&c->transfer.bytes);
        if (!broken && quota_is_inactive(c) && quota_cached(c) > 0)
            broken = HERE;
        lock_release(&c->transfer.lock);
    }
    HOLDS(broken || quotas == pool->source.quotas);
    return broken;
}

static const char *check_locked(struct pool *pool) {
    struct source *source = &pool->source;
    struct in_slabs small = {0};
    uint64_t live = 0, pending = 0, held = 0, counted = 0, large = 0;
    const char *broken = check_arena(&source->large, &live, &pending);
    broken = broken ? broken : check_arena(&source->small, &live, &pending);
    broken = broken ? broken : check_slabs(&source->small, &small);
    broken = broken ? broken : check_pending(source);
    broken = broken ? broken : check_caches(pool, &held, &counted, &large);
    if (broken)
        return broken;
    HOLDS(small.free_units == source->runs.free_units && small.free_runs == source->runs.count);
    HOLDS(counted == live + small.live && large == live && source->remap.held_bytes == 0);
    HOLDS(small.cached + pending ==
          held + source->pending_bytes + atomic_load(&pool->deferred_bytes));
    return NULL;
}

const char *pool_check(struct pool *pool) {
    struct source *source = &pool->source;
    lock_acquire(&source->remap.lock); /* no mapping is in progress */
    lock_acquire(&source->lock);
    const char *broken = check_locked(pool);
    lock_release(&source->lock);
    lock_release(&source->remap.lock);
    return broken;
}
