/*
 * Shelves: small blocks on their way from a thread that only frees to one that only allocates.
 *
 * The first one's cache, when it is full, is put here by size class, a batch at a time, and a batch
 * is taken whole by the next cache that has none: neither merges nor cuts a run for it. A batch is a list in the order of its stamps; its first block keeps
 * what belongs to all of it:
 *
 *      first->stamp       of the last block: usable when that is
 *      first->requested   how many blocks there are
 *      first->id          the next batch
 *      second->id         the last block
 *
 * Shelves hold a bounded number of bytes, and are cleared when memory is short.
 */
#include "pool/internal.h"

static struct block *as_block(uint64_t link) {
    return (struct block *)(uintptr_t)link;
}

static struct block *next_batch(const struct block *first) {
    return as_block(atomic_load_explicit(&first->id, memory_order_relaxed));
}

static void set_link(struct block *block, const struct block *to) {
    atomic_store_explicit(&block->id, (uint64_t)(uintptr_t)to, memory_order_relaxed);
}

void shelf_put(struct pool *pool, struct batch batch) {
    struct block *first = batch.first;
    struct shelf *shelf = &pool->shelves[first->bin];
    uint64_t bytes = batch.count * block_bytes(first);
    if (pool->shelf_bytes + bytes > pool->cache_bytes_max) {
        reclaim_list(pool, first);
        return;
    }
    if (batch.count > 1) {
        set_link(first->next, batch.last);
    }
    first->stamp = batch.last->stamp;
    first->requested = batch.count;
    set_link(first, NULL);
    if (shelf->first) {
        set_link(shelf->last, first);
    } else {
        shelf->first = first;
    }
    shelf->last = first;
    pool->shelf_bytes += bytes;
}

static struct batch take(struct pool *pool, struct shelf *shelf) {
    struct block *first = shelf->first;
    struct batch batch = {first, first, first->requested};
    shelf->first = next_batch(first);
    if (batch.count > 1) {
        batch.last = as_block(atomic_load_explicit(&first->next->id, memory_order_relaxed));
    }
    pool->shelf_bytes -= batch.count * block_bytes(first);
    return batch;
}

bool shelf_take(struct pool *pool, struct cache *cache, unsigned size_class) {
    struct shelf *shelf = &pool->shelves[size_class];
    if (!shelf->first || !order_cheaply(pool, shelf->first->stamp)) {
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
        while (pool->shelves[i].first) {
            reclaim_list(pool, take(pool, &pool->shelves[i]).first);
        }
    }
    return any;
}
