/*
 * Transfer caches: magazines of freed blocks on their way to the owner (transfer.h).
 *
 * Each transfer cache has its own lock. The caller of transfer_would_take(), transfer_put() and the
 * static functions holds it. The other functions take it, except transfer_start(), which
 * initialises it. transfer_empty() and transfer_forget() need the pool's lock too. No function
 * waits for work. Invariant: transfer->bytes is the sum over its magazines. Callers: free.c ships
 * magazines, hand_out.h takes blocks, and slow_path.c asks for their stamp. quota.c sets owner IDs
 * and empties transfer caches, pool.c forgets them after the end of a context, and owner.c starts
 * them.
 */
#include "tcache/internal.h"
#include "tcache/owner_id.h"

void transfer_start(struct transfer *transfer, struct cache *cache) {
    transfer->cache = cache;
    lock_start(&transfer->lock, LOCK_TRANSFER);
}

void transfer_set_owner_id(struct transfer *transfer, unsigned owner_id) {
    lock_acquire(&transfer->lock);
    transfer->owner_id = owner_id;
    lock_release(&transfer->lock);
}

struct transfer *transfer_lock(struct pool *pool, unsigned owner_id) {
    struct transfer *common = &pool->common->transfer;
    struct transfer *transfer = owner_id > 0 ? &owner_id_cache(owner_id)->transfer : common;
    lock_acquire(&transfer->lock);
    if (transfer->owner_id != owner_id) { /* the owner's thread ended, or its cache is inactive */
        lock_release(&transfer->lock);
        transfer = common;
        lock_acquire(&transfer->lock);
    }
    return transfer;
}

bool transfer_would_take(const struct transfer *transfer, uint64_t bytes) {
    return !is_ablated(ABLATION_TRANSFER) && transfer->count < TRANSFER_MAGAZINES &&
           counter_get(&transfer->bytes) + bytes <= cache_quota(transfer->cache);
}

/* Returns magazine `i` of the ring; 0 is the oldest. With the transfer cache's lock. */
static struct magazine *magazine_at(struct transfer *transfer, uint32_t i) {
    return &transfer->magazines[(transfer->first + i) % TRANSFER_MAGAZINES];
}

void transfer_put(struct transfer *transfer, const struct magazine *magazine) {
    *magazine_at(transfer, transfer->count++) = *magazine;
    counter_add(&transfer->bytes, magazine->bytes);
}

/*
 * Removes magazine `i` and returns it. Moves all older magazines by one: cheap enough, because the
 * search that found `i` has read them. With the transfer cache's lock.
 */
static struct magazine take_out(struct transfer *transfer, uint32_t i) {
    struct magazine taken = *magazine_at(transfer, i);
    for (; i > 0; i--)
        *magazine_at(transfer, i) = *magazine_at(transfer, i - 1);
    transfer->first = (transfer->first + 1) % TRANSFER_MAGAZINES;
    transfer->count--;
    counter_add(&transfer->bytes, -taken.bytes);
    return taken;
}

/* --- from the freeing thread to the owner --- */

/*
 * Moves up to `count` blocks of a bin to a transfer cache, in several magazines, so that the first
 * ones are safe before the last. A bin does not separate owners: some of the blocks may be those of
 * a third thread. Returns false if the transfer cache is full or inactive. Inside the cache, with
 * the transfer cache's lock.
 */
static bool ship_magazines(struct cache *cache, struct transfer *transfer, unsigned at,
                           uint32_t count) {
    uint32_t each = magazine_blocks(at);
    while (count > 0 && cache->bins[at].count > 0) {
        struct magazine magazine = cache_take(cache, at, (uint32_t)min_u64(count, each));
        if (!transfer_would_take(transfer, magazine.bytes)) {
            cache_push_magazine(cache, at, &magazine);
            return false;
        }
        transfer_put(transfer, &magazine);
        count -= magazine.count;
    }
    return true;
}

bool transfer_ship(struct cache *cache, unsigned at, unsigned owner_id) {
    struct bin *bin = &cache->bins[at];
    struct transfer *transfer = transfer_lock(cache->pool, owner_id);
    uint32_t each = magazine_blocks(at);
    uint32_t whole = bin->count > bin->target ? (bin->count - bin->target) / each * each : 0;
    bool accepted = ship_magazines(cache, transfer, at, whole);
    bool full = cache->bytes > cache_quota(cache);
    for (unsigned other = 0; accepted && full && other < BINS; other++) {
        bin = &cache->bins[other];
        if (bin->count > 0 && cache_bin_check_idle(bin))
            accepted = ship_magazines(cache, transfer, other, bin->count);
    }
    lock_release(&transfer->lock);
    return accepted;
}

