/*
 * Free: makes a live block cached, puts it into a cache or the pool, and may record an event.
 *
 * The calling thread enters its own cache, or the common one if it has none, with the biased lock.
 * free_slow(), pool_reclaim() and owner_id_share() take the pool's lock. A free waits for work of
 * the device only in sync_in_free(); sync/sync.h has the cases.
 * Invariant: only one free changes a block's header from live to cached; a second free fails.
 * Callers: the free hooks (src/driver), gpucache replay, tests.
 *
 *  1. pool_free()            a small block of the calling thread, into its cache
 *  2. free_shared_block()    a small block of a shared owner ID, into the thread's cache
 *  3. free_general()         all others: large or externally visible blocks, other pools, an
 *                            exclusive owner ID of another thread, wrong addresses
 *  4. free_slow()            under the pool's lock: full caches, uncached blocks, events
 */
#include "pool/internal.h"

#include "pool/lookup.h"
#include "tcache/owner_id.h"

#include <errno.h>

/*
 * Counts a free of `freed` bytes. Returns true if the free need not consider recording an event:
 * without pressure, or if this thread freed too little since any thread last recorded one in a
 * free. Inside the cache.
 */
static inline bool event_is_too_early(const struct source *source, struct cache *cache,
                                      uint64_t freed) {
    uint64_t pressure = atomic_load_explicit(&source->pressure, memory_order_relaxed);
    if (likely(pressure == 0))
        return true;
    if (unlikely(pressure != cache->pressure_seen)) {
        /* No free has recorded an event since pressure began: this one may. */
        bool first = !pressure_has_event(pressure);
        cache->frees_since_event = first ? FREES_PER_EVENT : 0;
        cache->bytes_since_event = first ? UINT64_MAX / 2 : 0;
        cache->pressure_seen = pressure;
    }
    uint64_t bytes = cache->bytes_since_event += freed;
    uint32_t frees = ++cache->frees_since_event;
    return bytes < source->event_least || (frees < FREES_PER_EVENT && bytes <= source->event_bytes);
}

/*
 * Returns whether an event is due, after event_is_too_early() returned false. If so, restarts the
 * thread's counts. `in_cache`: blocks in the bin; 0 for an uncached block. Inside the cache.
 *
 * One event serves EVENT_FREES frees of small blocks. A bin with fewer blocks needs it earlier: the
 * thread takes the blocks of a bin in turn, and soon needs the first one again.
 */
static bool event_is_due(const struct source *source, struct cache *cache, uint32_t in_cache,
                         uint64_t freed) {
    uint32_t frees = cache->frees_since_event;
    bool due = source->event_bytes == 0 || /* mode REUSE_SYNC: every free records an event */
               freed > SMALL_MAX_BYTES || frees >= EVENT_FREES || frees >= in_cache;
    if (due) { /* even if the event cannot be recorded now */
        cache->frees_since_event = 0;
        cache->bytes_since_event = 0;
    }
    return due;
}

/*
 * The work of free_slow(). At least one holds: the block is uncached, the cache overflows, or an
 * event is due.
 */
struct slow_work {
    struct block *uncached; /* the freed block, if no cache takes it */
    uint64_t generation;    /* of the pool at the time of the free */
    unsigned bin, owner;    /* bin and owner ID of the freed block */
    bool overflows;         /* the bin or the cache has too many blocks */
    /*
     * The free calls sync_in_free(): an event is due, or there are no context events. Without
     * context events only sync_in_free() can tell whether the free has to wait.
     */
    bool records;
};

/*
 * Returns whether the thread frees a block of another owner and has a small quota. A thread that
 * gives blocks back in whole magazines needs a larger quota.
 */
static bool gives_with_little_quota(const struct cache *cache, unsigned owner) {
    return owner != cache->owner_id && quota_is_little(cache, QUOTA_GIVING_SHARE);
}

/*
 * Returns whether a bin has more than MAGAZINES_KEPT magazines beyond its target, of which some
 * should go back to the owner of the freed block. False if that is the calling thread. Inside the
 * cache.
 */
static bool has_surplus(const struct cache *cache, unsigned at, unsigned owner) {
    return owner != cache->owner_id &&
           cache->bins[at].count > cache->bins[at].target + MAGAZINES_KEPT * magazine_blocks(at);
}

/*
 * Doubles the quota of the owner whose transfer cache refused this thread's magazines, to at least
 * the bytes of one slab, as far as quota_grow() allows. If the owner has no active cache, the
 * receiver is the common cache. The pool's lock is held.
 */
static void grow_receiver(struct pool *pool, unsigned owner) {
    struct cache *receiver = owner > 0 ? owner_id_cache(owner) : pool->common;
    receiver =
        receiver->owner_id == owner && !quota_is_inactive(receiver) ? receiver : pool->common;
    quota_grow(receiver, max_u64(2 * cache_quota(receiver), PAGE_BYTES));
}

