/*
 * The checker: walks a whole pool and finds the first thing that does not fit. Called by tests
 * after every step.
 */
#include "pool/internal.h"

#define HOLDS(condition)                                                                           \
    do {                                                                                           \
        if (!(condition))                                                                          \
            return __LINE__;                                                                       \
    } while (0)

static int check_arena(const struct arena *arena, uint64_t *live, uint64_t *pending) {
    uint64_t free_bytes = 0, reserved = 0;
    size_t free_count = 0, ranges = 0;
    for (const struct segment *segment = arena->segments; segment; segment = segment->next) {
        uint64_t at = segment->base;
        const struct range *previous = NULL;
        for (const struct range *range = segment->first; range; range = range->next) {
            HOLDS(range->address == at && range->bytes > 0 && range->bytes % ARENA_UNIT == 0);
            HOLDS(range->segment == segment && range->previous == previous);
            HOLDS(!(previous && range_state(previous) == RANGE_FREE &&
                    range_state(range) == RANGE_FREE));
            HOLDS(range_state(range) == RANGE_PAGE || arena_find(range->address) == range);
            HOLDS(page_map_owner(range->address) == arena->pool);
            free_bytes += range_state(range) == RANGE_FREE ? range->bytes : 0;
            free_count += range_state(range) == RANGE_FREE;
            *live += range_state(range) == RANGE_LIVE ? range->bytes : 0;
            *pending += range_state(range) == RANGE_PENDING ? range->bytes : 0;
            at += range->bytes;
            ranges++;
            previous = range;
        }
        HOLDS(at == segment->base + segment->bytes);
        reserved += segment->bytes;
    }
    HOLDS(free_bytes == arena->free_bytes && reserved == arena->reserved_bytes);
    HOLDS(free_count == arena->free_count && ranges == arena->range_count);
    for (size_t i = 1; i < arena->free_count; i++) {
        const struct free_range *a = &arena->free[i - 1], *b = &arena->free[i];
        HOLDS(a->bytes < b->bytes ||
              (a->bytes == b->bytes && a->range->address < b->range->address));
    }
    return 0;
}

static bool is_head(const struct page *page, unsigned unit) {
    return page_heads(page)[unit >> 6] >> (unit & 63) & 1;
}

static int check_page(struct page *page, uint64_t *live, uint64_t *cached, uint64_t *free_units,
                      uint64_t *free_runs) {
    unsigned used = 0;
    bool after_free = false;
    for (unsigned i = 0; i < PAGE_UNITS;) {
        struct block *block = page_unit(page, i);
        unsigned units = block_units(block);
        enum block_state state = block_state(block);
        HOLDS(units > 0 && i + units <= PAGE_UNITS);
        bool is_free = state == BLOCK_FREE;
        HOLDS(is_free || state == BLOCK_LIVE || state == BLOCK_CACHED);
        HOLDS(!(is_free && after_free));
        HOLDS(is_head(page, i) == !is_free);
        for (unsigned u = i + 1; u < i + units; u++) {
            HOLDS(!is_head(page, u));
        }
        const struct block *tail = page_unit(page, i + units - 1);
        HOLDS(!is_free || units == 1 ||
              (block_state(tail) == BLOCK_TAIL && block_units(tail) == units));
        HOLDS(state == BLOCK_LIVE || block_life(block) >> LIFE_OWNER_SHIFT == 0);
        *live += state == BLOCK_LIVE ? block_bytes(block) : 0;
        *cached += state == BLOCK_CACHED ? block_bytes(block) : 0;
        *free_units += is_free ? units : 0;
        *free_runs += is_free;
        used += is_free ? 0 : units;
        after_free = is_free;
        i += units;
    }
    HOLDS(used == page->used_units && used > 0);
    for (unsigned word = 0; word < PAGE_HEAD_WORDS; word++) {
        HOLDS((page->head_words >> word & 1) == (page_heads(page)[word] != 0));
    }
    return 0;
}

