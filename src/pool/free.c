/*
 * Freeing: whose block it is, where it goes, and whether the free has to leave an event behind.
 */
#include "pool/internal.h"

#include "pool/page_map.h"

#include <errno.h>

/* Tight, an event is due when a thread has freed more than order_event_bytes() since the last one, or */
#define FREES_PER_CLOSE 64    /* so many blocks, */
#define CLOSE_LEAST_SHARE 256 /* if they are one part in this of the budget. */

/*
 * Whether an event on time is due in this free: the gear is tight, and either nobody has recorded one
 * since it became so, or this thread has freed enough since somebody last did. Inside the cache.
 */
static inline bool is_due(const struct pool *pool, struct cache *cache, uint64_t freed) {
    uint64_t tight = atomic_load_explicit(&pool->tight, memory_order_relaxed);
    if (likely(tight == 0)) {
        return false;
    }
    uint64_t on_time = atomic_load_explicit(&pool->epochs.on_time, memory_order_relaxed);
    if (on_time != cache->on_time_seen || tight != cache->tight_seen) {
        bool first = tight != cache->tight_seen && on_time < tight;
        cache->frees_since_close = 0;
        cache->bytes_since_close = first ? CLOSE_BYTES : 0;
        cache->on_time_seen = on_time;
        cache->tight_seen = tight;
    }
    cache->frees_since_close++;
    cache->bytes_since_close += freed;
    uint64_t budget = atomic_load_explicit(&pool->budget, memory_order_relaxed);
    uint64_t bytes = cache->bytes_since_close;
    bool due = pool->config.reuse == POOL_SYNC || bytes > order_event_bytes(budget) ||
               (cache->frees_since_close >= FREES_PER_CLOSE && bytes >= budget / CLOSE_LEAST_SHARE);
    if (unlikely(due)) { /* whether or not it can be recorded now */
        cache->frees_since_close = 0;
        cache->bytes_since_close = 0;
    }
    return due;
}

/* Without context events a free looks for itself whether it has to wait. */
static bool may_order(const struct pool *pool, bool due) {
    return due || !pool->backend->has_events;
}

/*
 * Takes the pool's lock if there is anything to do under it. If that is only an event, and somebody
 * holds it, a later free will do.
 */
static bool lock_for(struct pool *pool, bool must, bool orders) {
    if (must || pool->config.reuse == POOL_SYNC) {
        pthread_mutex_lock(&pool->lock);
        return true;
    }
    return orders && pthread_mutex_trylock(&pool->lock) == 0;
}

/* The cache is full, or an event is due, or this free has to wait. */
static __attribute__((noinline)) void free_small_slow(struct pool *pool, struct cache *cache,
                                                      unsigned size_class, bool overflows,
                                                      bool orders) {
    bool gives = false, more = false;
    uint64_t parked = 0;
    if (overflows) {
        cache_enter(cache);
        parked = idle_parked(cache);
        more = parked > cache->parked;
        gives = cache_gives(cache);
        overflows = !(gives && shelf_put(cache));
        cache_leave(cache);
    }
    if (!lock_for(pool, overflows || more, orders)) {
        return;
    }
    idle_count(cache, parked);
    cache_enter(cache);
    if (overflows && gives) {
        cache_empty_bins(cache);
    } else if (cache_overflows(cache, &cache->bins[size_class])) {
        cache_make_room(cache, size_class);
    }
    cache_leave(cache);
    if (orders) {
        order_in_free(pool, false);
    }
    reclaim_usable(pool);
    budget_look(pool);
    pthread_mutex_unlock(&pool->lock);
}

/*
 * The block becomes the caller's to park: false if it is not live. The plain store is for the owner,
 * inside its cache.
 */
static bool claim_as_owner(struct cache *cache, struct block *block, uint64_t *life) {
    *life = atomic_load_explicit(&block->life, memory_order_relaxed);
    if (unlikely((*life & (LIFE_STATE | LIFE_OWNER)) != cache->owns)) {
        return false;
    }
    block_become(block, (*life & (LIFE_BIN | LIFE_UNITS)) | BLOCK_CACHED);
    return true;
}

/* Where it may be another thread's, whose number is known to be shared; `life` is what was read last. */
static bool claim_shared(struct block *block, uint64_t *life) {
    do {
        if (life_state(*life) != BLOCK_LIVE || !cache_is_shared(life_owner(*life))) {
            return false;
        }
    } while (!atomic_compare_exchange_strong_explicit(
        &block->life, life, (*life & (LIFE_BIN | LIFE_UNITS)) | BLOCK_CACHED, memory_order_acq_rel,
        memory_order_acquire));
    return true;
}

/* Books and stamps a block that was claimed. Inside the cache. */
static inline __attribute__((always_inline)) void take_back(struct pool *pool, struct cache *cache,
                                                            struct bin *bin, struct block *block,
                                                            uint64_t life) {
    cache_book_free(cache, &bin->frees, life_requested(life), life_bytes(life));
    block->stamp = epochs_stamp(&pool->epochs);
}

