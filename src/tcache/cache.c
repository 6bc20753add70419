/*
 * Thread cache: the search for a block, the lists, flushes, and seizing by other threads (cache.h).
 *
 * Functions that read or change the lists are called inside the cache, or by a thread that has
 * seized it. Flushes and seizing need the pool's lock too. Only seizing waits: for the owner to
 * leave. Callers: src/pool, and the other files of src/tcache. Invariant: cache->bytes and
 * bin->count are the sums over the lists.
 */
#include "tcache/internal.h"

/*
 * Stands for "no cache": belongs to no pool, and `wanted` makes biased_try_enter() fail. Fast paths
 * therefore need no check for NULL.
 */
struct cache no_cache = {.lock.wanted = true};
_Thread_local struct cache *cache_last __attribute__((tls_model("initial-exec"))) = &no_cache;

/*
 * Allows blocks of larger bins than request->bin:
 *
 *  not `much`   a block larger by 1/LARGER_SHARE of a doubling: cheaper than the slow path, which a
 *               program whose sizes never repeat would take for each request
 *  `much`       a block up to twice as large: better than a growth
 *  large        1/LARGER_SHARE of either: more memory would stay unused
 *
 * The smallest classes serve requests of their own only: a few classes on, a block is twice as
 * large.
 */
unsigned request_last_bin(const struct alloc_request *request, bool much) {
    unsigned further = CLASSES_PER_DOUBLING / (much ? 1 : LARGER_SHARE);
    further /= request->large ? LARGER_SHARE : 1;
    further = request->bin < CLASSES_PER_DOUBLING ? 0 : further;
    if (is_ablated(ABLATION_LARGER_BINS))
        further = 0;
    unsigned last = request->bin + further, end = request->large ? BINS - 1 : SMALL_CLASSES - 1;
    return (unsigned)min_u64(last, end);
}

/*
 * Returns the last bin for a request from this cache. Allows larger blocks over the budget, or if
 * the cache holds more than half of its quota.
 */
static unsigned last_bin(const struct cache *cache, const struct alloc_request *request) {
    return request_last_bin(request, request->over_budget || cache->bytes > cache_quota(cache) / 2);
}

/*
 * Returns the first block of a bin for large blocks if it holds `bytes`, else NULL. The blocks of a
 * bin differ by less than 1/16 in size, so a further search would rarely find one that fits.
 */
static struct block *first_large(const struct bin *bin, uint64_t bytes) {
    return bin->head && range_of(bin->head)->bytes >= bytes ? bin->head : NULL;
}

/* Removes and returns the first block of a bin if the block holds `bytes` and is safe, or NULL. */
static struct block *pop_large(struct cache *cache, unsigned at, uint64_t bytes, uint64_t safe) {
    struct bin *bin = &cache->bins[at];
    struct block *block = first_large(bin, bytes);
    if (!block || block->stamp > safe)
        return NULL;
    bin->head = block->next;
    bin->count--;
    cache->bytes -= range_of(block)->bytes;
    return block;
}

struct block *cache_find(struct cache *cache, const struct alloc_request *request, uint64_t safe) {
    unsigned last = last_bin(cache, request);
    struct block *block = NULL;
    uint64_t header;
    for (unsigned at = request->bin; !block && at <= last; at++) {
        block = request->large ? pop_large(cache, at, request->bytes, safe)
                               : cache_pop_from(cache, &cache->bins[at], safe, &header);
    }
    return block;
}

uint64_t cache_stamp(const struct cache *cache, const struct alloc_request *request) {
    if (!request->large) {
        const struct block *head = cache->bins[request->bin].head;
        return head ? head->stamp : 0;
    }
    unsigned last = last_bin(cache, request);
    uint64_t stamp = 0;
    for (unsigned at = request->bin; at <= last; at++) {
        const struct block *block = first_large(&cache->bins[at], request->bytes);
        if (block && (stamp == 0 || block->stamp < stamp))
            stamp = block->stamp;
    }
    return stamp;
}

void cache_push_magazine(struct cache *cache, unsigned at, const struct magazine *magazine) {
    struct bin *bin = &cache->bins[at];
    /* links the last block to the old head, or makes it the tail of an empty bin */
    *(bin->head ? &magazine->last->next : &bin->tail) = bin->head ? bin->head : magazine->last;
    bin->head = magazine->first;
    bin->count += magazine->count;
    cache->bytes += magazine->bytes;
}

void cache_push_free(struct cache *cache, struct block *block) {
    block->next = NULL;
    cache_push_magazine(
        cache, block_bin(block),
        &(struct magazine){.first = block, .last = block, .count = 1, .bytes = block_bytes(block)});
}

