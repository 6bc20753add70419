/*
 * Questions about a pool: what lies at an address, what the books say, and whether everything still
 * fits together.
 */
#include "pool/internal.h"

#include <errno.h>

/* --- what lies at an address --- */

static _Atomic uint64_t last_id;

/* A block found under the lock: one of the two kinds, live, covering the address. */
struct found {
    struct block *block;
    struct range *range;
};

static int find_live(uint64_t address, struct found *found) {
    struct page *page = page_map_page(page_map_get(address));
    *found = (struct found){0};
    if (page) {
        struct block *block = page_find(page, address);
        if (block && block->state == BLOCK_LIVE &&
            address - block_address(block) < block->requested) {
            found->block = block;
            return 0;
        }
    } else {
        struct range *range = arena_find(address);
        if (range && range->state == RANGE_LIVE && address - range->address < range->requested) {
            found->range = range;
            return 0;
        }
    }
    return -EINVAL;
}

/* Locks and returns the pool that `address` lies in, or NULL. */
static struct pool *lock_owner(uint64_t address) {
    struct pool *pool = page_map_owner(address);
    if (!pool) {
        return NULL;
    }
    pthread_mutex_lock(&pool->lock);
    if (page_map_owner(address) != pool) {
        pthread_mutex_unlock(&pool->lock);
        return NULL;
    }
    return pool;
}

int pool_find(uint64_t address, struct pool_block *out) {
    struct pool *pool = lock_owner(address);
    if (!pool) {
        return -ENOENT;
    }
    struct found found;
    int r = find_live(address, &found);
    if (r == 0) {
        const struct range *range = found.block ? page_of(found.block)->range : found.range;
        *out = (struct pool_block){
            .pool = pool,
            .address = found.block ? block_address(found.block) : range->address,
            .requested = found.block ? found.block->requested : range->requested,
            .segment_address = range->segment->base,
            .segment_bytes = range->segment->bytes,
        };
    }
    pthread_mutex_unlock(&pool->lock);
    return r;
}

uint64_t pool_block_id(uint64_t address) {
    struct pool *pool = lock_owner(address);
    if (!pool) {
        return 0;
    }
    struct found found;
    uint64_t id = 0;
    if (find_live(address, &found) == 0) {
        uint64_t fresh = atomic_fetch_add(&last_id, 1) + 1;
        if (found.block) {
            id = atomic_load(&found.block->id);
            if (id == 0) {
                atomic_store(&found.block->id, id = fresh);
            }
        } else {
            if (found.range->id == 0) {
                found.range->id = fresh;
            }
            id = found.range->id;
        }
    }
    pthread_mutex_unlock(&pool->lock);
    return id;
}

int pool_mark_reached_from_outside(uint64_t address) {
    struct pool *pool = lock_owner(address);
    if (!pool) {
        return -ENOENT;
    }
    struct found found;
    int r = find_live(address, &found);
    if (r == 0) {
        if (found.block) {
            page_of(found.block)->reached_from_outside = true;
        } else {
            found.range->segment->reached_from_outside = true;
        }
    }
    pthread_mutex_unlock(&pool->lock);
    return r;
}

/* --- the books --- */

static void add_metric(struct stats_metric *to, const struct books_metric *from) {
    to->current += books_get(&from->current);
    to->peak += books_get(&from->peak);
    to->total += books_get(&from->total);
    to->freed += books_get(&from->freed);
}

/* What the thread caches counted, and what they hold that could go out at once. */
static void add_cache(struct stats_device *stats, const struct cache *cache, uint64_t usable) {
    uint64_t requested = books_get(&cache->live_requested);
    uint64_t allocated = books_get(&cache->live_allocated);
    uint64_t total = books_get(&cache->requested_total);
    stats->requested.current += requested;
    stats->requested.total += total;
    stats->requested.freed += total - requested;
    stats->allocated.current += allocated;
    for (unsigned class = 0; class < SIZE_CLASSES; class ++) {
        const struct bin *bin = &cache->bins[class];
        uint64_t allocs = books_get(&bin->allocs), frees = books_get(&bin->frees);
        if (allocs == 0 && frees == 0) {
            continue;
        }
        uint64_t bytes = (uint64_t)size_class_units(class) << UNIT_SHIFT;
        struct stats_size_class *size = &stats->size_classes[stats_size_class(bytes)];
        size->total += allocs;
        size->live += allocs - frees;
        stats->allocated.total += allocs * bytes;
        stats->allocated.freed += frees * bytes;
        stats->allocations.total += allocs;
        stats->allocations.freed += frees;
        stats->allocations.current += allocs - frees;
        uint32_t left = bin->count; /* a snapshot of a list that its owner may be changing: bounded,
                                       and never unmapped */
        for (const struct block *b = bin->head; b && left-- > 0 && b->stamp <= usable;
             b = b->next) {
            stats->ready_bytes += bytes;
        }
    }
}

