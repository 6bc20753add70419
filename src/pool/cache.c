#include "pool/internal.h"

#include "pool/host.h"

#include <linux/membarrier.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define STORES_ARRIVE_NS 10000000
#define STORES_ARRIVE_TURNS (1u << 18) /* some milliseconds */

static struct cache nobodys = {.wanted = true};
_Thread_local struct cache *cache_last __attribute__((tls_model("initial-exec"))) = &nobodys;

/* This thread's caches, one per pool it has used; CACHES_GONE once the thread is ending. */
static _Thread_local struct cache *my_caches __attribute__((tls_model("initial-exec")));
#define CACHES_GONE ((struct cache *)1)

static pthread_key_t thread_end_key;
static pthread_once_t thread_end_once = PTHREAD_ONCE_INIT;
static bool thread_end_works;

/* --- exclusion --- */

static atomic_bool can_bias;

static int membarrier(int command) {
    return (int)syscall(SYS_membarrier, command, 0, 0);
}

void cache_start(void) {
#if !defined(__SANITIZE_THREAD__) /* which cannot see what membarrier orders */
    can_bias = membarrier(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED) == 0;
#endif
}

bool cache_can_bias(void) {
    return can_bias;
}

static bool is_biased(const struct cache *cache) {
    return atomic_load_explicit(&cache->biased, memory_order_acquire);
}

/* The other side may have lost its processor. */
static void wait_a_turn(unsigned turns) {
    if (turns < 100) {
        cpu_relax();
    } else {
        sched_yield();
    }
}

void cache_enter_slowly(struct cache *cache) {
    for (unsigned turns = 0; is_biased(cache); turns++) {
        if (!atomic_load_explicit(&cache->wanted, memory_order_acquire) && cache_try_enter(cache)) {
            return;
        }
        wait_a_turn(turns);
    }
    for (unsigned turns = 0; atomic_exchange_explicit(&cache->locked, true, memory_order_acquire);
         turns++) {
        wait_a_turn(turns);
    }
}

static void ask_to_stay_out(struct cache *cache) {
    if (is_biased(cache)) {
        atomic_store(&cache->wanted, true);
    }
}

static void wait_for_owner(struct cache *cache) {
    for (unsigned turns = 0; atomic_load_explicit(&cache->inside, memory_order_acquire); turns++) {
        wait_a_turn(turns);
    }
}

/* After a membarrier. */
static void wait_until_out(struct cache *cache) {
    if (is_biased(cache)) {
        wait_for_owner(cache);
    } else {
        cache_enter(cache);
    }
}

/*
 * Until a store that another processor has made has arrived in memory, without that one's help: it
 * takes nanoseconds, or microseconds where lines are fought over. Turns too, where the sandbox refuses
 * sleep.
 */
static void let_stores_arrive(void) {
    nanosleep(&(struct timespec){.tv_nsec = STORES_ARRIVE_NS}, NULL);
    for (unsigned turns = 0; turns < STORES_ARRIVE_TURNS; turns++) {
        cpu_relax();
    }
}

/*
 * The kernel did membarrier once and refuses now: a sandbox was set up, or a checkpoint restored. The
 * pool's caches become spin locks, for good. All that membarrier did for the seizing thread is that the
 * owners' stores to `inside` have arrived which were made before they could see `wanted`; that is
 * waited for instead, once.
 */
static void end_bias(struct pool *pool) {
    can_bias = false;
    for (struct cache *cache = atomic_load(&pool->caches); cache; cache = cache->next_in_pool) {
        ask_to_stay_out(cache);
    }
    let_stores_arrive();
    for (struct cache *cache = atomic_load(&pool->caches); cache; cache = cache->next_in_pool) {
        if (is_biased(cache)) {
            wait_for_owner(cache);
            atomic_store_explicit(&cache->biased, false, memory_order_release);
        }
    }
}

/* All owners that have been asked to stay out know, or are seen to be inside. */
static void order_owners(struct pool *pool) {
    if (membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED) != 0) {
        end_bias(pool);
    }
}

void cache_seize(struct cache *cache) {
    ask_to_stay_out(cache);
    if (is_biased(cache)) {
        order_owners(cache->pool);
    }
    wait_until_out(cache);
}

