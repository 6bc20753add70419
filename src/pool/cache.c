#include "pool/internal.h"

void cache_set_room(struct cache *cache, uint64_t bytes) {
    cache->bytes_max = bytes;
    cache->large_bytes_max = CACHE_LARGE_FACTOR * bytes;
    cache->large_most = cache->large_bytes_max / CACHE_LARGE_SHARE;
    for (unsigned i = 0; i < SMALL_CLASSES; i++) {
        uint64_t fit = bytes / 2 / size_class_bytes(i);
        cache->bins[i].room = fit > CACHE_BIN_BLOCKS ? CACHE_BIN_BLOCKS : (uint32_t)fit;
    }
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

void cache_open_room(struct cache *cache) {
    uint64_t most = atomic_load_explicit(&cache->pool->cache_room, memory_order_relaxed);
    bool parts = gives_in_parts(cache);
    cache->bytes_max = most / (parts ? CRATE_SHARE : 1);
    cache->large_bytes_max = CACHE_LARGE_FACTOR * most / (parts ? RANGE_BATCH_SHARE : 1);
}

bool cache_gives(struct cache *cache) {
    if (idle_sleeps(cache)) {
        return false; /* it is not full: it has to wake */
    }
    bool gives = gives_to_others(cache);
    cache_open_room(cache);
    return gives;
}

void cache_make_room(struct cache *cache, unsigned size_class) {
    if (unlikely(idle_sleeps(cache))) {
        idle_wake(cache);
    }
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
    if (unlikely(idle_sleeps(cache))) {
        idle_wake(cache);
    }
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
        cache->bytes = cache->large_bytes = cache->parked = 0;
        cache->saw_others = true; /* what it had asked for is not known to be gone */
        shelf_forget(&cache->shelf);
        for (unsigned i = 0; i < TIDES; i++) {
            tide_ebb(&cache->tides[i]);
        }
    }
    pool->parked = 0;
    cache_return_all(pool);
}