/* A claimed block goes into the calling thread's cache, which is entered; and left. */
static int park(struct pool *pool, struct cache *cache, struct page *page, struct block *block,
                uint64_t life) {
    struct bin *bin = &cache->bins[life_bin(life)];
    cache_serve(cache, life_owner(life));
    take_back(pool, cache, bin, block, life);
    bool outside = atomic_load_explicit(&page->reached_from_outside, memory_order_relaxed);
    if (!outside) {
        cache_park(cache, bin, block, life_bytes(life));
    }
    bool overflows = cache_overflows(cache, bin);
    bool due = is_due(pool, cache, life_bytes(life));
    uint64_t lives = pool_lives(pool);
    cache_leave(cache);
    if (outside) {
        pthread_mutex_lock(&pool->lock);
        if (lives == pool_lives(pool)) {
            reclaim_block(pool, block);
        }
        pthread_mutex_unlock(&pool->lock);
    }
    if (outside || overflows || due) {
        free_small_slow(pool, cache, life_bin(life), overflows, may_order(pool, due));
    }
    return epochs_broken(&pool->epochs);
}

/* A live block that has become the caller's, whose cache is entered. */
struct claimed {
    struct pool *pool;
    struct cache *cache;
    struct page *page; /* of a small block */
    struct block *block;
    uint64_t life;
    struct range *range; /* of a large one; else NULL */
};

/*
 * Between the look at the map and the last word about the block its context may end: so that look is
 * repeated inside the cache, which pool_forget() seizes after it has cleared the map.
 */
static int claim_small(page_map_entry entry, uint64_t address, struct claimed *c) {
    c->page = page_map_page(entry);
    c->pool = c->page->pool;
    c->cache = cache_mine(c->pool);
    c->block = page_block(c->page, address);
    c->life = block_life(c->block);
    c->range = NULL;
    if (address % ((uint64_t)1 << UNIT_SHIFT) != 0 || life_state(c->life) != BLOCK_LIVE) {
        return page_map_get(address) == entry ? -EINVAL : -EAGAIN;
    }
    if (life_owner(c->life) != c->cache->number) {
        cache_share_once(life_owner(c->life));
    }
    cache_enter(c->cache);
    bool found = page_map_get(address) == entry;
    if (found &&
        (claim_as_owner(c->cache, c->block, &c->life) || claim_shared(c->block, &c->life))) {
        return 0;
    }
    cache_leave(c->cache);
    return found && life_state(c->life) != BLOCK_LIVE ? -EINVAL : -EAGAIN;
}

static int claim_large(struct pool *pool, uint64_t address, struct claimed *c) {
    uint8_t live = RANGE_LIVE;
    c->pool = pool;
    c->cache = cache_mine(pool);
    cache_enter(c->cache);
    bool found = page_map_owner(address) == pool;
    c->range = found ? page_map_start(address) : NULL;
    if (c->range && c->range->address == address &&
        atomic_compare_exchange_strong_explicit(&c->range->state, &live, RANGE_PENDING,
                                                memory_order_acq_rel, memory_order_relaxed)) {
        return 0;
    }
    cache_leave(c->cache);
    return found ? -EINVAL : -EAGAIN;
}

/* -EAGAIN: what was there has ended, or changed hands, while that looked. */
static int claim_any(uint64_t address, struct claimed *c) {
    int r = -EAGAIN;
    while (r == -EAGAIN) {
        page_map_entry entry = page_map_get(address);
        struct pool *pool = page_map_owner(address);
        r = page_map_page(entry) ? claim_small(entry, address, c)
            : pool               ? claim_large(pool, address, c)
                                 : -ENOENT;
    }
    return r;
}

/* The block is not parked, or too much is, or an event is due. */
static void free_large_slow(struct pool *pool, struct cache *cache, struct range *unparked,
                            uint64_t lives, bool overflows, bool orders) {
    bool more = false;
    uint64_t parked = 0;
    if (overflows) {
        cache_enter(cache);
        parked = idle_parked(cache);
        more = parked > cache->parked;
        overflows = !(cache_gives(cache) && range_shelf_put(cache));
        cache_leave(cache);
    }
    if (!lock_for(pool, unparked || overflows || more, orders)) {
        return;
    }
    idle_count(cache, parked);
    cache_enter(cache);
    if (cache_overflows_with_large(cache)) {
        cache_make_room_for_large(cache);
    }
    cache_leave(cache);
    bool due = false;
    if (unparked && lives == pool_lives(pool)) {
        due = order_is_due(pool, unparked->bytes);
        reclaim_range(pool, unparked);
    }
    if (orders || due) {
        order_in_free(pool, due);
    }
    budget_look(pool);
    pthread_mutex_unlock(&pool->lock);
}

static void book_large(struct cache *cache, struct range *range) {
    uint64_t requested = atomic_load_explicit(&range->requested, memory_order_relaxed);
    cache_book_free(cache, &drawer_counting(cache, requested)->frees, requested, range->bytes);
}

