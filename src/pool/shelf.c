/*
 * The shelf: small blocks on their way from a thread that only frees to one that only allocates.
 *
 *      oldest   [ 512 B: 3 | 4 KiB: 1 | ... | 1 MiB: 2 | stamp 7 ]  [ ... | stamp 9 ]  ...   newest
 *
 * The first one's cache, when it is full, is put here whole, as a crate with a list for each size
 * class, and the next thread that misses a class takes crates whole, as many as its cache has room
 * for: neither of them merges or cuts a run for it, and both come seldom. A cache that is full of
 * other sizes takes only the classes it could use; if the missed one is tiny, all that is tiny. A crate is usable
 * when the epoch in which it was packed is.
 *
 * The shelf holds a bounded number of bytes, and is cleared when memory is short.
 */
#include "pool/internal.h"

#define TINY_CLASSES 32 /* up to 16 KiB */

/* For every two threads as much as one may park: a pair of them is what the shelf is for. */
static uint64_t most_bytes(const struct pool *pool) {
    return pool->cache_bytes_max * ((pool->caches_owned + 1) / 2);
}

static struct crate *crate_at(struct shelf *shelf, unsigned i) {
    return &shelf->crates[(shelf->first + i) % SHELF_CRATES];
}

static void drop_oldest(struct shelf *shelf) {
    shelf->first = (shelf->first + 1) % SHELF_CRATES;
    shelf->count--;
}

/* Out of a crate; `first` is NULL if it has none. */
static struct batch unpack(struct shelf *shelf, struct crate *crate, unsigned size_class) {
    struct batch batch = crate->batches[size_class];
    uint64_t bytes = batch.count * size_class_bytes(size_class);
    crate->batches[size_class] = (struct batch){0};
    crate->bytes -= bytes;
    shelf->bytes -= bytes;
    return batch;
}

/* The blocks themselves are not looked at: by now they may be far from this thread's processor. */
void shelf_put(struct pool *pool, struct cache *cache) {
    struct shelf *shelf = &pool->shelf;
    if (shelf->count == SHELF_CRATES || shelf->bytes + cache->bytes > most_bytes(pool)) {
        cache_empty_bins(cache);
        return;
    }
    struct crate *crate = crate_at(shelf, shelf->count++);
    crate->bytes = cache->bytes;
    crate->stamp = epochs_stamp(&pool->epochs);
    shelf->bytes += cache->bytes;
    for (unsigned i = 0; i < SMALL_CLASSES; i++) {
        crate->batches[i] = cache_take(cache, i, cache->bins[i].count);
    }
}

/* The classes from `first` to `last` of a crate go into a cache. True if there was anything. */
static bool take(struct shelf *shelf, struct crate *crate, struct cache *cache, unsigned first,
                 unsigned last) {
    bool any = false;
    cache_enter(cache);
    for (unsigned i = first; i <= last && i < SMALL_CLASSES && crate->bytes > 0; i++) {
        struct batch batch = unpack(shelf, crate, i);
        if (batch.first) {
            cache_push_batch(cache, i, batch);
            any = true;
        }
    }
    cache_leave(cache);
    return any;
}

bool shelf_take(struct pool *pool, struct cache *cache, unsigned size_class) {
    struct shelf *shelf = &pool->shelf;
    bool any = false;
    while (shelf->count > 0 && order_cheaply(pool, crate_at(shelf, 0)->stamp) &&
           cache->bytes + crate_at(shelf, 0)->bytes <= cache->bytes_max) {
        any |= take(shelf, crate_at(shelf, 0), cache, 0, SMALL_CLASSES);
        drop_oldest(shelf);
    }
    if (any) {
        return true;
    }
    bool tiny = size_class < TINY_CLASSES;
    unsigned first = tiny ? 0 : size_class;
    unsigned last = tiny ? TINY_CLASSES - 1 : size_class + CACHE_LARGER_WHEN_SHORT;
    for (unsigned i = 0; i < shelf->count && (tiny || cache->bytes < cache->bytes_max); i++) {
        struct crate *crate = crate_at(shelf, i);
        if (epochs_usable(&pool->epochs, crate->stamp)) {
            any |= take(shelf, crate, cache, first, last);
        }
    }
    return any;
}

bool shelf_clear(struct pool *pool) {
    struct shelf *shelf = &pool->shelf;
    bool any = shelf->bytes > 0;
    for (; shelf->count > 0; drop_oldest(shelf)) {
        struct crate *crate = crate_at(shelf, 0);
        for (unsigned i = 0; crate->bytes > 0; i++) {
            reclaim_list(pool, unpack(shelf, crate, i).first);
        }
    }
    return any;
}
