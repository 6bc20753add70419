/*
 * Allocating: from the calling thread's cache, from a shelf, from the pages and the arena, and what
 * goes to the cache along with it.
 */
#include "pool/internal.h"

#include "pool/page_map.h"

#include <errno.h>

#define SPINS_BEFORE_LOCK                                                                          \
    200 /* some 8 us: longer than the driver takes with sixteen threads calling */
/* A thread that keeps asking for small blocks gets so many ahead, of so many bytes together. */
#define AHEAD_BLOCKS 32
#define AHEAD_BYTES ((uint64_t)1 << 20)

/*
 * What the driver would say of a call now. After a fault that the program has seen it answers every
 * call of the context with it; here that is noticed on every way but the shortest. Other refusals are
 * this call's alone: that of a host function, or of a thread whose context has gone.
 */
static int look_at_health(struct pool *pool) {
    int (*health)(struct backend *) = pool->backend->ops->health;
    int code = health ? health(pool->backend) : 0;
    if (code > 0 && pool->backend->ops->is_deadly(code)) {
        pool_break(pool, code);
    }
    return code;
}

static inline __attribute__((always_inline)) uint64_t
hand_out_block(struct cache *cache, struct block *block, uint64_t requested) {
    uint64_t life = atomic_load_explicit(&block->life, memory_order_relaxed);
    block_become(block, (life ^ cache->hands_out) | requested << LIFE_REQUESTED_SHIFT);
    cache_book_alloc(cache, &cache->bins[life_bin(life)].allocs, requested, life_bytes(life));
    return block->address;
}

static uint64_t hand_out_range(struct cache *cache, struct range *range, uint64_t requested) {
    atomic_store_explicit(&range->requested, requested, memory_order_relaxed);
    atomic_store_explicit(&range->id, 0, memory_order_relaxed);
    range->owner = cache->number;
    range_become(range, RANGE_LIVE);
    cache_book_alloc(cache, &drawer_counting(cache, requested)->allocs, requested, range->bytes);
    return range->address;
}

static uint64_t hand_out(struct cache *cache, const struct want *want, uint64_t requested) {
    return want->range ? hand_out_range(cache, want->range, requested)
                       : hand_out_block(cache, want->block, requested);
}

/* What the cache has for a request that may be handed out. Inside the cache. */
static bool find_cached(struct cache *cache, struct want *want, uint64_t usable, unsigned larger) {
    if (want->bytes > 0) {
        want->range = cache_pop_range(cache, want->bytes, usable);
    } else {
        want->block = cache_pop(cache, want->size_class, usable);
        if (!want->block) {
            want->block = cache_pop_larger(cache, want->size_class, larger, usable);
        }
    }
    return want->block || want->range;
}

/* The stamp of what the cache would hand out for a request, were it usable; 0: it has nothing. */
static uint64_t oldest_stamp(const struct cache *cache, const struct want *want) {
    if (want->bytes == 0) {
        const struct block *block = cache->bins[want->size_class].head;
        return block ? block->stamp : 0;
    }
    return cache_keeps(cache, want->bytes) ? cache_range_stamp(cache, want->bytes) : 0;
}

/*
 * How many more should go round for the next requests like this one, so that they need not come
 * here. Where the thread's own were still pending (`rotating`), more are needed: as many again with
 * every visit. Where it had none, it is only asking for more, and a handful of small ones spares the
 * lock without hoarding.
 */
static uint32_t twice_as_many(uint32_t *target, uint32_t count, uint64_t room) {
    uint64_t wanted = *target ? 2 * (uint64_t)*target : 1;
    *target = (uint32_t)(wanted > room ? room : wanted);
    return *target > count ? *target - count : 0;
}

static uint32_t more_blocks(const struct pool *pool, struct cache *cache, unsigned size_class,
                            bool rotating) {
    struct bin *bin = &cache->bins[size_class];
    /* a full bin is emptied by half: those that go round must not fill it */
    uint32_t more = twice_as_many(&bin->target, bin->count, bin->room / 4 * 3);
    if (rotating) {
        return more;
    }
    uint64_t few = books_get(&pool->books.active.current) / 64;
    few = few > AHEAD_BYTES ? AHEAD_BYTES : few;
    few /= size_class_bytes(size_class);
    few = cache->bytes > cache->bytes_max / 4 ? 0 : few > AHEAD_BLOCKS ? AHEAD_BLOCKS : few;
    return more > few ? (uint32_t)few : more;
}

static uint32_t more_ranges(struct cache *cache, uint64_t bytes, bool rotating) {
    if (!rotating || !cache_keeps(cache, bytes)) {
        return 0;
    }
    struct drawer *drawer = &cache->drawers[drawer_of(bytes)];
    return twice_as_many(&drawer->target, drawer->count, cache->large_bytes_max / 2 / bytes);
}

/*
 * Blocks got ahead fill the cache at most by half: a full one gives up at the next free what it was
 * given here.
 */