/* --- from the transfer cache to the owner --- */

/*
 * Returns the oldest magazine whose first block fits the request, safe or not, or NULL. Sets *at to
 * the magazine's index in the ring. With the transfer cache's lock.
 */
static struct magazine *find(struct transfer *transfer, const struct alloc_request *request,
                             uint32_t *at) {
    unsigned last = request_last_bin(request, request->over_budget);
    for (uint32_t i = 0; i < transfer->count; i++) {
        struct magazine *magazine = magazine_at(transfer, i);
        if (request->bin <= magazine->bin && magazine->bin <= last &&
            (!request->large || block_bytes(magazine->first) >= request->bytes)) {
            *at = i;
            return magazine;
        }
    }
    return NULL;
}

/*
 * Moves magazines, oldest first, to the cache, so that later requests hit the cache. Stops at the
 * first magazine that is not safe or would exceed the quota. Inside the cache, with the transfer
 * cache's lock.
 */
static void take_safe(struct transfer *transfer, struct cache *cache, uint64_t safe) {
    uint64_t most = cache_quota(cache);
    while (transfer->count > 0) {
        const struct magazine *oldest = magazine_at(transfer, 0);
        if (oldest->stamp > safe || cache->bytes + oldest->bytes > most)
            break;
        block_fetch(oldest->first);
        cache_push_magazine(cache, oldest->bin, oldest);
        take_out(transfer, 0);
    }
}

/* Removes and returns the first block of a magazine in the ring. Lock as for take_safe(). */
static struct block *take_first(struct transfer *transfer, struct magazine *magazine) {
    struct block *block = magazine->first;
    uint64_t bytes = block_bytes(block);
    magazine->first = block->next;
    magazine->count--;
    magazine->bytes -= bytes;
    counter_add(&transfer->bytes, -bytes);
    return block;
}

/*
 * Moves safe magazines to the cache and takes a block for the request there. If none fits, takes
 * one from the oldest magazine that fits, but only if this magazine is safe. take_safe() leaves
 * safe magazines behind an unsafe one, or for lack of quota. Moves the magazine's other blocks to
 * the cache, unless the cache is inactive: such a cache has no blocks. Inside the cache, with the
 * transfer cache's lock.
 */
static struct block *take_from(struct transfer *transfer, struct cache *cache,
                               const struct alloc_request *request, uint64_t safe) {
    take_safe(transfer, cache, safe);
    uint32_t at;
    struct block *block = cache_find(cache, request, safe);
    struct magazine *found = block ? NULL : find(transfer, request, &at);
    if (found && found->stamp <= safe) {
        block = take_first(transfer, found);
        if (found->count == 0 || !quota_is_inactive(cache)) {
            struct magazine rest = take_out(transfer, at);
            if (rest.count > 0)
                cache_push_magazine(cache, rest.bin, &rest);
        }
    }
    return block;
}

struct block *transfer_take(struct cache *cache, const struct alloc_request *request,
                            uint64_t safe) {
    struct transfer *const transfers[] = {&cache->transfer, &cache->pool->common->transfer};
    struct block *block = NULL;
    for (unsigned i = 0; i < 2 && !block; i++) {
        if (counter_get(&transfers[i]->bytes) > 0) {
            lock_acquire(&transfers[i]->lock);
            block = take_from(transfers[i], cache, request, safe);
            lock_release(&transfers[i]->lock);
        }
    }
    return block;
}

uint64_t transfer_stamp(struct cache *cache, const struct alloc_request *request) {
    struct transfer *const transfers[] = {&cache->transfer, &cache->pool->common->transfer};
    uint64_t stamp = 0;
    for (unsigned i = 0; i < 2 && stamp == 0; i++) {
        if (counter_get(&transfers[i]->bytes) > 0) {
            uint32_t at;
            lock_acquire(&transfers[i]->lock);
            const struct magazine *found = find(transfers[i], request, &at);
            stamp = found ? found->stamp : 0;
            lock_release(&transfers[i]->lock);
        }
    }
    return stamp;
}

bool transfer_empty(struct transfer *transfer) {
    lock_acquire(&transfer->lock);
    bool any = transfer->count > 0;
    while (transfer->count > 0)
        pending_add_list(&transfer->cache->pool->source, take_out(transfer, 0).first);
    lock_release(&transfer->lock);
    return any;
}

void transfer_forget(struct transfer *transfer) {
    lock_acquire(&transfer->lock);
    transfer->count = 0;
    counter_set(&transfer->bytes, 0);
    lock_release(&transfer->lock);
}