/* As park(). */
static int park_large(struct pool *pool, struct cache *cache, struct range *range) {
    cache_serve(cache, range->owner);
    book_large(cache, range);
    range->stamp = epochs_stamp(&pool->epochs);
    bool parked =
        cache_keeps(cache, range->bytes) &&
        !atomic_load_explicit(&range->segment->reached_from_outside, memory_order_relaxed);
    if (parked) {
        cache_push_range(cache, range);
    }
    bool due = is_due(pool, cache, range->bytes);
    bool overflows = cache_overflows_with_large(cache);
    uint64_t lives = pool_lives(pool);
    cache_leave(cache);
    if (!parked || overflows || due) {
        free_large_slow(pool, cache, parked ? NULL : range, lives, overflows, may_order(pool, due));
    }
    return epochs_broken(&pool->epochs);
}

/* Any block that the short way below did not serve. */
static __attribute__((noinline)) int free_otherwise(uint64_t address) {
    struct claimed c;
    int r = claim_any(address, &c);
    return r != 0    ? r
           : c.range ? park_large(c.pool, c.cache, c.range)
                     : park(c.pool, c.cache, c.page, c.block, c.life);
}

/* A block of another thread's cache, or none; the caller's is entered. */
static __attribute__((noinline)) int free_anybodys(struct cache *cache, struct block *block,
                                                   uint64_t address, uint64_t life) {
    struct page *page = page_of(block);
    if (page->pool == cache->pool && claim_shared(block, &life)) {
        return park(page->pool, cache, page, block, life);
    }
    cache_leave(cache);
    return free_otherwise(address);
}

/* What the short way below leaves to do after it has parked a block. */
static __attribute__((noinline)) int free_rest(struct pool *pool, struct cache *cache,
                                               unsigned size_class, bool overflows, bool due) {
    free_small_slow(pool, cache, size_class, overflows, may_order(pool, due));
    return epochs_broken(&pool->epochs);
}

/* The short way: the calling thread asked for the block itself. */
int pool_free(uint64_t address) {
    struct cache *cache = cache_last;
    if (unlikely(address % ((uint64_t)1 << UNIT_SHIFT) != 0 || !cache_try_enter(cache))) {
        return free_otherwise(address);
    }
    page_map_entry entry = page_map_get(address); /* inside: see claim_small() */
    if (unlikely(!page_map_is_plain_page(entry))) {
        cache_leave_biased(cache);
        return free_otherwise(address);
    }
    struct block *block = page_block(page_map_page(entry), address);
    uint64_t life;
    block_fetch(block);
    if (unlikely(!claim_as_owner(cache, block, &life))) {
        return free_anybodys(cache, block, address, life);
    }
    struct pool *pool = cache->pool;
    struct bin *bin = &cache->bins[life_bin(life)];
    take_back(pool, cache, bin, block, life);
    cache_park(cache, bin, block, life_bytes(life));
    bool overflows = cache_overflows(cache, bin);
    bool due = is_due(pool, cache, life_bytes(life));
    cache_leave_biased(cache);
    if (unlikely(overflows || due)) {
        return free_rest(pool, cache, life_bin(life), overflows, due);
    }
    return epochs_broken(&pool->epochs);
}

/* --- freed, and held back by what no epoch knows of --- */

bool pool_has(uint64_t address) {
    return page_map_owner(address) != NULL;
}

/*
 * Whoever has the block may have got it behind a barrier. So what comes back is as usable as anything
 * handed out by now is, and has finished no earlier.
 */
int pool_retire(uint64_t address, struct pool_retired *retired) {
    struct claimed c;
    int r = claim_any(address, &c);
    if (r != 0) {
        return r;
    }
    uint64_t stamp = atomic_load_explicit(&c.pool->epochs.usable, memory_order_acquire);
    *retired = (struct pool_retired){.pool = c.pool, .life = pool_lives(c.pool)};
    if (c.range) {
        book_large(c.cache, c.range);
        cache_see(c.cache, c.range->owner);
        retired->range = c.range;
        retired->bytes = c.range->bytes;
        c.range->stamp = stamp;
    } else {
        cache_book_free(c.cache, &c.cache->bins[life_bin(c.life)].frees, life_requested(c.life),
                        life_bytes(c.life));
        cache_see(c.cache, life_owner(c.life));
        retired->block = c.block;
        retired->bytes = life_bytes(c.life);
        c.block->stamp = stamp;
    }
    atomic_fetch_add(&c.pool->retired_bytes, retired->bytes);
    cache_leave(c.cache);
    return 0;
}

void pool_reclaim(const struct pool_retired *retired) {
    struct pool *pool = retired->pool;
    pthread_mutex_lock(&pool->lock);
    if (retired->life == pool_lives(pool)) {
        if (retired->block) {
            reclaim_block(pool, retired->block);
        } else {
            reclaim_range(pool, retired->range);
        }
        atomic_fetch_sub(&pool->retired_bytes, retired->bytes);
        budget_look(pool);
    }
    pthread_mutex_unlock(&pool->lock);
}