static bool has_room_ahead(const struct cache *cache, uint64_t large_bytes) {
    return large_bytes > 0 ? cache->large_bytes + large_bytes <= cache->large_bytes_max / 2
                           : cache->bytes < cache->bytes_max / 2;
}

static void top_up(struct pool *pool, struct cache *cache, const struct want *like, bool rotating) {
    uint32_t more = like->bytes > 0 ? more_ranges(cache, like->bytes, rotating)
                                    : more_blocks(pool, cache, like->size_class, rotating);
    bool may_grow = rotating && !atomic_load_explicit(&pool->tight, memory_order_relaxed);
    while (more-- > 0 && has_room_ahead(cache, like->bytes)) {
        struct want want = {.size_class = like->size_class, .bytes = like->bytes};
        if (!supply_ready(pool, &want)) {
            if (!may_grow || budget_is_short(pool, supply_growth(&want)) ||
                supply_grow(pool, &want) != 0 || !supply_ready(pool, &want)) {
                break;
            }
            may_grow = false;
        }
        cache_enter(cache);
        if (unlikely(idle_sleeps(cache))) {
            idle_wake(cache); /* it sleeps again if memory was taken back for the request */
        }
        if (want.range) {
            want.range->stamp = 0;
            range_become(want.range, RANGE_PENDING);
            cache_push_ready_range(cache, want.range);
        } else {
            cache_push_ready(cache, want.block);
        }
        cache_leave(cache);
        idle_count(cache, idle_parked(cache));
    }
}

/*
 * Takes the pool's lock for a thread whose block of this class is still pending, and makes it the
 * one that moves `usable` forward for all. If another thread is at that already, its result is
 * waited for instead: then there is nothing to take the lock for, and false is returned.
 */
static bool lock_or_ready(struct pool *pool, uint64_t stamp, bool *advancing) {
    *advancing = stamp > 0 && !atomic_load_explicit(&pool->advancing, memory_order_relaxed) &&
                 !atomic_exchange(&pool->advancing, true);
    for (unsigned i = 0; stamp > 0 && !*advancing && i < SPINS_BEFORE_LOCK; i++) {
        if (epochs_usable(&pool->epochs, stamp)) {
            return false;
        }
        cpu_relax();
    }
    pthread_mutex_lock(&pool->lock);
    return true;
}

static void stop_advancing(struct pool *pool, bool advancing) {
    if (advancing) {
        atomic_store_explicit(&pool->advancing, false, memory_order_release);
    }
}

/* From the shelves, what is usable there. */
static bool alloc_from_shelf(struct pool *pool, struct cache *cache, struct want *want,
                             uint64_t requested, uint64_t *address) {
    cache_enter(cache);
    uint64_t usable = atomic_load_explicit(&pool->epochs.usable, memory_order_acquire);
    bool found;
    if (want->bytes > 0) {
        want->range = range_shelf_take(cache, want->bytes, usable);
        found = want->range != NULL;
    } else {
        found = shelf_take(cache, want->size_class, usable) &&
                find_cached(cache, want, usable, cache_larger(cache));
    }
    if (found) {
        *address = hand_out(cache, want, requested);
    }
    cache_leave(cache);
    return found;
}

/* Or what can be made usable at once. The pool's lock is not held while the shelf is emptied. */
static bool alloc_from_shelf_later(struct pool *pool, struct cache *cache, struct want *want,
                                   uint64_t requested, uint64_t *address) {
    uint64_t stamp = want->bytes > 0 ? range_shelf_stamp(cache, want->bytes) : shelf_stamp(cache);
    if (stamp == 0 || epochs_usable(&pool->epochs, stamp)) {
        return false;
    }
    bool advancing;
    if (lock_or_ready(pool, stamp, &advancing)) {
        order_cheaply(pool, stamp);
        stop_advancing(pool, advancing);
        budget_look(pool);
        pthread_mutex_unlock(&pool->lock);
    }
    return alloc_from_shelf(pool, cache, want, requested, address);
}

static bool make_way(struct cache *cache) {
    cache_enter(cache);
    bool way = shelf_make_way(cache);
    cache_leave(cache);
    return way;
}

/* Small blocks that were retired are asked about when nothing is ready: then many have come free at once. */
static bool ready_or_settled(struct pool *pool, struct want *want) {
    if (atomic_load_explicit(&pool->retired_bytes, memory_order_relaxed) == 0 ||
        supply_ready(pool, want)) {
        return want->block != NULL;
    }
    pthread_mutex_unlock(&pool->lock);
    settle(pool, false);
    pthread_mutex_lock(&pool->lock);
    return false;
}

