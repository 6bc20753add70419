#include "pool/internal.h"

#include "pool/host.h"
#include "pool/page_map.h"

#include <errno.h>
#include <string.h>

#define SPINS_BEFORE_LOCK                                                                          \
    200 /* some 8 us: longer than the driver takes with sixteen threads calling */
/* A thread that keeps asking for small blocks gets so many ahead, of so many bytes together. */
#define AHEAD_BLOCKS 32
#define AHEAD_BYTES ((uint64_t)1 << 20)
#define TRIM_WAIT_NS ((uint64_t)1000000000)
/* An event on time is due when the pool is tight and a thread has freed since the last one */
#define FREES_PER_CLOSE 64               /* so many blocks, */
#define CLOSE_LEAST_SHARE 256            /* if they are one part in this of the budget, */
#define CLOSE_SHARE 8                    /* or one part in this of it, */
#define CLOSE_BYTES ((uint64_t)64 << 20) /* or so many bytes. */

static uint64_t round_up(uint64_t value, uint64_t multiple) {
    return (value + multiple - 1) / multiple * multiple;
}

/* --- life --- */

/* Held for a microsecond at most: a turn or two of waiting beats a visit to the kernel. */
static void start_lock(pthread_mutex_t *lock) {
    pthread_mutexattr_t kind;
    pthread_mutexattr_init(&kind);
    pthread_mutexattr_settype(&kind, PTHREAD_MUTEX_ADAPTIVE_NP);
    pthread_mutex_init(lock, &kind);
    pthread_mutexattr_destroy(&kind);
}

struct pool *pool_create(struct backend *backend, const struct pool_config *config) {
    struct pool *pool = host_map(round_up(sizeof *pool, 4096), 4096);
    struct cache *common = host_map(sizeof *common, 4096);
    if (!pool || !common) {
        return NULL;
    }
    cache_start();
    start_lock(&pool->lock);
    pool->backend = backend;
    pool->config = *config;
    pool->started_ns = order_clock(pool);
    epochs_start(&pool->epochs);
    arena_start(&pool->large, pool);
    arena_start(&pool->small, pool);
    runs_start(&pool->runs, pool);
    uint64_t share = backend->capacity / CACHE_BYTES_SHARE;
    share = share < CACHE_BYTES_LEAST ? CACHE_BYTES_LEAST : share;
    pool->cache_bytes_max = share > CACHE_BYTES_MOST ? CACHE_BYTES_MOST : share;
    cache_start_common(common, pool);
    pool->common = common;
    atomic_store(&pool->caches, common);
    pthread_mutex_lock(&pool->lock);
    budget_look_at_all(pool);
    pthread_mutex_unlock(&pool->lock);
    return pool;
}

static void forget_pages(struct pool *pool) {
    for (struct segment *segment = pool->small.segments; segment; segment = segment->next) {
        for (uint64_t a = segment->base; a < segment->base + segment->bytes; a += PAGE_BYTES) {
            struct page *page = page_map_page(page_map_get(a));
            if (page) {
                runs_forget_page(&pool->runs, page);
            }
        }
    }
    runs_forget(&pool->runs);
}

void pool_forget(struct pool *pool) {
    pthread_mutex_lock(&pool->lock);
    pool->lives++;
    cache_forget_all(pool);
    pool->shelf.count = 0;
    pool->shelf.bytes = 0;
    pool->range_shelf = (struct range_shelf){0};
    forget_pages(pool);
    arena_forget(&pool->small);
    arena_forget(&pool->large);
    for (enum reach reach = 0; reach < REACHES; reach++) {
        pool->pending_blocks[reach] = (struct block_queue){0};
        pool->pending_ranges[reach] = (struct range_queue){0};
    }
    pool->pending_bytes = 0;
    epochs_forget(&pool->epochs);
    budget_look_at_all(pool);
    pthread_mutex_unlock(&pool->lock);
}

void pool_rebind(struct pool *pool, struct backend *backend) {
    pthread_mutex_lock(&pool->lock);
    pool->backend = backend;
    pthread_mutex_unlock(&pool->lock);
}

struct backend *pool_backend(struct pool *pool) {
    return pool->backend;
}

int pool_broken(struct pool *pool) {
    return atomic_load_explicit(&pool->epochs.broken, memory_order_relaxed);
}

void pool_break(struct pool *pool, int code) {
    atomic_store_explicit(&pool->epochs.broken, code, memory_order_relaxed);
}

void pool_hold(struct pool *pool) {
    pthread_mutex_lock(&pool->lock);
}

