/*
 * The shelf's small blocks.
 *
 *      oldest   [ 512 B: 3 | 4 KiB: 1 | ... | 1 MiB: 2 | stamp 7 ]  [ ... | stamp 9 ]  ...   newest
 *
 * What one thread's full cache held comes as a crate, with a list for each size class, and the next
 * thread that misses a class takes crates whole, as many as its cache has room for: neither of them
 * looks at the blocks, whose descriptors may be far from its processor by now. A cache that has no
 * room for a crate takes only the classes it could use. What it has too much of collects in the cache
 * of a thread that never frees, until there is nothing else in it; then half goes back to the pages.
 * A crate is usable when the epoch in which it was packed is.
 */
#include "pool/internal.h"

#define TINY_CLASSES 32 /* up to 16 KiB */

void shelf_start(struct shelf *shelf, struct pool *pool) {
    shelf->pool = pool;
    pool_start_lock(&shelf->lock);
}

void shelf_set_number(struct shelf *shelf, unsigned number) {
    pthread_mutex_lock(&shelf->lock);
    shelf->number = number;
    pthread_mutex_unlock(&shelf->lock);
}

struct shelf *shelf_lock_receiver(struct cache *cache) {
    struct shelf *common = &cache->pool->common->shelf;
    struct shelf *shelf = cache->serves > 0 ? &cache_numbered(cache->serves)->shelf : common;
    pthread_mutex_lock(&shelf->lock);
    if (shelf->number != cache->serves) { /* that thread has ended */
        pthread_mutex_unlock(&shelf->lock);
        shelf = common;
        pthread_mutex_lock(&shelf->lock);
    }
    return shelf;
}

struct shelves shelves_of(struct cache *cache) {
    return (struct shelves){{&cache->shelf, &cache->pool->common->shelf}};
}

bool shelves_have(struct cache *cache, bool large) {
    struct shelves shelves = shelves_of(cache);
    unsigned count = 0;
    for (unsigned i = 0; i < SHELVES; i++) {
        struct shelf *shelf = shelves.of[i];
        count +=
            atomic_load_explicit(large ? &shelf->range_count : &shelf->count, memory_order_relaxed);
    }
    return count > 0;
}

static struct crate *crate_at(struct shelf *shelf, unsigned i) {
    return &shelf->crates[(shelf->first + i) % SHELF_CRATES];
}

static void drop_oldest(struct shelf *shelf) {
    shelf->first = (shelf->first + 1) % SHELF_CRATES;
    shelf->count--;
    atomic_fetch_sub(&shelf->pool->shelved, 1);
}

static void pack(struct shelf *shelf, struct cache *cache) {
    struct crate *crate = crate_at(shelf, shelf->count);
    crate->bytes = cache->bytes;
    crate->stamp = epochs_stamp(&cache->pool->epochs);
    crate->used = 0;
    books_add(&shelf->bytes, cache->bytes);
    for (unsigned i = 0; cache->bytes > 0 && i < SMALL_CLASSES; i++) {
        struct batch batch = cache_take(cache, i, cache->bins[i].count);
        if (batch.first) {
            crate->batches[crate->used++] = (struct packed){batch, i};
        }
    }
    shelf->count++;
    atomic_fetch_add(&shelf->pool->shelved, 1);
}

bool shelf_put(struct cache *cache) {
    struct shelf *shelf = shelf_lock_receiver(cache);
    bool room = shelf->count < SHELF_CRATES &&
                shelf->bytes + cache->bytes <=
                    atomic_load_explicit(&shelf->pool->cache_room, memory_order_relaxed);
    if (room) {
        pack(shelf, cache);
    }
    pthread_mutex_unlock(&shelf->lock);
    return room;
}

/* Takes one list out of a crate. */
static struct batch unpack(struct shelf *shelf, struct crate *crate, unsigned i) {
    struct packed packed = crate->batches[i];
    uint64_t bytes = packed.batch.count * size_class_bytes(packed.size_class);
    crate->batches[i] = crate->batches[--crate->used];
    crate->bytes -= bytes;
    books_add(&shelf->bytes, -bytes);
    return packed.batch;
}