void cache_seize_all(struct pool *pool) {
    bool any = false;
    for (struct cache *cache = atomic_load(&pool->caches); cache; cache = cache->next_in_pool) {
        any |= is_biased(cache);
        ask_to_stay_out(cache);
    }
    if (any) {
        order_owners(pool);
    }
    for (struct cache *cache = atomic_load(&pool->caches); cache; cache = cache->next_in_pool) {
        wait_until_out(cache);
    }
}

void cache_return_all(struct pool *pool) {
    for (struct cache *cache = atomic_load(&pool->caches); cache; cache = cache->next_in_pool) {
        cache_return(cache);
    }
}

void cache_return(struct cache *cache) {
    if (is_biased(cache)) {
        atomic_store_explicit(&cache->wanted, false, memory_order_release);
    } else {
        cache_leave(cache);
    }
}

/* --- whose blocks they are --- */

/*
 * Numbers are used once in a process, so whoever has one from a block finds the cache that had it.
 * Which are shared is asked at every free by another thread, and stands apart from the caches, whose
 * owners keep writing.
 */
static _Atomic(struct cache *) numbered[CACHE_NUMBERS];
atomic_bool cache_shared[CACHE_NUMBERS] = {true};
static _Atomic uint32_t last_number;

static void set_number(struct cache *cache, uint16_t number) {
    uint64_t owner = (uint64_t)number << LIFE_OWNER_SHIFT;
    cache->number = number;
    cache->hands_out = (uint64_t)(BLOCK_LIVE ^ BLOCK_CACHED) | owner;
    cache->owns = number > 0 ? (uint64_t)BLOCK_LIVE | owner : CACHE_OWNS_NONE;
}

/* 0, when they have run out: anybody may free those blocks. */
static uint16_t next_number(void) {
    uint32_t number = atomic_load(&last_number);
    while (number < CACHE_NUMBERS - 1 &&
           !atomic_compare_exchange_weak(&last_number, &number, number + 1)) {
    }
    return number < CACHE_NUMBERS - 1 ? (uint16_t)(number + 1) : 0;
}

static void take_number(struct cache *cache) {
    set_number(cache, is_biased(cache) ? next_number() : 0);
    atomic_store(&numbered[cache->number], cache);
}

/* The owner is outside, or gone. */
static void stop_owning(struct cache *cache) {
    cache->owns = CACHE_OWNS_NONE;
    atomic_store(&cache_shared[cache->number], true);
}

struct cache *cache_numbered(unsigned number) {
    return atomic_load(&numbered[number]);
}

void cache_share(unsigned number) {
    struct cache *cache = cache_numbered(number);
    pthread_mutex_lock(&cache->pool->lock);
    if (cache->number == number) {
        cache_seize(cache);
        stop_owning(cache);
        cache_return(cache);
    }
    pthread_mutex_unlock(&cache->pool->lock);
}

/* --- contents --- */

void cache_set_room(struct cache *cache, uint64_t bytes) {
    cache->bytes_max = bytes;
    cache->large_bytes_max = CACHE_LARGE_FACTOR * bytes;
    cache->large_most = cache->large_bytes_max / CACHE_LARGE_SHARE;
    for (unsigned i = 0; i < SMALL_CLASSES; i++) {
        uint64_t fit = bytes / 2 / size_class_bytes(i);
        cache->bins[i].room = fit > CACHE_BIN_BLOCKS ? CACHE_BIN_BLOCKS : (uint32_t)fit;
    }
}

void cache_start_common(struct cache *cache, struct pool *pool) {
    cache->pool = pool;
    atomic_store(&cache->wanted, true);
    set_number(cache, 0);
    cache_set_room(cache, pool->cache_bytes_max);
    shelf_start(&cache->shelf);
}

struct batch cache_take(struct cache *cache, unsigned size_class, uint32_t count) {
    struct bin *bin = &cache->bins[size_class];
    struct batch batch = {bin->head, bin->tail, bin->count};
    if (count == 0 || bin->count == 0) {
        return (struct batch){0};
    }
    if (count < bin->count) {
        batch.count = count;
        batch.last = batch.first;
        for (uint32_t i = 1; i < count; i++) {
            batch.last = batch.last->next;
        }
        bin->head = batch.last->next;
        batch.last->next = NULL;
    } else {
        bin->head = NULL;
    }
    bin->count -= batch.count;
    cache->bytes -= batch.count * size_class_bytes(size_class);
    return batch;
}

static void spill(struct cache *cache, unsigned size_class, uint32_t count) {
    reclaim_list(cache->pool, cache_take(cache, size_class, count).first);
}

