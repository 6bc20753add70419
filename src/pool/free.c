/*
 * Free: who owns the block, where it goes, and whether the free records an event.
 *
 * The calling thread enters its own cache with the biased lock. free_slow() takes the pool's lock.
 * Invariant: a block's header changes from live to cached once, so a second free of it fails.
 * Callers: the free hooks (src/driver), gpucache replay, tests.
 *
 *  1. pool_free()            a small block of the calling thread, into its cache
 *  2. free_of_other_owner()  a small block of another thread, into the calling thread's cache
 *  3. free_general()         all others: large blocks, other pools, wrong addresses
 *  4. free_slow()            under the pool's lock: full caches, uncached blocks, events
 */
#include "pool/internal.h"

#include "pool/lookup.h"
#include "tcache/owner_id.h"

#include <errno.h>

/*
 * Returns true if a free of `freed` bytes need not even consider recording an event: without
 * pressure, or if this thread freed too little since any thread recorded the last event in a
 * free. Counts the free. Inside the cache.
 */
static inline bool is_too_early(const struct source *source, struct cache *cache, uint64_t freed) {
    uint64_t pressure = atomic_load_explicit(&source->pressure, memory_order_relaxed);
    if (likely(pressure == 0)) {
        return true;
    }
    if (unlikely(pressure != cache->pressure_seen)) {
        bool first = pressure_is_new(pressure);
        cache->frees_since_event = first ? FREES_PER_EVENT : 0;
        cache->bytes_since_event = first ? UINT64_MAX / 2 : 0;
        cache->pressure_seen = pressure;
    }
    uint64_t bytes = cache->bytes_since_event += freed;
    uint32_t frees = ++cache->frees_since_event;
    return bytes < source->event_least || (frees < FREES_PER_EVENT && bytes <= source->event_bytes);
}

/*
 * Returns whether an event is due, after is_too_early() returned false. `in_cache` is the count
 * of the block's bin; 0 for an uncached block. Inside the cache.
 */
static bool is_due(const struct source *source, struct cache *cache, uint32_t in_cache,
                   uint64_t freed) {
    uint32_t frees = cache->frees_since_event;
    bool due = source->event_bytes == 0 || /* the policy wants an event in every free */
               freed > SMALL_MAX_BYTES || frees >= EVENT_FREES || frees >= in_cache;
    if (due) { /* even if the event cannot be recorded now */
        cache->frees_since_event = 0;
        cache->bytes_since_event = 0;
    }
    return due;
}

/*
 * The work that is left after the cache was left. At least one holds: the block is uncached, the
 * cache overflows, or an event is due.
 */
struct rest {
    struct block *uncached;
    uint64_t generation; /* of the pool at the time of the free */
    unsigned bin, owner;
    bool overflows;
    /*
     * The free calls sync_in_free(): an event is due, or there are no context events. Then only
     * sync_in_free() can tell whether it has to wait.
     */
    bool records;
};

/*
 * Returns whether a bin has more than MAGAZINES_KEPT magazines beyond its target. Always false for
 * blocks of the calling thread: others should go back to their owner. Inside the cache.
 */
static bool has_magazine(const struct cache *cache, unsigned at, unsigned owner) {
    return owner != cache->owner_id &&
           cache->bins[at].count > cache->bins[at].target + MAGAZINES_KEPT * magazine_blocks(at);
}

/*
 * Raises the quota of the owner whose transfer cache refused this thread's magazines, at once to a
 * slab. An owner without an active cache is replaced by the pool's common cache. The pool's lock is
 * held.
 */
static void grow_receiver(struct pool *pool, unsigned owner) {
    struct cache *receiver = owner > 0 ? owner_id_cache(owner) : pool->common;
    receiver =
        receiver->owner_id == owner && !quota_is_inactive(receiver) ? receiver : pool->common;
    quota_grow(receiver, max_u64(2 * cache_quota(receiver), PAGE_BYTES));
}

/*
 * Moves blocks to the pool until the cache fits its quota, or raises the quota. `refused`: the
 * owner's transfer cache was full. The pool's lock is held; enters the cache.
 */
