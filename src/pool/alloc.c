/*
 * Allocation: the fast path, and the call of the slow path.
 *
 * The calling thread enters its cache with the biased lock for steps 1 and 2 of the ladder
 * (slow_path.c). Step 2 may also take the lock of a transfer cache. Steps 3, 4 and 22 begin with no
 * lock. Steps 5 to 21 need the pool's lock, source.lock, and release it around calls that can
 * block. Steps 1 to 4 wait for no work of the device.
 * Invariant: a block becomes live inside the cache that hands it out, so only one thread gets it.
 * Callers: the allocation hooks (src/driver), gpucache replay, tests.
 */
#include "pool/internal.h"

#include "tcache/hand_out.h"

#include <errno.h>

/* Serves all requests that pool_alloc() does not serve itself. Returns as pool_alloc() does. */
static __attribute__((noinline)) int alloc_general(struct pool *pool, uint64_t bytes,
                                                   uint64_t *address) {
    struct source *source = &pool->source;
    int broken = epochs_broken(&source->epochs);
    if (broken || bytes == 0)
        return broken ? broken : -EINVAL;
    if (bytes > source->backend->capacity) {
        int code = pool_health(pool); /* a fault's code comes first, as in the slow path */
        return code ? code : -ENOMEM;
    }
    struct alloc_request request = {.large = bytes > SMALL_MAX_BYTES};
    if (request.large) {
        request.bytes = round_up(bytes, LARGE_UNIT);
        request.bin = bin_of_large(request.bytes);
        request.requester =
            source->backend->ops->requester ? source->backend->ops->requester() : REQUESTER_UNKNOWN;
    } else {
        request.bin = size_class_of(bytes);
        request.bytes = size_class_bytes(request.bin);
    }
    struct cache *cache = cache_mine(pool);
    bool hit = cache_alloc(cache, &request, bytes, address);
    int r = likely(hit) ? 0 : slow_path_alloc(pool, cache, &request, bytes, address);
    if (unlikely(request.large) && request.block && source->backend->ops->allocated)
        source->backend->ops->allocated(source->backend, *address, bytes);
    return r;
}

/*
 * Step 1 of the ladder (slow_path.c): hands out the head of the bin in the calling thread's
 * cache.
 */
int pool_alloc(struct pool *pool, uint64_t bytes, uint64_t *address) {
    struct source *source = &pool->source;
    struct cache *cache = cache_last;
    if (unlikely(bytes - 1 >= SMALL_MAX_BYTES || cache->pool != pool ||
                 epochs_broken(&source->epochs) || !biased_try_enter(&cache->lock)))
        return alloc_general(pool, bytes, address);
    uint64_t safe = atomic_load_explicit(&source->epochs.safe, memory_order_acquire);
    struct bin *bin = &cache->bins[size_class_of(bytes)];
    uint64_t header;
    struct block *block = cache_pop_from(cache, bin, safe, &header);
    if (unlikely(!block)) {
        biased_leave_owned(&cache->lock);
        return alloc_general(pool, bytes, address);
    }
    *address = hand_out_small(cache, bin, block, header, bytes);
    biased_leave_owned(&cache->lock);
    return 0;
}