/*
 * Moves blocks to the pool until the cache fits its quota, or raises the quota. `refused`: the
 * owner's transfer cache was full, or had no quota. The pool's lock is held. Enters and leaves the
 * cache.
 */
static void apply_quota(struct pool *pool, struct cache *cache, const struct slow_work *work,
                        bool refused) {
    struct source *source = &pool->source;
    cache_enter(cache);
    struct bin *bin = &cache->bins[work->bin];
    quota_grow(cache, 0); /* activates the cache */
    if (refused)
        grow_receiver(pool, work->owner);
    if (gives_with_little_quota(cache, work->owner))
        quota_grow(cache, 2 * cache_quota(cache));
    if (has_surplus(cache, work->bin, work->owner))
        pending_add_list(source, cache_take(cache, work->bin, bin->count - bin->target).first);
    if (bin->count > CACHE_BIN_BLOCKS)
        pending_add_list(source, cache_take(cache, work->bin, bin->count / 2 + 1).first);
    if (cache->bytes > cache_quota(cache))
        quota_flush_for(cache, work->bin, 0);
    cache_leave(cache);
}

/*
 * Does the work of `work`: ships blocks to their owner's transfer cache, flushes the cache, adds
 * an uncached block to pending memory, records an event. Called with no lock, outside the cache.
 */
static __attribute__((noinline)) void free_slow(struct pool *pool, struct cache *cache,
                                                const struct slow_work *work) {
    struct source *source = &pool->source;
    bool overflows = work->overflows, refused = false;
    if (overflows) {
        cache_enter(cache);
        if (work->owner != cache->owner_id && !quota_is_inactive(cache))
            refused = !transfer_ship(cache, work->bin, work->owner);
        overflows = refused || gives_with_little_quota(cache, work->owner) ||
                    cache_overflows(cache, &cache->bins[work->bin]) ||
                    has_surplus(cache, work->bin, work->owner);
        cache_leave(cache);
    }
    if (work->uncached || overflows || source->config.reuse == REUSE_SYNC)
        lock_acquire(&source->lock);
    else if (!work->records || !lock_try(&source->lock))
        return; /* for an event alone the lock is only tried: a later free can record it */
    if (overflows)
        apply_quota(pool, cache, work, refused);
    bool large_due = false;
    if (work->uncached && work->generation == source_generation(source)) {
        large_due = block_is_large(work->uncached) &&
                    sync_event_is_due(source, block_bytes(work->uncached));
        pending_add(source, work->uncached);
    } /* with another generation the context has ended, and the block with it */
    if (work->records || large_due)
        sync_in_free(source, large_due);
    if (!work->uncached) /* else the next request releases pending blocks (try_free()) */
        pending_release(source, EVERY_STAMP);
    slow_path_end(pool);
    lock_release(&source->lock);
}

/*
 * Claims a live block of the calling thread: it becomes cached. Returns false if the block is not
 * live, or belongs to another owner or to a shared owner ID. The plain store is safe: only the
 * owner changes the state of such a block, inside its cache. Another thread may set HEADER_HAS_ID
 * at the same time (lookup.c), and the free clears that bit anyway. *header is set to the header
 * before the claim.
 */
static bool claim_as_owner(struct cache *cache, struct block *block, uint64_t *header) {
    *header = atomic_load_explicit(&block->header, memory_order_relaxed);
    if (unlikely((*header & (HEADER_STATE | HEADER_OWNER)) != cache->owned_header))
        return false;
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
        if (header_state(*header) != BLOCK_LIVE || !owner_id_is_shared(header_owner(*header)))
            return false;
    } while (!atomic_compare_exchange_strong_explicit(
        &block->header, header, (*header & (HEADER_BIN | HEADER_UNITS)) | BLOCK_CACHED,
        memory_order_acq_rel, memory_order_acquire));
    return true;
}

/* A block that this thread claimed, with its header before the claim. `cache` is entered. */
struct claimed {
    struct cache *cache;
    struct block_at at;
};

/*
 * Returns the code with which the driver refuses all calls of the calling thread, which then runs a
 * host function, or 0. Does not ask for a thread with a cache: threads of host functions get none,
 * because cuCtxGetCurrent() gives them no context (the test ctx_changes, host_function).
 */
static int refused_thread(const struct pool *pool) {
    struct backend *backend = pool->source.backend;
    return cache_last->pool || !backend->ops->thread_refused
               ? 0
               : backend->ops->thread_refused(backend);
}