static void apply_quota(struct pool *pool, struct cache *cache, const struct rest *rest,
                        bool refused) {
    struct source *source = &pool->source;
    cache_enter(cache);
    struct bin *bin = &cache->bins[rest->bin];
    quota_grow(cache, 0);
    if (refused) {
        grow_receiver(pool, rest->owner);
    }
    if (rest->owner != cache->owner_id && quota_is_little(cache, QUOTA_GIVING_SHARE)) {
        quota_grow(cache, 2 * cache_quota(cache));
    }
    if (has_magazine(cache, rest->bin, rest->owner)) {
        pending_add_list(source, cache_take(cache, rest->bin, bin->count - bin->target).first);
    }
    if (bin->count > CACHE_BIN_BLOCKS) {
        pending_add_list(source, cache_take(cache, rest->bin, bin->count / 2 + 1).first);
    }
    if (cache->bytes > cache_quota(cache)) {
        quota_flush_for(cache, rest->bin, 0);
    }
    cache_leave(cache);
}

/*
 * Does the work of `rest`: ships blocks to their owner's transfer cache, flushes the cache, adds
 * an uncached block to pending memory, records an event. Called with no lock, outside the cache.
 */
static __attribute__((noinline)) void free_slow(struct pool *pool, struct cache *cache,
                                                const struct rest *rest) {
    struct source *source = &pool->source;
    bool overflows = rest->overflows, refused = false;
    if (overflows) {
        cache_enter(cache);
        if (rest->owner != cache->owner_id && !quota_is_inactive(cache)) {
            refused = !transfer_ship(cache, rest->bin, rest->owner);
        }
        overflows =
            refused ||
            (rest->owner != cache->owner_id && quota_is_little(cache, QUOTA_GIVING_SHARE)) ||
            cache_overflows(cache, &cache->bins[rest->bin]) ||
            has_magazine(cache, rest->bin, rest->owner);
        cache_leave(cache);
    }
    if (rest->uncached || overflows || source->config.reuse == REUSE_SYNC) {
        lock_acquire(&source->lock);
    } else if (!rest->records || !lock_try(&source->lock)) {
        return; /* for an event alone the lock is only tried: a later free can record it */
    }
    if (overflows) {
        apply_quota(pool, cache, rest, refused);
    }
    bool due = false;
    if (rest->uncached && rest->generation == source_generation(source)) {
        due = block_is_large(rest->uncached) &&
              sync_event_is_due(source, block_bytes(rest->uncached));
        pending_add(source, rest->uncached);
    }
    if (rest->records || due) {
        sync_in_free(source, due);
    }
    if (!rest->uncached) {
        pending_release(source, EVERY_STAMP);
    }
    peaks_update(pool);
    lock_release(&source->lock);
}

/*
 * Claims a live block of the calling thread: it becomes cached. Returns false if the block is not
 * live, or belongs to another owner or to a shared owner ID. The plain store is safe: only the
 * owner writes the header, inside its cache. *header is set to the header before the claim.
 */
static bool claim_as_owner(struct cache *cache, struct block *block, uint64_t *header) {
    *header = atomic_load_explicit(&block->header, memory_order_relaxed);
    if (unlikely((*header & (HEADER_STATE | HEADER_OWNER)) != cache->owned_header)) {
        return false;
    }
    block_become(block, (*header & (HEADER_BIN | HEADER_UNITS)) | BLOCK_CACHED);
    return true;
}

/*
 * Claims a live block whose owner ID is shared, with a compare and swap. Returns false if the
 * block is not live or its ID is not shared. *header is the last value read, on entry and on
 * return.
 */
static bool claim_shared(struct block *block, uint64_t *header) {
    do {
        if (header_state(*header) != BLOCK_LIVE || !owner_id_is_shared(header_owner(*header))) {
            return false;
        }
    } while (!atomic_compare_exchange_strong_explicit(
        &block->header, header, (*header & (HEADER_BIN | HEADER_UNITS)) | BLOCK_CACHED,
        memory_order_acq_rel, memory_order_acquire));
    return true;
}

/* A block that was live and that this thread claimed, with its last header. `cache` is entered. */
struct claimed {
    struct cache *cache;
    struct start at;
};

/*
 * Claims the live block at an address and enters the calling thread's cache. On an error no cache
 * is entered.
 *
 *  0         claimed
 *  -ENOENT   no pool owns the address
 *  -EINVAL   no live block starts there
 *  -EAGAIN   the context ended or the block changed hands during the look-up: call again
 *  > 0       the context is broken
 *
 * The context may end between the look-up in the page map and the claim. So the look-up is
 * repeated inside the cache: pool_forget() clears the page map first and seizes the caches
 * afterwards.
 */
