/*
 * Shelves: small blocks on their way from a thread that only frees to one that only allocates.
 *
 * The first one's cache, when it is full, is put here by size class, a batch at a time, and a batch
 * is taken whole by the next cache that has none: neither merges nor cuts a run for it. A batch is a
 * list in the order of its stamps, so it is usable when its last block is.
 *
 * Shelves hold a bounded number of bytes, and are cleared when memory is short.
 */
#include "pool/internal.h"

static uint64_t bytes_of(const struct batch *batch) {
    return batch->count * block_bytes(batch->first);
}

void shelf_put(struct pool *pool, struct batch batch) {
    struct shelf *shelf = &pool->shelves[block_bin(batch.first)];
    struct shelved *shelved = NULL;
    if (pool->shelf_bytes + bytes_of(&batch) <= pool->cache_bytes_max) {
        shelved = host_slab_get(&pool->shelved_slab);
    }
    if (!shelved) {
        reclaim_list(pool, batch.first);
        return;
    }
    shelved->batch = batch;
    *(shelf->newest ? &shelf->newest->newer : &shelf->oldest) = shelved;
    shelf->newest = shelved;
    pool->shelf_bytes += bytes_of(&batch);
}

static struct batch take(struct pool *pool, struct shelf *shelf) {
    struct shelved *shelved = shelf->oldest;
    struct batch batch = shelved->batch;
    shelf->oldest = shelved->newer;
    shelf->newest = shelf->oldest ? shelf->newest : NULL;
    host_slab_put(&pool->shelved_slab, shelved);
    pool->shelf_bytes -= bytes_of(&batch);
    return batch;
}

bool shelf_take(struct pool *pool, struct cache *cache, unsigned size_class) {
    struct shelf *shelf = &pool->shelves[size_class];
    if (!shelf->oldest || !order_cheaply(pool, shelf->oldest->batch.last->stamp)) {
        return false;
    }
    struct batch batch = take(pool, shelf);
    cache_enter(cache);
    cache_push_batch(cache, batch);
    cache_leave(cache);
    return true;
}

bool shelf_clear(struct pool *pool) {
    bool any = pool->shelf_bytes > 0;
    for (unsigned i = 0; pool->shelf_bytes > 0 && i < SMALL_CLASSES; i++) {
        while (pool->shelves[i].oldest) {
            reclaim_list(pool, take(pool, &pool->shelves[i]).first);
        }
    }
    return any;
}

void shelf_forget(struct pool *pool) {
    for (unsigned i = 0; i < SMALL_CLASSES; i++) {
        while (pool->shelves[i].oldest) {
            take(pool, &pool->shelves[i]);
        }
    }
    pool->shelf_bytes = 0;
}