static void spill_drawer(struct cache *cache, struct drawer *drawer, uint32_t count) {
    while (count-- > 0) {
        reclaim_range(cache->pool, cache_unlink(cache, drawer, NULL, drawer->head));
    }
}

/* Of bytes, not of blocks: halving a class of tiny ones makes no room, and the next free is back. */
static void spill_most(struct cache *cache) {
    unsigned most = 0;
    uint64_t units = 0;
    for (unsigned i = 0; i < SMALL_CLASSES; i++) {
        uint64_t here = (uint64_t)cache->bins[i].count * size_class_units(i);
        most = here > units ? i : most;
        units = here > units ? here : units;
    }
    spill(cache, most, (cache->bins[most].count + 1) / 2);
}

void cache_spill(struct cache *cache, uint64_t bytes) {
    while (cache->bytes > bytes) {
        spill_most(cache);
    }
}

/*
 * Nothing was asked for since room was last made: another thread allocates what this one frees. A
 * thread of which that has been true a few times on end gives away in parts from then on, so that
 * the other one finds some at any time.
 */
static bool gives_to_others(struct cache *cache) {
    uint64_t before = cache->total_at_room;
    cache->total_at_room = books_get(&cache->tides[TIDE_REQUESTED].taken);
    bool gives = cache->total_at_room == before && cache->pool->caches_owned > 1;
    cache->gifts = gives ? cache->gifts + 1 : 0;
    return gives;
}

static bool gives_in_parts(const struct cache *cache) {
    return cache->gifts > CACHE_GIFTS;
}

bool cache_gives(struct cache *cache) {
    bool gives = gives_to_others(cache);
    cache->bytes_max = cache->pool->cache_bytes_max / (gives_in_parts(cache) ? CRATE_SHARE : 1);
    return gives;
}

bool cache_gives_large(struct cache *cache) {
    bool gives = gives_to_others(cache);
    cache->large_bytes_max = CACHE_LARGE_FACTOR * cache->pool->cache_bytes_max /
                             (gives_in_parts(cache) ? RANGE_BATCH_SHARE : 1);
    return gives;
}

void cache_make_room(struct cache *cache, unsigned size_class) {
    cache_spill(cache, cache->bytes_max - cache->bytes_max / 16);
    struct bin *bin = &cache->bins[size_class];
    if (bin->count > bin->room) {
        spill(cache, size_class, bin->count / 2 + 1);
    }
}

static void spill_most_of_drawers(struct cache *cache) {
    struct drawer *most = NULL;
    uint64_t bytes = 0;
    for (unsigned i = 0; i < LARGE_DRAWERS; i++) {
        struct drawer *drawer = &cache->drawers[i];
        uint64_t here = drawer->count ? drawer->count * drawer->head->bytes : 0;
        most = here > bytes ? drawer : most;
        bytes = here > bytes ? here : bytes;
    }
    spill_drawer(cache, most, (most->count + 1) / 2);
}

void cache_empty_drawers(struct cache *cache) {
    for (unsigned i = 0; cache->large_bytes > 0 && i < LARGE_DRAWERS; i++) {
        spill_drawer(cache, &cache->drawers[i], cache->drawers[i].count);
    }
}

void cache_make_room_for_large(struct cache *cache) {
    while (cache->large_bytes > cache->large_bytes_max - cache->large_bytes_max / 16) {
        spill_most_of_drawers(cache);
    }
}

void cache_empty_bins(struct cache *cache) {
    for (unsigned size_class = 0; cache->bytes > 0 && size_class < SMALL_CLASSES; size_class++) {
        spill(cache, size_class, cache->bins[size_class].count);
    }
}

void cache_empty(struct cache *cache) {
    cache_empty_drawers(cache);
    cache_empty_bins(cache);
}

/*
 * Of the common cache and one that has no owner. Those of threads that have ended lie together, so
 * that a look at the peaks has one to look at, and the next thread goes on with them.
 */
static void move_tides(struct cache *to, struct cache *from) {
    struct cache *common = from->pool->common;
    cache_enter(common);
    for (unsigned i = 0; i < TIDES; i++) {
        tide_join(&to->tides[i], &from->tides[i]);
    }
    cache_leave(common);
}