static int claim(uint64_t address, struct claimed *c) {
    c->at = find_start(address);
    if (!c->at.pool) {
        return -ENOENT;
    }
    int broken = epochs_broken(&c->at.pool->source.epochs);
    if (broken) {
        return broken; /* the block stays live, as with the driver */
    }
    if (header_state(c->at.header) != BLOCK_LIVE) {
        struct start again = find_start(address);
        return again.pool == c->at.pool && header_state(again.header) != BLOCK_LIVE ? -EINVAL
                                                                                    : -EAGAIN;
    }
    c->cache = cache_mine(c->at.pool);
    if (header_owner(c->at.header) != c->cache->owner_id) {
        owner_id_share_once(header_owner(c->at.header));
    }
    cache_enter(c->cache);
    struct start again = find_start(address);
    bool found = again.pool == c->at.pool && again.block == c->at.block;
    if (found && (claim_as_owner(c->cache, c->at.block, &c->at.header) ||
                  claim_shared(c->at.block, &c->at.header))) {
        return 0;
    }
    cache_leave(c->cache);
    return found && header_state(c->at.header) != BLOCK_LIVE ? -EINVAL : -EAGAIN;
}

/* Calls claim() until it returns something else than -EAGAIN. */
static int claim_any(uint64_t address, struct claimed *c) {
    int r;
    do {
        r = claim(address, c);
    } while (r == -EAGAIN);
    return r;
}

/*
 * Counts the free of a large block and tells the backend. Returns the block's bytes. Inside the
 * cache.
 */
static __attribute__((noinline)) uint64_t count_free_large(const struct claimed *c) {
    struct cache *cache = c->cache;
    struct backend *backend = c->at.pool->source.backend;
    struct range *range = range_of(c->at.block);
    uint64_t requested = atomic_load_explicit(&range->requested, memory_order_relaxed);
    unsigned at = header_bin(c->at.header), requester = header_requester(c->at.header);
    if (backend->requesters) {
        requester_subtract(&backend->requesters[requester], requested);
    }
    if (at < BINS) {
        counter_add(&cache->bins[at].frees, 1);
    }
    cache_count_free(cache, &cache->large_frees[stats_class(requested)], requested, range->bytes);
    if (backend->ops->freed) {
        backend->ops->freed(backend, c->at.block->address, requested);
    }
    return range->bytes;
}

/* Counts the free of a block of any size. Returns the block's bytes. Inside the cache. */
static uint64_t count_free(const struct claimed *c) {
    struct cache *cache = c->cache;
    unsigned at = header_bin(c->at.header);
    cache->freed_others |= header_owner(c->at.header) != cache->owner_id;
    if (!c->at.slab) {
        return count_free_large(c);
    }
    cache_count_free(cache, &cache->bins[at].frees, header_requested(c->at.header),
                     header_bytes(c->at.header));
    return header_bytes(c->at.header);
}

static bool is_externally_visible(const struct claimed *c) {
    return c->at.slab ? atomic_load_explicit(&c->at.slab->externally_visible, memory_order_relaxed)
                      : range_is_externally_visible(range_of(c->at.block));
}

/*
 * Puts a claimed block into the calling thread's cache, or gives it to the pool, and leaves the
 * cache. Blocks that are too large for a cache or externally visible go to the pool. Returns 0,
 * or the code of a broken context.
 */
static int put_in_cache(struct claimed *c) {
    struct pool *pool = c->at.pool;
    struct source *source = &pool->source;
    struct cache *cache = c->cache;
    struct rest rest = {.generation = source_generation(source),
                        .bin = header_bin(c->at.header),
                        .owner = header_owner(c->at.header)};
    uint64_t bytes = count_free(c);
    c->at.block->stamp = epochs_stamp(&source->epochs);
    if (rest.bin < BINS && !is_externally_visible(c)) {
        struct bin *bin = &cache->bins[rest.bin];
        cache_push(cache, bin, c->at.block, bytes);
        rest.overflows = cache_overflows(cache, bin) || has_magazine(cache, rest.bin, rest.owner);
    } else {
        rest.uncached = c->at.block;
    }
    bool due = !is_too_early(source, cache, bytes) &&
               is_due(source, cache, rest.uncached ? 0 : cache->bins[rest.bin].count, bytes);
    rest.records = due || !source->backend->has_events;
    cache_leave(cache);
    if (rest.uncached || rest.overflows || due) {
        free_slow(pool, cache, &rest);
    }
    return epochs_broken(&source->epochs);
}

/*
 * Frees a block that pool_free() does not free itself. Returns as pool_free() does. Called with
 * no lock.
 */
static __attribute__((noinline)) int free_general(uint64_t address) {
    struct claimed c;
    int r = claim_any(address, &c);
    return r != 0 ? r : put_in_cache(&c);
}