/*
 * Claims the live block at an address and enters the calling thread's cache. On an error no cache
 * is entered.
 *
 *  0         claimed
 *  -ENOENT   no pool owns the address
 *  -EINVAL   no live block starts there
 *  -EAGAIN   the context ended or the block changed hands during the look-up: call again
 *  > 0       the context is broken, or the driver allows this thread no call
 *
 * The context may end between the look-up in the page map and the claim. claim() therefore
 * repeats the look-up inside the cache: pool_forget() clears the page map first and seizes the
 * caches afterwards.
 */
static int claim(uint64_t address, struct claimed *c) {
    c->at = find_block_at(address);
    if (!c->at.pool)
        return -ENOENT;
    int broken = epochs_broken(&c->at.pool->source.epochs);
    if (broken)
        return broken; /* the block stays live, as with the driver */
    if (header_state(c->at.header) != BLOCK_LIVE) {
        /* The descriptor may have been recycled during the look-up: a block counts as freed only if
         * a second look-up finds it so too. */
        struct block_at again = find_block_at(address);
        return again.pool == c->at.pool && header_state(again.header) != BLOCK_LIVE ? -EINVAL
                                                                                    : -EAGAIN;
    }
    int refused = refused_thread(c->at.pool);
    if (refused)
        return refused;
    c->cache = cache_mine(c->at.pool);
    unsigned owner = header_owner(c->at.header);
    if (owner != c->cache->owner_id && unlikely(!owner_id_is_shared(owner)))
        owner_id_share(owner);
    cache_enter(c->cache);
    struct block_at again = find_block_at(address);
    bool found = again.pool == c->at.pool && again.block == c->at.block;
    if (found && (claim_as_owner(c->cache, c->at.block, &c->at.header) ||
                  claim_shared(c->at.block, &c->at.header)))
        return 0;
    cache_leave(c->cache);
    return found && header_state(c->at.header) != BLOCK_LIVE ? -EINVAL : -EAGAIN;
}

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
    if (backend->requesters)
        requester_subtract(&backend->requesters[requester], requested);
    if (at < BINS)
        counter_add(&cache->bins[at].frees, 1);
    counter_add(&cache->large_live_bytes, -range->bytes);
    cache_count_free(cache, &cache->large_frees[stats_size_class(requested)], requested,
                     range->bytes);
    if (backend->ops->freed)
        backend->ops->freed(backend, c->at.block->address, requested);
    return range->bytes;
}

/* Counts the free of a block of any size. Returns the block's bytes. Inside the cache. */
static uint64_t count_free(const struct claimed *c) {
    struct cache *cache = c->cache;
    unsigned at = header_bin(c->at.header);
    cache->freed_others |= header_owner(c->at.header) != cache->owner_id;
    if (!c->at.slab)
        return count_free_large(c);
    cache_count_free(cache, &cache->bins[at].frees, header_requested(c->at.header),
                     header_bytes(c->at.header));
    return header_bytes(c->at.header);
}

static bool is_externally_visible(const struct claimed *c) {
    return c->at.slab ? atomic_load_explicit(&c->at.slab->externally_visible, memory_order_relaxed)
                      : range_is_externally_visible(range_of(c->at.block));
}

/*
 * Finishes the free of a claimed block: counts and stamps it, puts it into the calling thread's
 * cache or gives it to the pool, and leaves the cache. Blocks that are too large for a cache or
 * externally visible go to the pool. Returns 0, or the code of a broken context.
 */
static int finish_free(struct claimed *c) {
    struct pool *pool = c->at.pool;
    struct source *source = &pool->source;
    struct cache *cache = c->cache;
    struct slow_work work = {.generation = source_generation(source),
                             .bin = header_bin(c->at.header),
                             .owner = header_owner(c->at.header)};
    uint64_t bytes = count_free(c);
    c->at.block->stamp = epochs_stamp(&source->epochs);
    if (work.bin < BINS && !is_externally_visible(c)) {
        struct bin *bin = &cache->bins[work.bin];
        cache_push(cache, bin, c->at.block, bytes);
        work.overflows = cache_overflows(cache, bin) || has_surplus(cache, work.bin, work.owner);
    } else {
        work.uncached = c->at.block;
    }
    bool due = !event_is_too_early(source, cache, bytes) &&
               event_is_due(source, cache, work.uncached ? 0 : cache->bins[work.bin].count, bytes);
    work.records = due || !source->backend->has_events;
    cache_leave(cache);
    if (work.uncached || work.overflows || due)
        free_slow(pool, cache, &work);
    return epochs_broken(&source->epochs);
}

/*
 * Frees a block that pool_free() does not free itself. Returns as pool_free() does. Called with
 * no lock.
 */
static __attribute__((noinline)) int free_general(uint64_t address) {
    struct claimed c;
    int r = claim_any(address, &c);
    return r != 0 ? r : finish_free(&c);
}