static int alloc_slow(struct pool *pool, struct cache *cache, struct want *want, uint64_t requested,
                      uint64_t *address) {
    cache_enter(cache);
    uint64_t stamp = oldest_stamp(cache, want);
    cache_leave(cache);
    int dead = look_at_health(pool);
    if (dead) {
        return dead;
    }
    bool at_once = want->bytes > 0 || atomic_load_explicit(&pool->tight, memory_order_relaxed) > 0;
    if (at_once) {
        settle(pool, true);
    }
    if (shelves_have(cache, want->bytes > 0) &&
        (alloc_from_shelf(pool, cache, want, requested, address) ||
         alloc_from_shelf_later(pool, cache, want, requested, address))) {
        return 0;
    }
    bool advancing;
    if (!lock_or_ready(pool, stamp, &advancing)) {
        return pool_alloc(pool, requested, address);
    }
    if (unlikely(idle_sleeps(cache))) {
        idle_wake(cache);
    }
    cache->visiting = true;
    uint64_t growth = supply_growth(want);
    bool usable = stamp > 0 && (order_cheaply(pool, stamp) ||
                                (budget_is_short(pool, growth) && order_now(pool, stamp, false)));
    stop_advancing(pool, advancing);
    bool is_short = budget_is_short(pool, growth), found = false;
    if (usable || is_short) {
        cache_enter(cache);
        found = find_cached(cache, want, atomic_load(&pool->epochs.usable),
                            is_short ? CACHE_LARGER_WHEN_SHORT : 0);
        cache_leave(cache);
    }
    if (!found && want->bytes == 0 && make_way(cache) &&
        alloc_from_shelf(pool, cache, want, requested, address)) {
        cache->visiting = false;
        budget_look(pool);
        pthread_mutex_unlock(&pool->lock);
        return 0;
    }
    want->cache = cache;
    int r = found || (!at_once && ready_or_settled(pool, want)) ? 0 : supply(pool, want);
    if (r == 0) {
        top_up(pool, cache, want, stamp > 0);
        cache_enter(cache);
        *address = hand_out(cache, want, requested);
        cache_leave(cache);
    }
    cache->visiting = false;
    budget_look(pool);
    pthread_mutex_unlock(&pool->lock);
    bool refused = r == -ENOMEM || r == -EDQUOT;
    return refused && settle(pool, true) ? pool_alloc(pool, requested, address) : r;
}

/* Whatever the short way below did not serve. */
static __attribute__((noinline)) int alloc_small(struct pool *pool, uint64_t bytes,
                                                 uint64_t *address) {
    struct want want = {.size_class = size_class_of(bytes)};
    struct cache *cache = cache_mine(pool);
    cache_enter(cache);
    uint64_t usable = atomic_load_explicit(&pool->epochs.usable, memory_order_acquire);
    if (find_cached(cache, &want, usable, cache_larger(cache))) {
        *address = hand_out(cache, &want, bytes);
        cache_leave(cache);
        return 0;
    }
    cache_leave(cache);
    return alloc_slow(pool, cache, &want, bytes, address);
}

static int alloc_large(struct pool *pool, uint64_t bytes, uint64_t *address) {
    if (bytes > pool->backend->capacity) {
        int dead = look_at_health(pool);
        return dead ? dead : -ENOMEM;
    }
    struct want want = {.bytes = (bytes + ARENA_UNIT - 1) & ~(ARENA_UNIT - 1)};
    struct cache *cache = cache_mine(pool);
    if (cache_keeps(cache, want.bytes)) {
        cache_enter(cache);
        uint64_t usable = atomic_load_explicit(&pool->epochs.usable, memory_order_acquire);
        struct range *range = cache_pop_range(cache, want.bytes, usable);
        if (likely(range)) {
            *address = hand_out_range(cache, range, bytes);
            cache_leave(cache);
            return 0;
        }
        cache_leave(cache);
    }
    return alloc_slow(pool, cache, &want, bytes, address);
}

static __attribute__((noinline)) int alloc_otherwise(struct pool *pool, uint64_t bytes,
                                                     uint64_t *address) {
    int broken = epochs_broken(&pool->epochs);
    if (broken) {
        return broken;
    }
    return bytes <= SMALL_MAX_BYTES ? alloc_small(pool, bytes, address)
                                    : alloc_large(pool, bytes, address);
}

/* The short way: the calling thread has parked a block of the class that may be handed out. */
int pool_alloc(struct pool *pool, uint64_t bytes, uint64_t *address) {
    struct cache *cache = cache_last;
    if (unlikely(bytes > SMALL_MAX_BYTES || cache->pool != pool || epochs_broken(&pool->epochs) ||
                 !cache_try_enter(cache))) {
        return alloc_otherwise(pool, bytes, address);
    }
    unsigned size_class = size_class_of(bytes);
    uint64_t usable = atomic_load_explicit(&pool->epochs.usable, memory_order_acquire);
    struct block *block = cache_pop(cache, size_class, usable);
    if (unlikely(!block)) {
        cache_leave_biased(cache);
        return alloc_small(pool, bytes, address);
    }
    *address = hand_out_block(cache, block, bytes);
    cache_leave_biased(cache);
    return 0;
}
