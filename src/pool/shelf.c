/*
 * The shelf: small blocks on their way from a thread that only frees to one that only allocates.
 *
 *      oldest   [ 512 B: 3 | 4 KiB: 1 | ... | 1 MiB: 2 | stamp 7 ]  [ ... | stamp 9 ]  ...   newest
 *
 * The first one's cache, when it is full, is put here whole, as a crate with a list for each size
 * class, and the next thread that misses a class takes crates whole, as many as its cache has room
 * for: neither of them merges or cuts a run for it, and both come seldom. A cache that has no room
 * for a crate takes only the classes it could use. What it has too much of collects in the cache of
 * a thread that never frees, until there is nothing else in it; then half goes back to the pages.
 * A crate is usable when the epoch in which it was packed is.
 *
 * The shelf holds a bounded number of bytes, and is cleared when memory is short.
 */
#include "pool/internal.h"

#define TINY_CLASSES 32 /* up to 16 KiB */

static struct crate *crate_at(struct shelf *shelf, unsigned i) {
    return &shelf->crates[(shelf->first + i) % SHELF_CRATES];
}

static void drop_oldest(struct shelf *shelf) {
    shelf->first = (shelf->first + 1) % SHELF_CRATES;
    shelf->count--;
}

/* The blocks themselves are not looked at: by now they may be far from this thread's processor. */
void shelf_put(struct pool *pool, struct cache *cache) {
    struct shelf *shelf = &pool->shelf;
    if (shelf->count == SHELF_CRATES || shelf->bytes + cache->bytes > shelf_room(pool)) {
        cache_empty_bins(cache);
        return;
    }
    struct crate *crate = crate_at(shelf, shelf->count++);
    crate->bytes = cache->bytes;
    crate->stamp = epochs_stamp(&pool->epochs);
    crate->used = 0;
    shelf->bytes += cache->bytes;
    for (unsigned i = 0; cache->bytes > 0 && i < SMALL_CLASSES; i++) {
        struct batch batch = cache_take(cache, i, cache->bins[i].count);
        if (batch.first) {
            crate->batches[crate->used++] = (struct packed){batch, i};
        }
    }
}

/* Takes one list out of a crate. */
static struct batch unpack(struct shelf *shelf, struct crate *crate, unsigned i) {
    struct packed packed = crate->batches[i];
    uint64_t bytes = packed.batch.count * size_class_bytes(packed.size_class);
    crate->batches[i] = crate->batches[--crate->used];
    crate->bytes -= bytes;
    shelf->bytes -= bytes;
    return packed.batch;
}

/* The classes from `first` to `last` of a crate go into a cache. True if there was anything. */
static bool take(struct shelf *shelf, struct crate *crate, struct cache *cache, unsigned first,
                 unsigned last) {
    unsigned before = crate->used;
    cache_enter(cache);
    for (unsigned i = crate->used; i-- > 0;) {
        unsigned size_class = crate->batches[i].size_class;
        if (first <= size_class && size_class <= last) {
            struct batch batch = unpack(shelf, crate, i);
            block_fetch(batch.first);
            cache_push_batch(cache, size_class, batch);
        }
    }
    cache_leave(cache);
    return crate->used < before;
}

static bool take_crates(struct pool *pool, struct cache *cache) {
    struct shelf *shelf = &pool->shelf;
    bool any = false;
    while (shelf->count > 0 && order_cheaply(pool, crate_at(shelf, 0)->stamp) &&
           cache->bytes + crate_at(shelf, 0)->bytes <= cache->bytes_max) {
        any |= take(shelf, crate_at(shelf, 0), cache, 0, SMALL_CLASSES);
        drop_oldest(shelf);
    }
    return any;
}

static bool take_classes(struct pool *pool, struct cache *cache, unsigned first, unsigned last) {
    struct shelf *shelf = &pool->shelf;
    bool any = false;
    for (unsigned i = 0; i < shelf->count && cache->bytes < cache->bytes_max; i++) {
        struct crate *crate = crate_at(shelf, i);
        any |= epochs_usable(&pool->epochs, crate->stamp) && take(shelf, crate, cache, first, last);
    }
    return any;
}

/* Nothing was freed since this was last asked. */
static bool only_takes(struct cache *cache) {
    uint64_t before = cache->given_at_take;
    cache->given_at_take = tide_given(&cache->tides[TIDE_COUNT]);
    return cache->given_at_take == before;
}

bool shelf_take(struct pool *pool, struct cache *cache, unsigned size_class) {
    bool tiny = size_class < TINY_CLASSES, takes = only_takes(cache);
    if (pool->shelf.count == 0) {
        return false;
    }
    if (take_crates(pool, cache) ||
        take_classes(pool, cache, tiny ? 0 : size_class,
                     tiny ? TINY_CLASSES - 1 : size_class + CACHE_LARGER_WHEN_SHORT)) {
        return true;
    }
    if (takes && cache->bytes > cache->bytes_max / 2) {
        cache_enter(cache);
        cache_spill(cache, cache->bytes_max / 2);
        cache_leave(cache);
        return take_crates(pool, cache);
    }
    return false;
}

bool shelf_clear(struct pool *pool) {
    struct shelf *shelf = &pool->shelf;
    bool any = shelf->bytes > 0;
    for (; shelf->count > 0; drop_oldest(shelf)) {
        struct crate *crate = crate_at(shelf, 0);
        while (crate->used > 0) {
            reclaim_list(pool, unpack(shelf, crate, 0).first);
        }
    }
    return any;
}