void pool_release(struct pool *pool) {
    pthread_mutex_unlock(&pool->lock);
}

void pool_program_orders(struct pool *pool, bool records) {
    pool->program_orders = true;
    pool->epochs.foreign |= records;
    budget_look_at_all(pool);
}

/*
 * Whether the context is still alive. After a fault that the program has seen, the driver answers
 * every call with it; here that is noticed on every way but the shortest.
 */
static int look_at_health(struct pool *pool) {
    int (*health)(struct backend *) = pool->backend->ops->health;
    int code = health ? health(pool->backend) : 0;
    if (code > 0) {
        pool_break(pool, code);
    }
    return code;
}

/* --- allocating --- */

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
    uint32_t more = twice_as_many(&bin->target, bin->count, bin->room / 2);
    if (rotating) {
        return more;
    }
    uint64_t few = books_get(&pool->books.active.current) / 64;
    few = few > AHEAD_BYTES ? AHEAD_BYTES : few;
    few /= (uint64_t)size_class_units(size_class) << UNIT_SHIFT;
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
        if (want.range) {
            want.range->stamp = 0;
            range_become(want.range, RANGE_PENDING);
            cache_push_ready_range(cache, want.range);
        } else {
            cache_push_ready(cache, want.block);
        }
        cache_leave(cache);
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

static int alloc_slow(struct pool *pool, struct cache *cache, struct want *want, uint64_t requested,
                      uint64_t *address) {
    cache_enter(cache);
    uint64_t stamp = oldest_stamp(cache, want);
    cache_leave(cache);
    int dead = look_at_health(pool);
    if (dead) {
        return dead;
    }
    bool advancing;
    if (!lock_or_ready(pool, stamp, &advancing)) {
        return pool_alloc(pool, requested, address);
    }
    uint64_t growth = supply_growth(want);
    bool usable = stamp > 0 && (order_cheaply(pool, stamp) ||
                                (budget_is_short(pool, growth) && order_now(pool, stamp, false)));
    if (advancing) {
        atomic_store_explicit(&pool->advancing, false, memory_order_release);
    }
    bool is_short = budget_is_short(pool, growth), found = false;
    if (usable || is_short) {
        cache_enter(cache);
        found = find_cached(cache, want, atomic_load(&pool->epochs.usable),
                            is_short ? CACHE_LARGER_WHEN_SHORT : 0);
        cache_leave(cache);
    }
    if (!found && want->bytes == 0 && shelf_take(pool, cache, want->size_class)) {
        cache_enter(cache);
        found = find_cached(cache, want, atomic_load(&pool->epochs.usable), cache_larger(cache));
        cache_leave(cache);
    }
    if (!found && want->bytes > 0) {
        want->range = range_shelf_take(pool, cache, want->bytes);
        found = want->range != NULL;
    }
    want->cache = cache;
    int r = found ? 0 : supply(pool, want);
    if (r == 0) {
        top_up(pool, cache, want, stamp > 0);
        cache_enter(cache);
        *address = hand_out(cache, want, requested);
        cache_leave(cache);
    }
    budget_look(pool);
    pthread_mutex_unlock(&pool->lock);
    return r;
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
    struct want want = {.bytes = round_up(bytes, ARENA_UNIT)};
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

/* --- freeing --- */

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
    uint64_t most = budget / CLOSE_SHARE + SMALL_MAX_BYTES, bytes = cache->bytes_since_close;
    bool due = pool->config.reuse == POOL_SYNC ||
               bytes > (most < CLOSE_BYTES ? most : CLOSE_BYTES) ||
               (cache->frees_since_close >= FREES_PER_CLOSE && bytes >= budget / CLOSE_LEAST_SHARE);
    if (unlikely(due)) { /* whether or not it can be recorded now */
        cache->frees_since_close = 0;
        cache->bytes_since_close = 0;
    }
    return due;
}

/* Without context events a free looks for itself whether it has to wait. */
static bool may_order(const struct pool *pool, bool due, bool on_time) {
    return due || (on_time && !pool->backend->has_events);
}

/*
 * The cache is full, or an event is due, or this free has to wait. If only an event is due and
 * somebody holds the lock, a later free will do.
 */
