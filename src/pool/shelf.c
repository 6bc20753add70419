/*
 * The shelf: small blocks on their way from a thread that only frees to one that only allocates.
 *
 *      oldest   [ 512 B: 3 | 4 KiB: 1 | ... | 1 MiB: 2 | stamp 7 ]  [ ... | stamp 9 ]  ...   newest
 *
 * The first one's cache, when it is full, is put here whole, as a crate with a list for each size
 * class, and the next thread that misses a class takes crates whole, as many as its cache has room
 * for: neither of them merges or cuts a run for it, and both come seldom. A cache that is full of
 * other sizes takes only the class it misses. A crate is usable when the youngest of its blocks is.
 *
 * The shelf holds a bounded number of bytes, and is cleared when memory is short.
 */
#include "pool/internal.h"

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
    crate->batches[size_class] = (struct batch){0};
    uint64_t bytes = batch.first ? batch.count * block_bytes(batch.first) : 0;
    crate->bytes -= bytes;
    shelf->bytes -= bytes;
    return batch;
}

void shelf_put(struct pool *pool, struct cache *cache) {
    struct shelf *shelf = &pool->shelf;
    if (shelf->count == SHELF_CRATES || shelf->bytes + cache->bytes > most_bytes(pool)) {
        cache_empty_bins(cache);
        return;
    }
    struct crate *crate = crate_at(shelf, shelf->count++);
    *crate = (struct crate){.bytes = cache->bytes};
    shelf->bytes += cache->bytes;
    for (unsigned i = 0; cache->bytes > 0; i++) {
        struct batch batch = cache_take(cache, i, cache->bins[i].count);
        crate->batches[i] = batch;
        if (batch.first && batch.last->stamp > crate->stamp) {
            crate->stamp = batch.last->stamp;
        }
    }
}

static void push(struct cache *cache, struct batch batch) {
    if (batch.first) {
        cache_push_batch(cache, batch);
    }
}

bool shelf_take(struct pool *pool, struct cache *cache, unsigned size_class) {
    struct shelf *shelf = &pool->shelf;
    bool any = false;
    while (shelf->count > 0 && order_cheaply(pool, crate_at(shelf, 0)->stamp) &&
           cache->bytes + crate_at(shelf, 0)->bytes <= cache->bytes_max) {
        struct crate *crate = crate_at(shelf, 0);
        cache_enter(cache);
        for (unsigned i = 0; crate->bytes > 0; i++) {
            push(cache, unpack(shelf, crate, i));
        }
        cache_leave(cache);
        drop_oldest(shelf);
        any = true;
    }
    for (unsigned i = 0; !any && i < shelf->count; i++) {
        struct crate *crate = crate_at(shelf, i);
        if (crate->batches[size_class].first) {
            if (!epochs_usable(&pool->epochs, crate->stamp)) {
                break;
            }
            cache_enter(cache);
            push(cache, unpack(shelf, crate, size_class));
            cache_leave(cache);
            any = true;
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
