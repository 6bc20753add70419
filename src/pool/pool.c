#include "pool/internal.h"

#include "pool/host.h"
#include "pool/page_map.h"

#include <errno.h>

#define FEW_CACHES 2
#define LOOKS_PER_SUM 64
#define SPINS_BEFORE_LOCK                                                                          \
    1000 /* some 20 us: longer than the driver takes with sixteen threads calling */
#define TRIM_WAIT_NS ((uint64_t)1000000000)
#define FREES_PER_CLOSE                                                                            \
    64 /* small frees of one thread that share an on-time event while the pool is tight */

static uint64_t round_up(uint64_t value, uint64_t multiple) {
    return (value + multiple - 1) / multiple * multiple;
}

/* --- life --- */

struct pool *pool_create(struct backend *backend, const struct pool_config *config) {
    struct pool *pool = host_map(round_up(sizeof *pool, 4096), 4096);
    struct cache *common = host_map(sizeof *common, 4096);
    if (!pool || !common) {
        return NULL;
    }
    cache_start();
    pthread_mutex_init(&pool->lock, NULL);
    pool->backend = backend;
    pool->config = *config;
    epochs_start(&pool->epochs);
    arena_start(&pool->large, pool);
    arena_start(&pool->small, pool);
    runs_start(&pool->runs, pool);
    uint64_t share = backend->capacity / CACHE_BYTES_SHARE;
    share = share < CACHE_BYTES_LEAST ? CACHE_BYTES_LEAST : share;
    pool->cache_bytes_max = share > CACHE_BYTES_MOST ? CACHE_BYTES_MOST : share;
    common->bytes_max = pool->cache_bytes_max;
    common->pool = pool;
    pool->common = common;
    atomic_store(&pool->caches, common);
    pthread_mutex_lock(&pool->lock);
    pool_look(pool);
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
    forget_pages(pool);
    arena_forget(&pool->small);
    arena_forget(&pool->large);
    for (enum reach reach = 0; reach < REACHES; reach++) {
        pool->pending_blocks[reach] = (struct block_queue){0};
        pool->pending_ranges[reach] = (struct range_queue){0};
    }
    pool->pending_bytes = 0;
    books_become(&pool->books.requested, 0);
    books_become(&pool->books.allocated, 0);
    books_become(&pool->books.allocations, 0);
    for (unsigned i = 0; i < STATS_SIZE_CLASSES; i++) {
        books_set(&pool->large_classes[i].live, 0);
    }
    epochs_forget(&pool->epochs);
    pool_look(pool);
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
    pool_look(pool);
}

/* --- the books, and what follows from them --- */

uint64_t pool_reserved(const struct pool *pool) {
    return pool->large.reserved_bytes + pool->small.reserved_bytes;
}

static uint64_t ready_bytes(const struct pool *pool) {
    return pool->large.free_bytes + pool->small.free_bytes + (pool->runs.free_units << UNIT_SHIFT);
}

/* One quantity of all caches together. */
struct sum {
    uint64_t live, above; /* above: how much higher each of them has been, all added up */
};

static struct sum sum_tides(struct pool *pool, enum tide_of of) {
    struct sum sum = {0};
    for (struct cache *cache = atomic_load(&pool->caches); cache; cache = cache->next_in_pool) {
        struct tide *tide = &cache->tides[of];
        uint64_t live = books_get(&tide->live);
        int64_t above = (int64_t)(books_get(&tide->peak) - live);
        sum.live += live;
        sum.above += above > 0 ? (uint64_t)above : 0;
        if (cache->owner == &cache_last || cache->owner == NULL) {
            books_set(&tide->peak, live);
        }
    }
    return sum;
}

static unsigned caches_used(struct pool *pool) {
    unsigned used = 0;
    for (struct cache *cache = atomic_load(&pool->caches); cache; cache = cache->next_in_pool) {
        used += books_get(&cache->requested_total) > 0 ||
                books_get(&cache->tides[TIDE_COUNT].live) != 0;
    }
    return used;
}

/*
 * Large blocks are booked here, small ones in the caches. With one cache in use its own peak is the
 * truth. With several, no single moment is known: the peak is then the highest sum seen here, and
 * peak_upper what the sum of their own peaks allows.
 */
static void look_at_peaks(struct pool *pool) {
    struct books *books = &pool->books;
    struct books_metric *const metrics[TIDES] = {&books->requested, &books->allocated,
                                                 &books->allocations};
    bool shared = books_get(&books->peaks_shared) || caches_used(pool) > 1;
    books_set(&books->peaks_shared, shared);
    for (unsigned i = 0; i < TIDES; i++) {
        struct sum sum = sum_tides(pool, (enum tide_of)i);
        uint64_t now = books_get(&metrics[i]->current) + sum.live;
        books_raise(&metrics[i]->peak, shared ? now : now + sum.above);
        if (i == TIDE_REQUESTED) {
            books_raise(&books->peak_upper, now + sum.above);
        }
    }
}