/*
 * Frees a small block that claim_as_owner() refused: mostly one with a shared owner ID, perhaps the
 * thread's own. Entered inside the cache, which the function leaves. Returns as pool_free().
 */
static __attribute__((noinline)) int free_shared_block(struct cache *cache, struct block *block,
                                                       uint64_t address, uint64_t header) {
    struct slab *slab = slab_of(block);
    if (slab->pool == cache->pool && claim_shared(block, &header)) {
        struct claimed c = {cache, {slab->pool, slab, block, header}};
        return finish_free(&c);
    }
    cache_leave(cache);
    return free_general(address);
}

/*
 * Finishes a free whose block is in the cache already, if the cache overflows or an event may be
 * due (not `early`). Leaves the cache. Returns 0, or the code of a broken context.
 */
static __attribute__((noinline)) int free_cached(struct cache *cache, uint64_t header, bool early) {
    struct pool *pool = cache->pool;
    const struct bin *bin = cache_bin(cache, header);
    bool due = !early && event_is_due(&pool->source, cache, bin->count, header_bytes(header));
    struct slow_work work = {.bin = header_bin(header),
                             .owner = cache->owner_id,
                             .overflows = cache_overflows(cache, bin),
                             .records = due || !pool->source.backend->has_events};
    biased_leave_owned(&cache->lock);
    if (work.overflows || due)
        free_slow(pool, cache, &work);
    return epochs_broken(&pool->source.epochs);
}

/*
 * The fast path. free_shared_block() and free_general() free all other blocks. A block of another
 * pool never passes claim_as_owner(): an owner ID belongs to one cache of the process.
 */
int pool_free(uint64_t address) {
    struct cache *cache = cache_last;
    if (unlikely(address % ((uint64_t)1 << UNIT_SHIFT) != 0 || !biased_try_enter(&cache->lock)))
        return free_general(address);
    struct pool *pool = cache->pool;
    struct source *source = &pool->source;
    page_map_entry entry = page_map_get(address); /* inside the cache: see claim() */
    if (unlikely(!page_map_is_plain_slab(entry) || epochs_broken(&source->epochs))) {
        biased_leave_owned(&cache->lock);
        return free_general(address);
    }
    struct block *block = block_fetch(slab_block(page_map_plain_slab(entry), address));
    uint64_t header;
    if (unlikely(!claim_as_owner(cache, block, &header)))
        return free_shared_block(cache, block, address, header);
    struct bin *bin = cache_bin(cache, header);
    cache_count_free(cache, &bin->frees, header_requested(header), header_bytes(header));
    block->stamp = epochs_stamp(&source->epochs);
    cache_push(cache, bin, block, header_bytes(header));
    bool early = event_is_too_early(source, cache, header_bytes(header));
    if (unlikely(!early || cache_overflows(cache, bin)))
        return free_cached(cache, header, early);
    biased_leave_owned(&cache->lock);
    return 0;
}

/* --- deferred frees --- */

/*
 * Stamps the block with the safe epoch, so that pool_reclaim() makes it free without an event. A
 * lower stamp would be wrong: the block may have been handed out behind a barrier, and its segment
 * must not go back to the driver before the barrier's event has completed.
 */
int pool_defer_free(uint64_t address, struct pool_deferred *deferred) {
    struct claimed c;
    struct pool *pool = page_map_pool(address);
    if (!pool)
        return -ENOENT;
    /* pool_exceeds() may find the block no longer live, and not yet in deferred_bytes */
    atomic_fetch_add(&pool->deferring, 1);
    int r = claim_any(address, &c);
    if (r == 0) {
        uint64_t stamp = atomic_load_explicit(&c.at.pool->source.epochs.safe, memory_order_acquire);
        *deferred = (struct pool_deferred){.pool = c.at.pool,
                                           .generation = source_generation(&c.at.pool->source)};
        deferred->bytes = count_free(&c);
        deferred->block = c.at.block;
        c.at.block->stamp = stamp;
        atomic_fetch_add(&c.at.pool->deferred_bytes, deferred->bytes);
        cache_leave(c.cache);
    }
    atomic_fetch_sub(&pool->deferring, 1);
    return r;
}

void pool_reclaim(const struct pool_deferred *deferred) {
    struct pool *pool = deferred->pool;
    struct source *source = &pool->source;
    lock_acquire(&source->lock);
    if (deferred->generation == source_generation(source)) {
        pending_add(source, deferred->block);
        atomic_fetch_sub(&pool->deferred_bytes, deferred->bytes);
        atomic_fetch_add(&pool->reclaims, 1);
        slow_path_end(pool);
    }
    lock_release(&source->lock);
}