/*
 * Frees a small block that the calling thread does not own. `cache` is entered on entry, and
 * left. Returns as pool_free() does.
 */
static __attribute__((noinline)) int free_of_other_owner(struct cache *cache, struct block *block,
                                                         uint64_t address, uint64_t header) {
    struct slab *slab = slab_of(block);
    if (slab->pool == cache->pool && claim_shared(block, &header)) {
        struct claimed c = {cache, {slab->pool, slab, block, header}};
        return put_in_cache(&c);
    }
    cache_leave(cache);
    return free_general(address);
}

/*
 * Finishes a free of pool_free() whose block is in the cache already: the cache overflows, or an
 * event may be due. Leaves the cache. Returns 0, or the code of a broken context.
 */
static __attribute__((noinline)) int free_rest(struct cache *cache, uint64_t header, bool early) {
    struct pool *pool = cache->pool;
    const struct bin *bin = cache_bin(cache, header);
    bool due = !early && is_due(&pool->source, cache, bin->count, header_bytes(header));
    struct rest rest = {.bin = header_bin(header),
                        .owner = cache->owner_id,
                        .overflows = cache_overflows(cache, bin),
                        .records = due || !pool->source.backend->has_events};
    biased_leave_owned(&cache->lock);
    if (rest.overflows || due) {
        free_slow(pool, cache, &rest);
    }
    return epochs_broken(&pool->source.epochs);
}

/* The fast path: a small block that the calling thread's cache handed out. */
int pool_free(uint64_t address) {
    struct cache *cache = cache_last;
    if (unlikely(address % ((uint64_t)1 << UNIT_SHIFT) != 0 || !biased_try_enter(&cache->lock))) {
        return free_general(address);
    }
    struct pool *pool = cache->pool;
    struct source *source = &pool->source;
    page_map_entry entry = page_map_get(address); /* inside the cache: see claim() */
    if (unlikely(!page_map_is_plain_slab(entry) || epochs_broken(&source->epochs))) {
        biased_leave_owned(&cache->lock);
        return free_general(address);
    }
    struct block *block = block_fetch(slab_block(page_map_plain_slab(entry), address));
    uint64_t header;
    if (unlikely(!claim_as_owner(cache, block, &header))) {
        return free_of_other_owner(cache, block, address, header);
    }
    struct bin *bin = cache_bin(cache, header);
    cache_count_free(cache, &bin->frees, header_requested(header), header_bytes(header));
    block->stamp = epochs_stamp(&source->epochs);
    cache_push(cache, bin, block, header_bytes(header));
    bool early = is_too_early(source, cache, header_bytes(header));
    if (unlikely(!early || cache_overflows(cache, bin))) {
        return free_rest(cache, header, early);
    }
    biased_leave_owned(&cache->lock);
    return 0;
}

/* --- deferred frees --- */

/*
 * The program may have got the block behind a barrier, before that barrier's event completed. So
 * the block gets the safe epoch as its stamp: it is as safe as any block handed out by now, and
 * its work completes no earlier.
 */
int pool_defer_free(uint64_t address, struct pool_deferred *retired) {
    struct claimed c;
    struct pool *pool = page_map_owner(address);
    if (!pool) {
        return -ENOENT;
    }
    /* the block is neither live nor counted for a moment: see pool_exceeds() */
    atomic_fetch_add(&pool->deferring, 1);
    int r = claim_any(address, &c);
    if (r == 0) {
        uint64_t stamp = atomic_load_explicit(&c.at.pool->source.epochs.safe, memory_order_acquire);
        *retired = (struct pool_deferred){.pool = c.at.pool,
                                          .generation = source_generation(&c.at.pool->source)};
        retired->bytes = count_free(&c);
        retired->block = c.at.block;
        c.at.block->stamp = stamp;
        atomic_fetch_add(&c.at.pool->deferred_bytes, retired->bytes);
        cache_leave(c.cache);
    }
    atomic_fetch_sub(&pool->deferring, 1);
    return r;
}

void pool_reclaim(const struct pool_deferred *retired) {
    struct pool *pool = retired->pool;
    struct source *source = &pool->source;
    lock_acquire(&source->lock);
    if (retired->generation == source_generation(source)) {
        pending_add(source, retired->block);
        atomic_fetch_sub(&pool->deferred_bytes, retired->bytes);
        atomic_fetch_add(&pool->reclaims, 1);
        peaks_update(pool);
    }
    lock_release(&source->lock);
}