/* The classes from `first` to `last` of a crate go into a cache. True if there was anything. */
static bool take(struct shelf *shelf, struct crate *crate, struct cache *cache, unsigned first,
                 unsigned last) {
    unsigned before = crate->used;
    for (unsigned i = crate->used; i-- > 0;) {
        unsigned size_class = crate->batches[i].size_class;
        if (first <= size_class && size_class <= last) {
            struct batch batch = unpack(shelf, crate, i);
            block_fetch(batch.first);
            cache_push_batch(cache, size_class, batch);
        }
    }
    return crate->used < before;
}

static bool has_room_for(const struct cache *cache, const struct crate *crate) {
    uint64_t room = atomic_load_explicit(&cache->pool->cache_room, memory_order_relaxed);
    return cache->bytes + crate->bytes <= (room < cache->bytes_max ? room : cache->bytes_max);
}

static bool take_crates(struct shelf *shelf, struct cache *cache, uint64_t usable) {
    bool any = false;
    while (shelf->count > 0 && crate_at(shelf, 0)->stamp <= usable &&
           has_room_for(cache, crate_at(shelf, 0))) {
        any |= take(shelf, crate_at(shelf, 0), cache, 0, SMALL_CLASSES);
        drop_oldest(shelf);
    }
    return any;
}

static bool take_classes(struct shelf *shelf, struct cache *cache, unsigned size_class,
                         uint64_t usable) {
    bool tiny = size_class < TINY_CLASSES, any = false;
    unsigned first = tiny ? 0 : size_class;
    unsigned last = tiny ? TINY_CLASSES - 1 : size_class + CACHE_LARGER_WHEN_SHORT;
    for (unsigned i = 0; i < shelf->count && cache->bytes < cache->bytes_max; i++) {
        struct crate *crate = crate_at(shelf, i);
        any |= crate->stamp <= usable && take(shelf, crate, cache, first, last);
    }
    return any;
}

bool shelf_take(struct cache *cache, unsigned size_class, uint64_t usable) {
    struct shelves shelves = shelves_of(cache);
    bool any = false;
    for (unsigned i = 0; i < SHELVES && !any; i++) {
        struct shelf *shelf = shelves.of[i];
        pthread_mutex_lock(&shelf->lock);
        any = take_crates(shelf, cache, usable) || take_classes(shelf, cache, size_class, usable);
        pthread_mutex_unlock(&shelf->lock);
    }
    return any;
}

uint64_t shelf_stamp(struct cache *cache) {
    struct shelves shelves = shelves_of(cache);
    uint64_t stamp = 0;
    for (unsigned i = 0; i < SHELVES && stamp == 0; i++) {
        struct shelf *shelf = shelves.of[i];
        pthread_mutex_lock(&shelf->lock);
        stamp = shelf->count > 0 ? crate_at(shelf, 0)->stamp : 0;
        pthread_mutex_unlock(&shelf->lock);
    }
    return stamp;
}

/* Nothing was freed since this was last asked. */
static bool only_takes(struct cache *cache) {
    uint64_t before = cache->given_at_miss;
    cache->given_at_miss = tide_given(&cache->tides[TIDE_COUNT]);
    return cache->given_at_miss == before;
}

bool shelf_make_way(struct cache *cache) {
    if (!only_takes(cache) || cache->bytes <= cache->bytes_max / 2 || shelf_stamp(cache) == 0) {
        return false;
    }
    cache_spill(cache, cache->bytes_max / 2);
    return true;
}

bool shelf_empty(struct pool *pool, struct shelf *shelf) {
    pthread_mutex_lock(&shelf->lock);
    bool any = shelf->bytes > 0;
    for (; shelf->count > 0; drop_oldest(shelf)) {
        struct crate *crate = crate_at(shelf, 0);
        while (crate->used > 0) {
            reclaim_list(pool, unpack(shelf, crate, 0).first);
        }
    }
    pthread_mutex_unlock(&shelf->lock);
    return any;
}

void shelf_forget(struct shelf *shelf) {
    pthread_mutex_lock(&shelf->lock);
    atomic_fetch_sub(&shelf->pool->shelved, shelf->count + shelf->range_count);
    shelf->count = shelf->range_count = 0;
    shelf->bytes = shelf->range_bytes = 0;
    pthread_mutex_unlock(&shelf->lock);
}