struct magazine cache_take(struct cache *cache, unsigned at, uint32_t count) {
    ASSERT_INSIDE(&cache->lock);
    struct bin *bin = &cache->bins[at];
    struct magazine taken = {.first = bin->head, .last = bin->tail, .bin = at};
    bool all = count >= bin->count, large = at >= SMALL_CLASSES;
    if (count == 0 || bin->count == 0)
        return (struct magazine){0};
    taken.count = all ? bin->count : count;
    taken.bytes = large ? 0 : taken.count * size_class_bytes(at);
    for (uint32_t i = 0; (!all || large) && i < taken.count; i++) {
        taken.last = i == 0 ? taken.first : taken.last->next;
        taken.bytes += large ? range_of(taken.last)->bytes : 0;
    }
    bin->head = all ? NULL : taken.last->next;
    taken.last->next = NULL;
    taken.stamp = taken.last->stamp;
    bin->count -= taken.count;
    cache->bytes -= taken.bytes;
    return taken;
}

void cache_forget(struct cache *cache) {
    for (unsigned at = 0; at < BINS; at++) {
        struct bin *bin = &cache->bins[at];
        bin->head = bin->tail = NULL;
        bin->count = bin->target = 0;
        counter_set(&bin->frees, counter_get(&bin->allocs));
    }
    for (unsigned i = 0; i < STATS_SIZE_CLASSES; i++)
        counter_set(&cache->large_frees[i], counter_get(&cache->large_allocs[i]));
    counter_set(&cache->large_live_bytes, 0);
    cache->bytes = 0;
    cache->freed_others = true; /* live_at_start is outdated: see owner_id_is_exclusive() */
    for (unsigned i = 0; i < WATERMARKS; i++)
        watermark_clear(&cache->watermarks[i]);
}

/*
 * --- flush: with the pool's lock, inside the cache or seized ---
 *
 * Blocks go to the pool because the cache exceeds its quota, its thread does not need them or has
 * ended, or memory is short. Unsafe blocks become pending memory, with their stamps or higher ones
 * (pending_add()).
 */

/* Moves the `count` oldest blocks of a bin to the pool. */
static void flush(struct cache *cache, unsigned at, uint32_t count) {
    ASSERT_INSIDE(&cache->lock);
    pending_add_list(&cache->pool->source, cache_take(cache, at, count).first);
}

void cache_flush_idle(struct cache *cache, unsigned keep, uint64_t most) {
    for (unsigned bins = 0; cache->bytes > most && bins < BINS; bins++) {
        cache->last_flushed = (uint16_t)((cache->last_flushed + 1u) % BINS);
        struct bin *bin = &cache->bins[cache->last_flushed];
        if (!cache_bin_check_idle(bin) || cache->last_flushed == keep)
            continue;
        bin->target = 0;
        if (bin->count > 0)
            flush(cache, cache->last_flushed, bin->count);
    }
}

/*
 * Returns the bin with the most bytes, or `keep` if no other bin has blocks. Compares bytes, not
 * blocks: half a bin of tiny blocks has few bytes, and the next free would overflow again.
 */
static unsigned largest_bin(const struct cache *cache, unsigned keep) {
    unsigned largest = keep;
    uint64_t most = 0;
    for (unsigned at = 0; at < BINS; at++) {
        const struct bin *bin = &cache->bins[at];
        /* exact for small blocks, a lower bound for large ones */
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
    for (unsigned at = first; cache->bytes > 0 && at < BINS; at++)
        if (cache->bins[at].count > 0)
            flush(cache, at, cache->bins[at].count);
}

/* --- seizing: by other threads, with the pool's lock --- */

/* Ends the bias of all caches of a pool, after the kernel refused membarrier() (biased.h). */
static void end_bias(void *argument) {
    struct pool *pool = argument;
    for (struct cache *cache = atomic_load(&pool->caches); cache; cache = cache->next_in_pool)
        biased_ask(&cache->lock);
    biased_wait_for_stores();
    for (struct cache *cache = atomic_load(&pool->caches); cache; cache = cache->next_in_pool)
        biased_end(&cache->lock);
}

void cache_seize_list(struct pool *pool, struct biased *first) {
    ASSERT_HELD(&pool->source.lock);
    biased_seize(first, end_bias, pool);
}

void cache_seize(struct cache *cache) {
    cache_seize_list(cache->pool, cache_listed(cache, NULL));
}

void cache_return(struct cache *cache) {
    biased_return(&cache->lock);
}