static _Atomic unsigned expected_streams;

void pool_expect_streams(unsigned streams) {
    atomic_store_explicit(&expected_streams, streams, memory_order_relaxed);
}

/* What a pool may keep whatever is live: for each stream enough to stay side by side with the others. */
static uint64_t budget_floor(const struct pool *pool) {
    uint64_t each = pool->backend->capacity / BUDGET_FLOOR_SHARE;
    uint64_t streams = atomic_load_explicit(&expected_streams, memory_order_relaxed);
    each = each < BUDGET_FLOOR ? BUDGET_FLOOR : each > 2 * BUDGET_FLOOR ? 2 * BUDGET_FLOOR : each;
    uint64_t floor = each * (streams < 1 ? 1 : streams > BUDGET_STREAMS ? BUDGET_STREAMS : streams);
    uint64_t most = pool->backend->capacity / BUDGET_FLOOR_SHARE * BUDGET_STREAMS;
    most = most < BUDGET_FLOOR ? BUDGET_FLOOR : most;
    return floor > most ? most : floor;
}

static void look_at_budget(struct pool *pool) {
    uint64_t budget = pool->config.budget;
    if (budget == 0) {
        uint64_t peak = books_get(&pool->books.allocated.peak), floor = budget_floor(pool);
        budget = peak + peak / BUDGET_SLACK;
        budget = budget < floor ? floor : budget;
        budget += pool->caches_owned * pool->cache_bytes_max;
    }
    uint64_t most = pool->backend->capacity - pool->backend->capacity / 4;
    budget = budget > most ? most : budget;
    if (pool->refused_at > 0 && budget > pool->refused_at) {
        budget = pool->refused_at;
    }
    atomic_store_explicit(&pool->budget, budget, memory_order_relaxed);
    bool tight = pool->program_orders || pool_reserved(pool) > budget - budget / 4;
    atomic_store_explicit(&pool->tight, tight, memory_order_relaxed);
}