static __attribute__((noinline)) void free_small_slow(struct pool *pool, struct cache *cache,
                                                      unsigned size_class, bool overflows,
                                                      bool orders) {
    if (overflows || pool->config.reuse == POOL_SYNC) {
        pthread_mutex_lock(&pool->lock);
    } else if (pthread_mutex_trylock(&pool->lock) != 0) {
        return;
    }
    cache_enter(cache);
    if (cache_overflows(cache, &cache->bins[size_class])) {
        cache_make_room(cache, size_class);
    }
    cache_leave(cache);
    if (orders) {
        order_in_free(pool);
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

static bool claim(struct block *block, uint64_t *life) {
    *life = block_life(block);
    do {
        if (life_state(*life) != BLOCK_LIVE) {
            return false;
        }
        cache_share_once(life_owner(*life));
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

/* A claimed block goes into the calling thread's cache. */
static void park(struct page *page, struct block *block, uint64_t life, bool on_time) {
    struct pool *pool = page->pool;
    struct cache *cache = cache_mine(pool);
    struct bin *bin = &cache->bins[life_bin(life)];
    cache_enter(cache);
    take_back(pool, cache, bin, block, life);
    bool outside = atomic_load_explicit(&page->reached_from_outside, memory_order_relaxed);
    if (!outside) {
        cache_park(cache, bin, block, life_bytes(life));
    }
    bool overflows = cache_overflows(cache, bin);
    bool due = on_time && is_due(pool, cache, life_bytes(life));
    cache_leave(cache);
    if (outside) {
        pthread_mutex_lock(&pool->lock);
        reclaim_block(pool, block);
        pthread_mutex_unlock(&pool->lock);
    }
    if (outside || overflows || due) {
        free_small_slow(pool, cache, life_bin(life), overflows, may_order(pool, due, on_time));
    }
}

/* Whatever the short way below did not serve. */
static int free_small(struct page *page, uint64_t address, bool on_time) {
    struct block *block = page_block(page, address);
    struct cache *cache = cache_mine(page->pool);
    uint64_t life;
    if (address % ((uint64_t)1 << UNIT_SHIFT) != 0) {
        return -EINVAL;
    }
    cache_enter(cache);
    bool claimed = claim_as_owner(cache, block, &life);
    cache_leave(cache);
    if (!claimed && !claim(block, &life)) {
        return -EINVAL;
    }
    park(page, block, life, on_time);
    return 0;
}

/*
 * The block is not parked, or too much is, or an event is due. If it is only that, and somebody
 * holds the lock, a later free will do.
 */
static void free_large_slow(struct pool *pool, struct cache *cache, struct range *unparked,
                            bool overflows, bool orders) {
    if (unparked || overflows || pool->config.reuse == POOL_SYNC) {
        pthread_mutex_lock(&pool->lock);
    } else if (pthread_mutex_trylock(&pool->lock) != 0) {
        return;
    }
    cache_enter(cache);
    if (cache_overflows_with_large(cache)) {
        cache_make_room_for_large(cache);
    }
    cache_leave(cache);
    if (unparked) {
        reclaim_range(pool, unparked);
    }
    if (orders) {
        order_in_free(pool);
    }
    budget_look(pool);
    pthread_mutex_unlock(&pool->lock);
}

static int free_large(struct pool *pool, uint64_t address, bool on_time) {
    struct range *range = page_map_start(address);
    uint8_t live = RANGE_LIVE;
    if (!range || range->address != address ||
        !atomic_compare_exchange_strong_explicit(&range->state, &live, RANGE_PENDING,
                                                 memory_order_acq_rel, memory_order_relaxed)) {
        return -EINVAL;
    }
    struct cache *cache = cache_mine(pool);
    cache_enter(cache);
    uint64_t requested = atomic_load_explicit(&range->requested, memory_order_relaxed);
    cache_book_free(cache, &drawer_counting(cache, requested)->frees, requested, range->bytes);
    range->stamp = epochs_stamp(&pool->epochs);
    bool parked =
        cache_keeps(cache, range->bytes) &&
        !atomic_load_explicit(&range->segment->reached_from_outside, memory_order_relaxed);
    if (parked) {
        cache_push_range(cache, range);
    }
    bool due = on_time && is_due(pool, cache, range->bytes);
    bool overflows = cache_overflows_with_large(cache);
    cache_leave(cache);
    if (!parked || overflows || due) {
        free_large_slow(pool, cache, parked ? NULL : range, overflows,
                        may_order(pool, due, on_time));
    }
    return 0;
}

/* --- the room's door --- */

static __attribute__((noinline)) int alloc_otherwise(struct pool *pool, uint64_t bytes,
                                                     uint64_t *address) {
    if (pool_broken(pool)) {
        return pool_broken(pool);
    }
    return bytes <= SMALL_MAX_BYTES ? alloc_small(pool, bytes, address)
                                    : alloc_large(pool, bytes, address);
}

/* The short way: the calling thread has parked a block of the class that may be handed out. */
int pool_alloc(struct pool *pool, uint64_t bytes, uint64_t *address) {
    struct cache *cache = cache_last;
    if (unlikely(bytes > SMALL_MAX_BYTES || cache->pool != pool || pool_broken(pool) ||
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

static __attribute__((noinline)) int free_otherwise(uint64_t address, bool on_time) {
    struct page *page = page_map_page(page_map_get(address));
    struct pool *pool = page ? page->pool : page_map_owner(address);
    if (!pool) {
        return -ENOENT;
    }
    int r = page ? free_small(page, address, on_time) : free_large(pool, address, on_time);
    return r == 0 ? pool_broken(pool) : r;
}

/* A block of another thread's cache, or none. */
static __attribute__((noinline)) int free_anybodys(struct page *page, struct block *block) {
    uint64_t life;
    if (!claim(block, &life)) {
        return -EINVAL;
    }
    park(page, block, life, true);
    return pool_broken(page->pool);
}

/* What the short way below leaves to do after it has parked a block. */
static __attribute__((noinline)) int free_rest(struct pool *pool, struct cache *cache,
                                               unsigned size_class, bool overflows, bool due) {
    free_small_slow(pool, cache, size_class, overflows, may_order(pool, due, true));
    return pool_broken(pool);
}

/* The short way: the calling thread asked for the block itself. */
int pool_free(uint64_t address) {
    page_map_entry entry = page_map_get(address);
    struct page *page = page_map_page(entry);
    struct cache *cache = cache_last;
    if (unlikely(!page_map_is_plain_page(entry) || address % ((uint64_t)1 << UNIT_SHIFT) != 0 ||
                 !cache_try_enter(cache))) {
        return free_otherwise(address, true);
    }
    struct block *block = page_block(page, address);
    struct pool *pool = cache->pool;
    uint64_t life;
    block_fetch(block);
    if (unlikely(!claim_as_owner(cache, block, &life))) {
        cache_leave_biased(cache);
        return free_anybodys(page, block);
    }
    struct bin *bin = &cache->bins[life_bin(life)];
    take_back(pool, cache, bin, block, life);
    cache_park(cache, bin, block, life_bytes(life));
    bool overflows = cache_overflows(cache, bin);
    bool due = is_due(pool, cache, life_bytes(life));
    cache_leave_biased(cache);
    if (unlikely(overflows || due)) {
        return free_rest(pool, cache, life_bin(life), overflows, due);
    }
    return pool_broken(pool);
}

int pool_free_late(uint64_t address) {
    return free_otherwise(address, false);
}

int pool_trim(struct pool *pool, bool wait) {
    pthread_mutex_lock(&pool->lock);
    reclaim_caches(pool);
    order_finish(pool, wait ? TRIM_WAIT_NS : 0);
    reclaim_usable(pool);
    int r = supply_release_idle(pool, UINT64_MAX, wait ? TRIM_WAIT_NS : 0);
    budget_look_at_all(pool);
    pthread_mutex_unlock(&pool->lock);
    return r == -ENOENT ? 0 : r;
}

uint64_t pool_stamp_in_free(struct pool *pool) {
    pthread_mutex_lock(&pool->lock);
    uint64_t stamp = epochs_stamp(&pool->epochs);
    epochs_close(&pool->epochs, pool->backend, true);
    pthread_mutex_unlock(&pool->lock);
    return stamp;
}

bool pool_has_finished(struct pool *pool, uint64_t stamp) {
    pthread_mutex_lock(&pool->lock);
    if (pool->epochs.finished < stamp && order_cheaply(pool, stamp)) {
        epochs_poll(&pool->epochs, pool->backend); /* usable behind a barrier is not enough */
    }
    bool finished = pool->epochs.finished >= stamp;
    pthread_mutex_unlock(&pool->lock);
    return finished;
}

/*
 * The program waits for all its work by itself, so an epoch ends for nothing: its number is taken
 * before the wait, and is finished after it.
 */
uint64_t pool_sync_begin(struct pool *pool) {
    return atomic_fetch_add(&pool->epochs.open, 1);
}

void pool_sync_end(struct pool *pool, uint64_t ticket) {
    pthread_mutex_lock(&pool->lock);
    epochs_finish(&pool->epochs, ticket);
    pthread_mutex_unlock(&pool->lock);
}