/* Everything parked goes to the pool, and the cache waits there for its next thread. */
static void retire(struct cache *cache) {
    struct pool *pool = cache->pool;
    pthread_mutex_lock(&pool->lock);
    cache_enter(cache);
    cache_empty(cache);
    for (unsigned i = 0; i < SMALL_CLASSES; i++) {
        cache->bins[i].target = 0;
    }
    for (unsigned i = 0; i < LARGE_DRAWERS; i++) {
        cache->drawers[i].target = 0;
    }
    cache_leave(cache);
    shelf_set_number(&cache->shelf, 0);
    shelf_empty(pool, &cache->shelf);
    range_shelf_empty(pool, &cache->shelf);
    budget_look_at_all(pool);
    move_tides(pool->common, cache);
    stop_owning(cache);
    cache_set_room(cache, pool->cache_bytes_max);
    cache->total_at_room = 0;
    cache->gifts = 0;
    cache->serves = 0;
    cache->owner = NULL;
    pool->caches_owned--;
    budget_look_at_all(pool);
    pthread_mutex_unlock(&pool->lock);
}

static void thread_end(void *unused) {
    (void)unused;
    struct cache *cache = my_caches;
    my_caches =
        CACHES_GONE; /* frees made by later destructors of this thread use the common cache */
    cache_last = &nobodys;
    while (cache && cache != CACHES_GONE) {
        struct cache *next = cache->next_in_thread;
        retire(cache);
        cache = next;
    }
}

void pool_forked(void) {
    if (thread_end_works) {
        pthread_setspecific(thread_end_key, NULL);
    }
}

static void make_key(void) {
    thread_end_works = pthread_key_create(&thread_end_key, thread_end) == 0;
}

static struct cache *adopt(struct pool *pool) {
    pthread_mutex_lock(&pool->lock);
    struct cache *cache = atomic_load(&pool->caches);
    while (cache && (cache->owner || cache == pool->common)) {
        cache = cache->next_in_pool;
    }
    if (!cache && (cache = host_map(sizeof *cache, 4096)) != NULL) {
        cache->pool = pool;
        cache_set_room(cache, pool->cache_bytes_max);
        shelf_start(&cache->shelf);
        bool biased = can_bias;
        atomic_store(&cache->biased, biased);
        atomic_store(&cache->wanted, !biased);
        cache->next_in_pool = atomic_load(&pool->caches);
        atomic_store(&pool->caches, cache);
    }
    if (cache) {
        take_number(cache);
        shelf_set_number(&cache->shelf, cache->number);
        move_tides(cache, pool->common);
        cache->owner = &cache_last;
        pool->caches_owned++;
        pool->caches_most += pool->caches_owned > pool->caches_most;
        budget_look_at_all(pool);
    }
    pthread_mutex_unlock(&pool->lock);
    return cache;
}

struct cache *cache_find(struct pool *pool) {
    if (my_caches == CACHES_GONE) {
        return pool->common;
    }
    for (struct cache *cache = my_caches; cache; cache = cache->next_in_thread) {
        if (cache->pool == pool) {
            return cache_last = cache;
        }
    }
    pthread_once(&thread_end_once, make_key);
    if (!thread_end_works || pthread_setspecific(thread_end_key, pool) != 0) {
        return pool->common;
    }
    struct cache *cache = adopt(pool);
    if (!cache) {
        return pool->common;
    }
    cache->next_in_thread = my_caches;
    my_caches = cache;
    return cache_last = cache;
}

void cache_forget_all(struct pool *pool) {
    cache_seize_all(pool);
    for (struct cache *cache = atomic_load(&pool->caches); cache; cache = cache->next_in_pool) {
        for (unsigned i = 0; i < SMALL_CLASSES; i++) {
            struct bin *bin = &cache->bins[i];
            bin->head = bin->tail = NULL;
            bin->count = bin->target = 0;
            books_set(&bin->frees, books_get(&bin->allocs));
        }
        for (unsigned i = 0; i < LARGE_DRAWERS; i++) {
            struct drawer *drawer = &cache->drawers[i];
            drawer->head = drawer->tail = NULL;
            drawer->count = drawer->target = 0;
            books_set(&drawer->frees, books_get(&drawer->allocs));
        }
        cache->bytes = cache->large_bytes = 0;
        shelf_forget(&cache->shelf);
        for (unsigned i = 0; i < TIDES; i++) {
            tide_ebb(&cache->tides[i]);
        }
    }
    cache_return_all(pool);
}
