/*
 * Refill: how many blocks a miss adds to the thread's cache, and where they come from. refill.h has
 * the lock.
 */
#include "pool/refill.h"

#include "pool/internal.h"

/*
 * Returns whether more blocks of this bin would make epochs less frequent. False if most requests
 * since the last miss were for other bins: their epochs make this bin's blocks safe too. Records
 * the counts of this miss.
 */
static bool needs_rotation(struct cache *cache, struct bin *bin) {
    uint32_t all = (uint32_t)counter_get(&cache->watermarks[WATERMARK_COUNT].taken);
    uint32_t own = (uint32_t)counter_get(&bin->allocs);
    uint32_t all_since = all - bin->all_at_miss, own_since = own - bin->own_at_miss;
    bin->all_at_miss = all;
    bin->own_at_miss = own;
    return is_ablated(ABLATION_ROTATION) || all_since < ROTATION_ENOUGH ||
           2 * own_since >= all_since;
}

/*
 * Sets the bin's target and returns how many blocks to add, so that the next requests like this
 * one stay out of the slow path. The pool's lock is held.
 *
 *  rotating   the thread's own blocks were still pending: the target doubles with every slow path,
 *             up to ROTATION_BLOCKS and the quota
 *  otherwise  the thread only asks for more: a few small blocks save the lock without hoarding
 *             (at most a magazine, and AHEAD_SHARE)
 */
static uint32_t refill_count(const struct pool *pool, struct cache *cache,
                             const struct alloc_request *like, bool rotating) {
    struct bin *bin = &cache->bins[like->bin];
    uint64_t target = rotating && bin->count > 0 ? bin->count : bin->target, few = 0;
    target = target > 0 ? 2 * target : 1;
    if (rotating) {
        if (!needs_rotation(cache, bin)) {
            return 0;
        }
        target = min_u64(target, ROTATION_BLOCKS);
        if (!quota_grow(cache, target * like->bytes)) {
            target = min_u64(target, cache_quota(cache) / like->bytes);
        }
    } else {
        if (!like->large && !is_ablated(ABLATION_AHEAD)) {
            few = counter_get(&pool->source.counters.active.current) / AHEAD_SHARE / like->bytes;
        }
        target = min_u64(target, min_u64(few, magazine_blocks(like->bin)));
    }
    bin->target = (uint32_t)target;
    return target > bin->count ? (uint32_t)target - bin->count : 0;
}

/*
 * Finds memory for one more block: free memory, or once per refill a growth within the budget.
 * Returns whether request->block was found. The pool's lock is released during a growth.
 */
static bool refill_one(struct pool *pool, struct alloc_request *request, bool *may_grow) {
    struct source *source = &pool->source;
    if (try_free(source, request)) {
        return true;
    }
    bool grows = *may_grow && !peaks_over_budget(pool, source_growth(request)) &&
                 source_grow(source, request) == 0;
    *may_grow = false;
    return grows && try_free(source, request);
}

/*
 * Finds memory for one more block after refill_one() failed. Acts only on every
 * REFILL_FAILURES-th failure, because it costs more: bins without requests go to the pool, and an
 * idle segment goes to the driver, which can return as memory for this kind of block. Returns
 * whether request->block was found. The pool's lock is held, and released in between.
 */
static bool refill_failed(struct pool *pool, struct cache *cache, struct alloc_request *request) {
    struct source *source = &pool->source;
    uint64_t growth = source_growth(request);
    if (is_ablated(ABLATION_REFILL_FAILED) || ++cache->refill_failures < REFILL_FAILURES) {
        return false;
    }
    cache->refill_failures = 0;
    cache_enter(cache);
    cache_flush_idle(cache, request->bin, 0);
    cache_leave(cache);
    return try_free(source, request) ||
           (!source->backend->release_waits && source_release_idle(source, growth) == 0 &&
            !peaks_over_budget(pool, growth) && source_grow(source, request) == 0 &&
            try_free(source, request));
}

void refill(struct pool *pool, struct cache *cache, const struct alloc_request *like,
            bool rotating) {
    ASSERT_HELD(&pool->source.lock);
    if (like->bin >= BINS) {
        return;
    }
    uint32_t more = refill_count(pool, cache, like, rotating);
    if (rotating && cache->bytes + more * like->bytes > cache_quota(cache)) {
        cache_enter(cache);
        quota_flush_for(cache, like->bin, more * like->bytes);
        cache_leave(cache);
    }
    bool may_grow = rotating && !atomic_load_explicit(&pool->source.pressure, memory_order_relaxed);
    while (more-- > 0 && cache->bytes + like->bytes <= cache_quota(cache)) {
        struct alloc_request request = {
            .bin = like->bin, .bytes = like->bytes, .large = like->large};
        if (!refill_one(pool, &request, &may_grow) &&
            !(rotating && refill_failed(pool, cache, &request))) {
            break;
        }
        request.block->stamp = 0;
        cache_enter(cache);
        if (quota_is_inactive(cache)) { /* another thread deactivated the cache during the growth */
            quota_grow(cache, 0);
        }
        cache_push_free(cache, request.block);
        cache_leave(cache);
    }
}