void pool_look(struct pool *pool) {
    struct books *books = &pool->books;
    /* Reading every thread's counters takes their cache lines away from them: not at every look
     * when there are many. */
    if (pool->caches_owned <= FEW_CACHES || pool->looks++ % LOOKS_PER_SUM == 0) {
        look_at_peaks(pool);
    }
    look_at_budget(pool);
    uint64_t reserved = pool_reserved(pool), ready = ready_bytes(pool);
    books_become(&books->reserved, reserved);
    books_become(&books->active, reserved - ready);
    books_become(&books->segments, pool->large.segment_count + pool->small.segment_count);
    uint64_t largest = arena_largest_free(&pool->large), other = arena_largest_free(&pool->small);
    largest = other > largest ? other : largest;
    other = runs_largest(&pool->runs);
    books_set(&books->largest_free_bytes, other > largest ? other : largest);
    books_set(&books->ready_bytes, ready);
    books_set(&books->releasable_bytes, pool->large.idle_bytes + pool->small.idle_bytes);
    books_set(&books->free_blocks, pool->large.free_count + pool->small.free_count);
    books_set(&books->epochs, pool->epochs.closed);
    books_set(&books->barriers, pool->epochs.barriers);
    books_set(&books->cpu_waits, pool->epochs.cpu_waits);
    books_set(&books->cpu_wait_ns, pool->epochs.cpu_wait_ns);
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

/* --- small blocks --- */

static uint64_t hand_out(struct cache *cache, struct block *block, unsigned size_class,
                         uint64_t requested) {
    block->requested = (uint32_t)requested;
    atomic_store_explicit(&block->id, 0, memory_order_relaxed);
    atomic_store_explicit(&block->state, BLOCK_LIVE, memory_order_release);
    cache_book_alloc(cache, size_class, requested, block_bytes(block));
    return block_address(block);
}

/*
 * Blocks for the next requests of this class, so that they need not come here. Where the thread's
 * own blocks were still pending, more have to go round: as many again with every visit. Where it
 * had none, it is only asking for more, and a handful spares the lock without hoarding.
 */
static void top_up(struct pool *pool, struct cache *cache, unsigned size_class, bool rotating) {
    struct bin *bin = &cache->bins[size_class];
    uint32_t round = bin_room(cache, size_class) /
                     2; /* a full bin is emptied by half: those that go round must not fill it */
    unsigned units = size_class_units(size_class);
    bin->target = bin->target ? bin->target * 2 : 1;
    if (bin->target > round) {
        bin->target = round;
    }
    uint32_t more = bin->target > bin->count ? bin->target - bin->count : 0;
    if (!rotating) {
        uint64_t live = books_get(&pool->books.active.current);
        uint64_t few = live / 64 / ((uint64_t)units << UNIT_SHIFT);
        few = few > 32 ? 32 : few;
        more = more > few ? (uint32_t)few : more;
    }
    bool may_grow = rotating && !atomic_load_explicit(&pool->tight, memory_order_relaxed);
    while (more-- > 0 && cache->bytes < cache->bytes_max) {
        struct want want = {.units = units};
        if (!supply_ready(pool, &want)) {
            if (!may_grow || supply_grow(pool, &want) != 0 || !supply_ready(pool, &want)) {
                break;
            }
            may_grow = false;
        }
        want.block->bin = (uint8_t)size_class;
        cache_enter(cache);
        cache_push_ready(cache, want.block);
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

static int alloc_small(struct pool *pool, uint64_t bytes, uint64_t *address);

static int alloc_small_slow(struct pool *pool, struct cache *cache, unsigned size_class,
                            uint64_t bytes, uint64_t *address) {
    cache_enter(cache);
    const struct block *oldest = cache->bins[size_class].head;
    uint64_t stamp = oldest ? oldest->stamp : 0;
    cache_leave(cache);
    int dead = look_at_health(pool);
    if (dead) {
        return dead;
    }
    struct block *block = NULL;
    bool advancing;
    if (!lock_or_ready(pool, stamp, &advancing)) {
        return alloc_small(pool, bytes, address);
    }
    bool usable = stamp > 0 && (order_cheaply(pool, stamp) || (supply_is_short(pool, PAGE_BYTES) &&
                                                               order_now(pool, stamp, false)));
    if (advancing) {
        atomic_store_explicit(&pool->advancing, false, memory_order_release);
    }
    bool is_short = supply_is_short(pool, PAGE_BYTES);
    if (usable || is_short) {
        cache_enter(cache);
        uint64_t line = atomic_load(&pool->epochs.usable);
        block = cache_pop(cache, size_class, line);
        if (!block && is_short) {
            block = cache_pop_larger(cache, size_class, CACHE_LARGER_WHEN_SHORT, line);
        }
        cache_leave(cache);
    }
    int r = 0;
    if (!block) {
        struct want want = {.units = size_class_units(size_class), .cache = cache};
        r = supply(pool, &want);
        block = want.block;
        if (block) {
            block->bin = (uint8_t)size_class;
        }
    }
    if (block) {
        top_up(pool, cache, size_class, stamp > 0);
        cache_enter(cache);
        *address = hand_out(cache, block, size_class, bytes);
        cache_leave(cache);
    }
    pool_look(pool);
    pthread_mutex_unlock(&pool->lock);
    return r;
}

static int alloc_small(struct pool *pool, uint64_t bytes, uint64_t *address) {
    unsigned size_class = size_class_of(bytes);
    struct cache *cache = cache_mine(pool);
    cache_enter(cache);
    uint64_t usable = atomic_load_explicit(&pool->epochs.usable, memory_order_acquire);
    struct block *block = cache_pop(cache, size_class, usable);
    if (unlikely(!block)) {
        block = cache_pop_larger(cache, size_class, CACHE_LARGER, usable);
    }
    if (likely(block)) {
        *address = hand_out(cache, block, size_class, bytes);
        cache_leave(cache);
        return 0;
    }
    cache_leave(cache);
    return alloc_small_slow(pool, cache, size_class, bytes, address);
}

/*
 * The cache is full, or an event is due, or this free has to wait. If only an event is due and somebody holds the lock, the next
 * free will do.
 */
static void free_small_slow(struct pool *pool, struct cache *cache, unsigned size_class,
                            bool overflows, bool on_time) {
    if (overflows || pool->config.reuse == POOL_SYNC) {
        pthread_mutex_lock(&pool->lock);
    } else if (pthread_mutex_trylock(&pool->lock) != 0) {
        return;
    }
    cache_enter(cache);
    struct bin *bin = &cache->bins[size_class];
    struct block *block = NULL;
    if (cache_overflows(cache, size_class)) {
        block = cache_take(cache, size_class, bin->count / 2 + 1);
    }
    cache_leave(cache);
    while (block) {
        struct block *next = block->next;
        reclaim_block(pool, block);
        block = next;
    }
    if (on_time) {
        order_in_free(pool);
    }
    reclaim_usable(pool);
    pool_look(pool);
    pthread_mutex_unlock(&pool->lock);
}

static bool must_order(const struct pool *pool, const struct cache *cache) {
    return pool->config.reuse == POOL_SYNC ||
           (cache->frees_since_close >= FREES_PER_CLOSE &&
            atomic_load_explicit(&pool->tight, memory_order_relaxed));
}

static inline __attribute__((always_inline)) int free_small(struct page *page, uint64_t address,
                                                            bool on_time) {
    struct pool *pool = page->pool;
    struct block *block = page_block(page, address);
    uint8_t live = BLOCK_LIVE;
    if (address != block_address(block) ||
        !atomic_compare_exchange_strong_explicit(&block->state, &live, BLOCK_CACHED,
                                                 memory_order_acq_rel, memory_order_relaxed)) {
        return -EINVAL;
    }
    struct cache *cache = cache_mine(pool);
    unsigned size_class = block->bin;
    cache_enter(cache);
    cache_book_free(cache, size_class_of(block->requested), block->requested, block_bytes(block));
    block->stamp = epochs_stamp(&pool->epochs);
    bool outside =
        unlikely(atomic_load_explicit(&page->reached_from_outside, memory_order_relaxed));
    if (!outside) {
        cache_push(cache, block);
    }
    cache->frees_since_close++;
    bool overflows = cache_overflows(cache, size_class);
    bool due = on_time && must_order(pool, cache);
    if (due) {
        cache->frees_since_close = 0; /* whether or not it can be recorded now */
    }
    bool slow = overflows || due;
    cache_leave(cache);
    if (outside) {
        pthread_mutex_lock(&pool->lock);
        reclaim_block(pool, block);
        pthread_mutex_unlock(&pool->lock);
        slow = true;
    }
    if (unlikely(slow)) {
        free_small_slow(pool, cache, size_class, overflows, on_time);
    }
    return 0;
}

/* --- large blocks --- */

static int alloc_large(struct pool *pool, uint64_t bytes, uint64_t *address) {
    if (bytes > UINT64_MAX - PAGE_BYTES) {
        return -ENOMEM;
    }
    int dead = look_at_health(pool);
    if (dead) {
        return dead;
    }
    pthread_mutex_lock(&pool->lock);
    struct want want = {.bytes = round_up(bytes, ARENA_UNIT)};
    int r = supply(pool, &want);
    if (r == 0) {
        look_at_peaks(pool); /* of what small blocks did before this one */
        want.range->requested = bytes;
        want.range->id = 0;
        *address = want.range->address;
        books_enter(&pool->books.requested, bytes);
        books_enter(&pool->books.allocated, want.range->bytes);
        books_enter(&pool->books.allocations, 1);
        books_add(&pool->large_classes[stats_size_class(bytes)].live, 1);
        books_add(&pool->large_classes[stats_size_class(bytes)].total, 1);
        look_at_peaks(pool);
    }
    pool_look(pool);
    pthread_mutex_unlock(&pool->lock);
    return r;
}

static int free_large(struct pool *pool, uint64_t address, bool on_time) {
    pthread_mutex_lock(&pool->lock);
    struct range *range = page_map_owner(address) == pool ? arena_find(address) : NULL;
    if (!range || range->address != address || range->state != RANGE_LIVE) {
        pthread_mutex_unlock(&pool->lock);
        return -EINVAL;
    }
    look_at_peaks(pool); /* while this one is still there */
    books_leave(&pool->books.requested, range->requested);
    books_leave(&pool->books.allocated, range->bytes);
    books_leave(&pool->books.allocations, 1);
    books_counter *live = &pool->large_classes[stats_size_class(range->requested)].live;
    books_set(live, books_get(live) - 1);
    range->state = RANGE_PENDING;
    range->stamp = epochs_stamp(&pool->epochs);
    reclaim_queue_range(pool, range);
    if (on_time) {
        order_in_free(pool);
    }
    pool_look(pool);
    pthread_mutex_unlock(&pool->lock);
    return 0;
}

/* --- the room's door --- */

int pool_alloc(struct pool *pool, uint64_t bytes, uint64_t *address) {
    if (unlikely(pool_broken(pool))) {
        return pool_broken(pool);
    }
    return likely(bytes <= SMALL_MAX_BYTES) ? alloc_small(pool, bytes, address)
                                            : alloc_large(pool, bytes, address);
}

static inline __attribute__((always_inline)) int free_block(uint64_t address, bool on_time) {
    page_map_entry entry = page_map_get(address);
    struct page *page = page_map_page(entry);
    struct pool *pool = likely(page) ? page->pool : page_map_owner(address);
    if (!pool) {
        return -ENOENT;
    }
    int r = likely(page) ? free_small(page, address, on_time) : free_large(pool, address, on_time);
    return likely(r == 0) ? pool_broken(pool) : r;
}

int pool_free(uint64_t address) {
    return free_block(address, true);
}

int pool_free_late(uint64_t address) {
    return free_block(address, false);
}

int pool_trim(struct pool *pool, bool wait) {
    pthread_mutex_lock(&pool->lock);
    reclaim_caches(pool);
    order_finish(pool, wait ? TRIM_WAIT_NS : 0);
    reclaim_usable(pool);
    int r = supply_release_idle(pool, UINT64_MAX, wait ? TRIM_WAIT_NS : 0);
    pool_look(pool);
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
