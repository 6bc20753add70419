/*
 * The shelf for large blocks: on their way from a thread that only frees to one that only allocates.
 *
 *      oldest   [ 1.1  1.2  1.2  1.9  MiB | stamp 7 ]  [ 2.5  4  MiB | stamp 9 ]  ...   newest
 *
 * The first one's drawers, when they are full, are put here in batches of mixed sizes. A thread that
 * misses a size takes the oldest batch with a range that fits, and as much more as its drawers
 * should get at once: neither merges nor cuts anything in the arena for it. A batch is usable when the youngest of
 * its ranges is.
 *
 * The shelf holds a bounded number of bytes, and is cleared when memory is short.
 */
#include "pool/internal.h"

#include <string.h>

/* Every drawer has a bit; those that hardly any cache has share the last. */
static uint64_t bit_of(unsigned drawer) {
    return (uint64_t)1 << (drawer < 63 ? drawer : 63);
}

static void append(struct range_batch *batch, struct range *range) {
    range->queue_next = NULL;
    *(batch->first ? &batch->last->queue_next : &batch->first) = range;
    batch->last = range;
    batch->bytes += range->bytes;
    batch->stamp = range->stamp > batch->stamp ? range->stamp : batch->stamp;
    batch->drawers |= bit_of(drawer_of(range->bytes));
}

static void give_up(struct pool *pool, const struct range_batch *batch) {
    for (struct range *range = batch->first, *next; range; range = next) {
        next = range->queue_next;
        reclaim_range(pool, range);
    }
}

static void put_batch(struct pool *pool, const struct range_batch *batch) {
    struct range_shelf *shelf = &pool->range_shelf;
    if (shelf->count == RANGE_SHELF_BATCHES ||
        shelf->bytes + batch->bytes > CACHE_LARGE_FACTOR * shelf_room(pool)) {
        give_up(pool, batch);
        return;
    }
    shelf->batches[shelf->count++] = *batch;
    shelf->bytes += batch->bytes;
}

static struct range_batch remove_batch(struct range_shelf *shelf, unsigned i) {
    struct range_batch batch = shelf->batches[i];
    shelf->count--;
    memmove(&shelf->batches[i], &shelf->batches[i + 1], (shelf->count - i) * sizeof batch);
    shelf->bytes -= batch.bytes;
    return batch;
}

void range_shelf_put(struct pool *pool, struct cache *cache) {
    uint64_t most = CACHE_LARGE_FACTOR * pool->cache_bytes_max / RANGE_BATCH_SHARE;
    struct range_batch batch = {0};
    for (unsigned i = 0; cache->large_bytes > 0 && i < LARGE_DRAWERS; i++) {
        struct drawer *drawer = &cache->drawers[i];
        while (drawer->head) {
            if (batch.bytes > 0 && batch.bytes + drawer->head->bytes > most) {
                put_batch(pool, &batch);
                batch = (struct range_batch){0};
            }
            append(&batch, cache_unlink(cache, drawer, NULL, drawer->head));
        }
    }
    if (batch.first) {
        put_batch(pool, &batch);
    }
}

/* The first range of a batch that a drawer of a cache would do for `bytes` with; else NULL. */
static struct range *find_fit(const struct range_batch *batch, uint64_t bytes,
                              struct range **before) {
    unsigned first = drawer_of(bytes), last = first + CACHE_DRAWERS_FURTHER;
    uint64_t drawers = 0;
    for (unsigned at = first; at <= last; at++) {
        drawers |= bit_of(at);
    }
    *before = NULL;
    for (struct range *range = batch->drawers & drawers ? batch->first : NULL; range;
         range = range->queue_next) {
        if (range->bytes >= bytes && drawer_of(range->bytes) <= last) {
            return range;
        }
        *before = range;
    }
    return NULL;
}

/* Out of a batch, which goes when it was its last one. */
static void take_out(struct range_shelf *shelf, unsigned i, struct range *before,
                     struct range *range) {
    struct range_batch *batch = &shelf->batches[i];
    *(before ? &before->queue_next : &batch->first) = range->queue_next;
    batch->last = batch->last == range ? before : batch->last;
    batch->bytes -= range->bytes;
    shelf->bytes -= range->bytes;
    if (!batch->first) {
        remove_batch(shelf, i);
    }
}

/*
 * The oldest batches that are usable go to a cache that has room. Of one whose thread frees large
 * blocks as well a quarter is left for those.
 */
static void take_more(struct pool *pool, struct cache *cache) {
    struct range_shelf *shelf = &pool->range_shelf;
    uint64_t most = cache->large_bytes_max - (cache->large_freed ? cache->large_bytes_max / 4 : 0);
    cache_enter(cache);
    while (shelf->count > 0 && epochs_usable(&pool->epochs, shelf->batches[0].stamp) &&
           cache->large_bytes + shelf->batches[0].bytes <= most) {
        struct range_batch batch = remove_batch(shelf, 0);
        for (struct range *range = batch.first, *next; range; range = next) {
            next = range->queue_next;
            range->stamp = 0;
            cache_push_ready_range(cache, range);
        }
    }
    cache->large_freed = false;
    cache_leave(cache);
}

struct range *range_shelf_take(struct pool *pool, struct cache *cache, uint64_t bytes) {
    struct range_shelf *shelf = &pool->range_shelf;
    for (unsigned i = 0; i < shelf->count; i++) {
        struct range *before, *range = find_fit(&shelf->batches[i], bytes, &before);
        if (range) {
            if (!order_cheaply(pool, shelf->batches[i].stamp)) {
                return NULL;
            }
            take_out(shelf, i, before, range);
            take_more(pool, cache);
            return range;
        }
    }
    return NULL;
}

bool range_shelf_clear(struct pool *pool) {
    struct range_shelf *shelf = &pool->range_shelf;
    bool any = shelf->count > 0;
    while (shelf->count > 0) {
        struct range_batch batch = remove_batch(shelf, 0);
        give_up(pool, &batch);
    }
    return any;
}