void pool_read(struct pool *pool, struct stats_device *stats) {
    const struct books *books = &pool->books;
#define METRIC(field, json, label) add_metric(&stats->field, &books->field);
#define OUTSIDE(field, json) add_metric(&stats->field, &books->field);
#define COUNTER(field) stats->field += books_get(&books->field);
#include "stats/fields.def"
    stats->ready_bytes += books_get(&books->ready_bytes);
    stats->free_blocks += books_get(&books->free_blocks);
    uint64_t largest = books_get(&books->largest_free_bytes);
    if (largest > stats->largest_free_bytes) {
        stats->largest_free_bytes = largest;
    }
    stats->releasable_bytes += books_get(&books->releasable_bytes);
    for (unsigned i = 0; i < STATS_SIZE_CLASSES; i++) {
        stats->size_classes[i].live += books_get(&pool->large_classes[i].live);
        stats->size_classes[i].total += books_get(&pool->large_classes[i].total);
    }
    uint64_t usable = atomic_load(&pool->epochs.usable);
    for (struct cache *cache = atomic_load(&pool->caches); cache; cache = cache->next_in_pool) {
        add_cache(stats, cache, usable);
    }
    uint64_t upper = books_get(&books->peak_upper), peak = books_get(&books->requested.peak);
    if (books_get(&books->peaks_shared)) {
        stats->peaks_exact = false;
        stats->peak_error_bytes += upper > peak ? upper - peak : 0;
    }
}

uint64_t pool_idle_bytes(struct pool *pool) {
    struct stats_device stats = {0};
    pool_read(pool, &stats);
    return stats.reserved.current - stats.allocated.current;
}

void pool_reset_peaks(struct pool *pool) {
    pthread_mutex_lock(&pool->lock);
    books_reset_peaks(&pool->books);
    books_set(&pool->books.requested.peak, 0); /* the caches' share is added by the look */
    books_set(&pool->books.allocated.peak, 0);
    pool_look(pool);
    pthread_mutex_unlock(&pool->lock);
}

/* --- the checker --- */

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
            HOLDS(!(previous && previous->state == RANGE_FREE && range->state == RANGE_FREE));
            HOLDS(range->state == RANGE_PAGE || arena_find(range->address) == range);
            HOLDS(page_map_owner(range->address) == arena->pool);
            free_bytes += range->state == RANGE_FREE ? range->bytes : 0;
            free_count += range->state == RANGE_FREE;
            *live += range->state == RANGE_LIVE ? range->bytes : 0;
            *pending += range->state == RANGE_PENDING ? range->bytes : 0;
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

static int check_page(const struct page *page, uint64_t *live, uint64_t *cached,
                      uint64_t *free_units) {
    unsigned used = 0;
    bool after_free = false;
    for (unsigned i = 0; i < PAGE_UNITS;) {
        const struct block *block = &page->blocks[i];
        HOLDS(block->units > 0 && i + block->units <= PAGE_UNITS);
        bool is_free = block->state == BLOCK_FREE;
        HOLDS(is_free || block->state == BLOCK_LIVE || block->state == BLOCK_CACHED);
        HOLDS(!(is_free && after_free));
        HOLDS(!is_free || block->units == 1 ||
              (block[block->units - 1].state == BLOCK_TAIL &&
               block[block->units - 1].units == block->units));
        *live += block->state == BLOCK_LIVE ? block_bytes(block) : 0;
        *cached += block->state == BLOCK_CACHED ? block_bytes(block) : 0;
        *free_units += is_free ? block->units : 0;
        used += is_free ? 0 : block->units;
        after_free = is_free;
        i += block->units;
    }
    HOLDS(used == page->used_units && used > 0);
    return 0;
}

static int check_locked(struct pool *pool) {
    uint64_t live = 0, pending = 0, cached = 0, free_units = 0, queued = 0;
    int line = check_arena(&pool->large, &live, &pending);
    if (line == 0) {
        line = check_arena(&pool->small, &live, &pending);
    }
    if (line != 0) {
        return line;
    }
    for (const struct segment *s = pool->small.segments; s; s = s->next) {
        for (uint64_t a = s->base; a < s->base + s->bytes; a += PAGE_BYTES) {
            const struct page *page = page_map_page(page_map_get(a));
            if (page && (line = check_page(page, &live, &cached, &free_units)) != 0) {
                return line;
            }
        }
    }
    HOLDS(free_units == pool->runs.free_units);
    for (enum reach reach = 0; reach < REACHES; reach++) {
        for (const struct range *r = pool->pending_ranges[reach].head; r; r = r->queue_next) {
            HOLDS(r->state == RANGE_PENDING);
            HOLDS(!r->queue_next || r->stamp <= r->queue_next->stamp);
            queued += r->bytes;
        }
        for (const struct block *b = pool->pending_blocks[reach].head; b; b = b->next) {
            HOLDS(b->state == BLOCK_CACHED);
            HOLDS(!b->next || b->stamp <= b->next->stamp);
            queued += block_bytes(b);
        }
    }
    HOLDS(queued == pool->pending_bytes);
    uint64_t parked = 0, allocated = books_get(&pool->books.allocated.current);
    for (struct cache *cache = atomic_load(&pool->caches); cache; cache = cache->next_in_pool) {
        uint64_t bytes = 0;
        cache_seize(cache);
        for (unsigned class = 0; class < SIZE_CLASSES; class ++) {
            uint32_t count = 0;
            for (const struct block *b = cache->bins[class].head; b; b = b->next) {
                bytes += b->state == BLOCK_CACHED && b->bin == class ? block_bytes(b) : 1;
                count++;
            }
            bytes += count == cache->bins[class].count ? 0 : 1;
        }
        parked += bytes;
        bool right = bytes == cache->bytes;
        allocated += books_get(&cache->live_allocated);
        cache_return(cache);
        HOLDS(right);
    }
    HOLDS(allocated == live);
    HOLDS(cached + pending == parked + queued);
    return 0;
}

int pool_check(struct pool *pool) {
    pthread_mutex_lock(&pool->lock);
    int line = check_locked(pool);
    pthread_mutex_unlock(&pool->lock);
    return line;
}
