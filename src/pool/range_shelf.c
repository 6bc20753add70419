/*
 * The shelf's large blocks.
 *
 *      oldest   [ 1.1  1.2  1.2  1.9  MiB | stamp 7 ]  [ 2.5  4  MiB | stamp 9 ]  ...   newest
 *
 * What one thread's full drawers held comes in batches of mixed sizes. A thread that misses a size
 * takes the oldest batch with a range that fits, and as much more as its drawers should get at once.
 * A batch is usable when the youngest of its ranges is.
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

static struct range_batch remove_batch(struct shelf *shelf, unsigned i) {
    struct range_batch batch = shelf->range_batches[i];
    shelf->range_count--;
    atomic_fetch_sub(&shelf->pool->shelved, 1);
    memmove(&shelf->range_batches[i], &shelf->range_batches[i + 1],
            (shelf->range_count - i) * sizeof batch);
    books_add(&shelf->range_bytes, -batch.bytes);
    return batch;
}

static bool has_room_for(const struct shelf *shelf, uint64_t bytes, uint64_t most) {
    return shelf->range_count < SHELF_RANGE_BATCHES && shelf->range_bytes + bytes <= most;
}

/* One batch out of the drawers from number `*at` on. */
static struct range_batch fill(struct cache *cache, unsigned *at, uint64_t most) {
    struct range_batch batch = {0};
    while (cache->large_bytes > 0 && *at < LARGE_DRAWERS) {
        struct drawer *drawer = &cache->drawers[*at];
        if (!drawer->head) {
            ++*at;
        } else if (batch.bytes > 0 && batch.bytes + drawer->head->bytes > most) {
            break;
        } else {
            append(&batch, cache_unlink(cache, drawer, NULL, drawer->head));
        }
    }
    return batch;
}

bool range_shelf_put(struct cache *cache) {
    struct shelf *shelf = shelf_lock_receiver(cache);
    uint64_t room = atomic_load_explicit(&shelf->pool->cache_room, memory_order_relaxed);
    uint64_t most = CACHE_LARGE_FACTOR * room;
    uint64_t each = most / RANGE_BATCH_SHARE;
    for (unsigned at = 0; cache->large_bytes > 0;) {
        if (!has_room_for(shelf, cache->large_bytes < each ? cache->large_bytes : each, most)) {
            break;
        }
        struct range_batch batch = fill(cache, &at, each);
        shelf->range_batches[shelf->range_count++] = batch;
        books_add(&shelf->range_bytes, batch.bytes);
        atomic_fetch_add(&shelf->pool->shelved, 1);
    }
    pthread_mutex_unlock(&shelf->lock);
    return cache->large_bytes == 0;
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
static void take_out(struct shelf *shelf, unsigned i, struct range *before, struct range *range) {
    struct range_batch *batch = &shelf->range_batches[i];
    *(before ? &before->queue_next : &batch->first) = range->queue_next;
    batch->last = batch->last == range ? before : batch->last;
    batch->bytes -= range->bytes;
    books_add(&shelf->range_bytes, -range->bytes);
    if (!batch->first) {
        remove_batch(shelf, i);
    }
}

/*
 * The oldest batches that are usable go to a cache that has room. Of one whose thread frees large
 * blocks as well a quarter is left for those.
 */
static void take_more(struct shelf *shelf, struct cache *cache, uint64_t usable) {
    uint64_t most = cache->large_bytes_max - (cache->large_freed ? cache->large_bytes_max / 4 : 0);
    while (shelf->range_count > 0 && shelf->range_batches[0].stamp <= usable &&
           cache->large_bytes + shelf->range_batches[0].bytes <= most) {
        struct range_batch batch = remove_batch(shelf, 0);
        for (struct range *range = batch.first, *next; range; range = next) {
            next = range->queue_next;
            range->stamp = 0;
            cache_push_ready_range(cache, range);
        }
    }
    cache->large_freed = false;
}

/* The oldest batch that has one that fits; SHELF_RANGE_BATCHES: there is none. */
static unsigned batch_with(const struct shelf *shelf, uint64_t bytes, struct range **range,
                           struct range **before) {
    for (unsigned i = 0; i < shelf->range_count; i++) {
        *range = find_fit(&shelf->range_batches[i], bytes, before);
        if (*range) {
            return i;
        }
    }
    *range = NULL;
    return SHELF_RANGE_BATCHES;
}

struct range *range_shelf_take(struct cache *cache, uint64_t bytes, uint64_t usable) {
    struct shelves shelves = shelves_of(cache);
    struct range *range = NULL, *before;
    for (unsigned i = 0; i < SHELVES && !range; i++) {
        struct shelf *shelf = shelves.of[i];
        pthread_mutex_lock(&shelf->lock);
        unsigned at = batch_with(shelf, bytes, &range, &before);
        if (range && shelf->range_batches[at].stamp <= usable) {
            take_out(shelf, at, before, range);
            take_more(shelf, cache, usable);
        } else {
            range = NULL;
        }
        pthread_mutex_unlock(&shelf->lock);
    }
    return range;
}

uint64_t range_shelf_stamp(struct cache *cache, uint64_t bytes) {
    struct shelves shelves = shelves_of(cache);
    struct range *range = NULL, *before;
    uint64_t stamp = 0;
    for (unsigned i = 0; i < SHELVES && !range; i++) {
        struct shelf *shelf = shelves.of[i];
        pthread_mutex_lock(&shelf->lock);
        unsigned at = batch_with(shelf, bytes, &range, &before);
        stamp = range ? shelf->range_batches[at].stamp : 0;
        pthread_mutex_unlock(&shelf->lock);
    }
    return stamp;
}

bool range_shelf_empty(struct pool *pool, struct shelf *shelf) {
    pthread_mutex_lock(&shelf->lock);
    bool any = shelf->range_count > 0;
    while (shelf->range_count > 0) {
        struct range_batch batch = remove_batch(shelf, 0);
        give_up(pool, &batch);
    }
    pthread_mutex_unlock(&shelf->lock);
    return any;
}