static int check_shelf(struct shelf *shelf) {
    uint64_t shelved = 0, shelved_ranges = 0;
    for (unsigned i = 0; i < shelf->count; i++) {
        const struct crate *crate = &shelf->crates[(shelf->first + i) % SHELF_CRATES];
        uint64_t bytes = 0;
        for (unsigned j = 0; j < crate->used; j++) {
            const struct batch *batch = &crate->batches[j].batch;
            uint32_t count = 0;
            for (const struct block *b = batch->first; b; b = b->next) {
                HOLDS(block_state(b) == BLOCK_CACHED);
                HOLDS(block_bin(b) == crate->batches[j].size_class);
                HOLDS(b->stamp <= crate->stamp && (b->next || b == batch->last));
                bytes += block_bytes(b);
                count++;
            }
            HOLDS(count == batch->count);
        }
        HOLDS(bytes == crate->bytes);
        shelved += bytes;
    }
    for (unsigned i = 0; i < shelf->range_count; i++) {
        const struct range_batch *batch = &shelf->range_batches[i];
        uint64_t bytes = 0;
        for (const struct range *r = batch->first; r; r = r->queue_next) {
            HOLDS(range_state(r) == RANGE_PENDING && r->stamp <= batch->stamp);
            HOLDS((r->queue_next == NULL) == (r == batch->last));
            bytes += r->bytes;
        }
        HOLDS(bytes > 0 && bytes == batch->bytes);
        shelved_ranges += bytes;
    }
    HOLDS(shelved == shelf->bytes && shelved_ranges == shelf->range_bytes);
    return 0;
}

static int check_locked(struct pool *pool) {
    uint64_t live = 0, pending = 0, cached = 0, free_units = 0, free_runs = 0, queued = 0;
    int line = check_arena(&pool->large, &live, &pending);
    if (line == 0) {
        line = check_arena(&pool->small, &live, &pending);
    }
    if (line != 0) {
        return line;
    }
    for (const struct segment *s = pool->small.segments; s; s = s->next) {
        for (uint64_t a = s->base; a < s->base + s->bytes; a += PAGE_BYTES) {
            struct page *page = page_map_page(page_map_get(a));
            if (page && (line = check_page(page, &live, &cached, &free_units, &free_runs)) != 0) {
                return line;
            }
        }
    }
    HOLDS(free_units == pool->runs.free_units);
    HOLDS(free_runs == pool->runs.count);
    for (enum reach reach = 0; reach < REACHES; reach++) {
        for (const struct range *r = pool->pending_ranges[reach].head; r; r = r->queue_next) {
            HOLDS(range_state(r) == RANGE_PENDING);
            HOLDS(!r->queue_next || r->stamp <= r->queue_next->stamp);
            queued += r->bytes;
        }
        for (const struct block *b = pool->pending_blocks[reach].head; b; b = b->next) {
            HOLDS(block_state(b) == BLOCK_CACHED);
            HOLDS(!b->next || b->stamp <= b->next->stamp);
            queued += block_bytes(b);
        }
    }
    HOLDS(queued == pool->pending_bytes);
    uint64_t parked = 0, shelved = 0, allocated = 0;
    for (struct cache *cache = atomic_load(&pool->caches); cache; cache = cache->next_in_pool) {
        uint64_t bytes = 0, large = 0;
        cache_seize(cache);
        for (unsigned i = 0; i < LARGE_DRAWERS; i++) {
            uint32_t count = 0;
            for (const struct range *r = cache->drawers[i].head; r; r = r->queue_next) {
                large += range_state(r) == RANGE_PENDING && drawer_of(r->bytes) == i ? r->bytes : 1;
                count++;
            }
            large += count == cache->drawers[i].count ? 0 : 1;
        }
        for (unsigned size_class = 0; size_class < SMALL_CLASSES; size_class++) {
            uint32_t count = 0;
            for (const struct block *b = cache->bins[size_class].head; b; b = b->next) {
                bytes += block_state(b) == BLOCK_CACHED && block_bin(b) == size_class
                             ? block_bytes(b)
                             : 1;
                count++;
            }
            bytes += count == cache->bins[size_class].count ? 0 : 1;
        }
        parked += bytes + large;
        bool right = bytes == cache->bytes && large == cache->large_bytes;
        right &= !idle_sleeps(cache) || cache->bytes_max + cache->large_bytes_max == 0;
        allocated += tide_live(&cache->tides[TIDE_ALLOCATED]);
        cache_return(cache);
        HOLDS(right);
    }
    for (struct cache *cache = atomic_load(&pool->caches); cache; cache = cache->next_in_pool) {
        pthread_mutex_lock(&cache->shelf.lock);
        line = check_shelf(&cache->shelf);
        shelved += cache->shelf.bytes + cache->shelf.range_bytes;
        pthread_mutex_unlock(&cache->shelf.lock);
        if (line != 0) {
            return line;
        }
    }
    HOLDS(allocated == live);
    HOLDS(cached + pending == parked + queued + shelved + atomic_load(&pool->retired_bytes));
    return 0;
}

int pool_check(struct pool *pool) {
    pthread_mutex_lock(&pool->lock);
    int line = check_locked(pool);
    pthread_mutex_unlock(&pool->lock);
    return line;
}
