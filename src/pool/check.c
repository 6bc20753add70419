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
            HOLDS(range->block.address == at && range->bytes > 0 && range->bytes % ARENA_UNIT == 0);
            HOLDS(range->segment == segment && range->previous == previous);
            HOLDS(!(previous && range_state(previous) == BLOCK_FREE &&
                    range_state(range) == BLOCK_FREE));
            HOLDS(range_state(range) == BLOCK_PAGE || arena_find(range->block.address) == range);
            HOLDS(page_map_owner(range->block.address) == arena->pool);
            free_bytes += range_state(range) == BLOCK_FREE ? range->bytes : 0;
            free_count += range_state(range) == BLOCK_FREE;
            *live += range_state(range) == BLOCK_LIVE ? range->bytes : 0;
            *pending += range_state(range) == BLOCK_CACHED ? range->bytes : 0;
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
              (a->bytes == b->bytes && a->range->block.address < b->range->block.address));
    }
    return 0;
}

/* What the first slots of a window should hold: frames in use, that its block has or that are its own. */
static int check_window(const struct layouts *layouts, const struct window *window,
                        uint64_t *in_use) {
    uint32_t conflicts = 0, own = window->used > window->kept ? window->used : window->kept;
    HOLDS(window->slots == layouts_window_slots(window->slots) && own <= window->slots);
    HOLDS(page_map_owner(window->segment.base) == layouts->pool);
    HOLDS(range_state(&window->range) == BLOCK_PAGE ||
          arena_find(window->segment.base) == &window->range);
    for (uint32_t i = 0; i < window->slots; i++) {
        const struct slot *slot = layouts_slot(layouts, window->first + i);
        const struct frame *frame = slot->frame ? layouts_frame(layouts, slot->frame) : NULL;
        if (i < window->extent_slots) {
            HOLDS(slot->window == window && !frame && slot->mapped && !slot->stale);
            continue;
        }
        HOLDS(slot->window == window &&
              (frame ? slot->mapped && !slot->stale : slot->mapped == slot->stale));
        HOLDS(!frame || frame->exists);
        HOLDS(i >= own || (frame && frame->in_use));
        conflicts += !frame || frame->in_use;
    }
    HOLDS(conflicts == window->conflicts);
    HOLDS(window->used == 0 || window->kept > 0 || window->extent_slots <= window->used);
    *in_use += own > window->extent_slots ? own - window->extent_slots : 0;
    return 0;
}

static int check_order(const struct layouts *layouts) {
    for (unsigned class = 0; class < WINDOW_CLASSES; class ++) {
        const struct window *last = NULL;
        for (const struct window *w = layouts->free[class]; w; w = w->next) {
            HOLDS(w->previous == last && (!last || last->first < w->first));
            HOLDS(range_state(&w->range) == BLOCK_FREE);
            last = w;
        }
        HOLDS(layouts->last_free[class] == last);
    }
    return 0;
}

/* Those that are free stand in their list, and no others do. */
static int check_extents(const struct layouts *layouts, uint64_t *exist, uint64_t *idle) {
    uint64_t listed = 0;
    const struct window *last = NULL;
    for (const struct window *w = layouts->oldest_extent; w; last = w, w = w->newer_extent) {
        HOLDS(w->older_extent == last && w->used == 0 && w->kept == 0 && w->extent_slots > 0);
        listed += w->extent_slots;
    }
    HOLDS(layouts->newest_extent == last);
    for (const struct window *w = layouts->windows; w; w = w->next_of_all) {
        *exist += w->extent_slots;
        *idle += w->used == 0 && w->kept == 0 ? w->extent_slots : 0;
    }
    HOLDS(listed == *idle);
    return 0;
}

static int check_layouts(const struct layouts *layouts, uint64_t *live, uint64_t *pending) {
    uint64_t in_use = 0, used = 0, exist = 0, idle = 0, listed = 0, kept = 0;
    uint64_t extents = 0, idle_extents = 0;
    int disorder = check_order(layouts);
    if (disorder != 0) {
        return disorder;
    }
    for (const struct window *w = layouts->windows; w; w = w->next_of_all) {
        int line = check_window(layouts, w, &in_use);
        enum block_state state = range_state(&w->range);
        if (line != 0) {
            return line;
        }
        HOLDS((state == BLOCK_FREE) == (w->used == 0));
        HOLDS(w->used == 0 || w->range.bytes == (uint64_t)w->used << PAGE_SHIFT);
        *live += state == BLOCK_LIVE ? w->range.bytes : 0;
        *pending += state == BLOCK_CACHED ? w->range.bytes : 0;
        kept += w->kept > w->used ? w->kept - w->used : 0;
    }
    for (uint32_t n = 1; n <= layouts->frame_count; n++) {
        const struct frame *frame = layouts_frame(layouts, n);
        for (uint32_t s = frame->exists ? frame->slots : 0; s; s = layouts_slot(layouts, s)->next) {
            HOLDS(layouts_slot(layouts, s)->frame == n);
        }
        exist += frame->exists;
        used += frame->exists && frame->in_use;
        idle += frame->exists && !frame->in_use;
    }
    for (uint32_t n = layouts->oldest_frame; n; n = layouts_frame(layouts, n)->next) {
        HOLDS(!layouts_frame(layouts, n)->in_use);
        listed++;
    }
    HOLDS(used == in_use && idle == listed); /* so none is in use by two */
    disorder = check_extents(layouts, &extents, &idle_extents);
    HOLDS((exist + extents) << PAGE_SHIFT == layouts->reserved_bytes || disorder != 0);
    HOLDS((idle + idle_extents) << PAGE_SHIFT == layouts->free_bytes || disorder != 0);
    HOLDS(kept << PAGE_SHIFT == layouts->kept_bytes);
    return disorder;
}

static bool is_head(const struct page *page, unsigned unit) {
    return page_heads(page)[unit >> 6] >> (unit & 63) & 1;
}

/* What pages of small blocks have. */
struct in_pages {
    uint64_t live, cached, free_units, free_runs;
};

static int check_page(struct page *page, struct in_pages *all) {
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
        HOLDS(state == BLOCK_LIVE || block_header(block) >> HEADER_OWNER_SHIFT == 0);
        all->live += state == BLOCK_LIVE ? block_bytes(block) : 0;
        all->cached += state == BLOCK_CACHED ? block_bytes(block) : 0;
        all->free_units += is_free ? units : 0;
        all->free_runs += is_free;
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

static int check_list(struct block *first, unsigned at, uint32_t count, uint64_t bytes) {
    for (struct block *b = first; b; b = b->next) {
        HOLDS(block_state(b) == BLOCK_CACHED && block_bin(b) == at);
        HOLDS(block_is_large(b) == (at >= SMALL_CLASSES));
        HOLDS(!block_is_large(b) || bin_of_large(range_of(b)->bytes) == at);
        bytes -= block_bytes(b);
        count--;
    }
    HOLDS(bytes == 0 && count == 0);
    return 0;
}

static int check_transfer(struct transfer *transfer) {
    uint64_t waiting = 0;
    for (unsigned i = 0; i < transfer->count; i++) {
        const struct magazine *magazine =
            &transfer->magazines[(transfer->first + i) % TRANSFER_MAGAZINES];
        HOLDS(magazine->count > 0);
        int line = check_list(magazine->first, magazine->bin, magazine->count, magazine->bytes);
        if (line != 0) {
            return line;
        }
        HOLDS(!magazine->last->next && magazine->last->stamp <= magazine->stamp);
        waiting += magazine->bytes;
    }
    HOLDS(waiting == books_get(&transfer->bytes));
    return 0;
}

static int check_cache(struct cache *cache) {
    uint64_t bytes = 0;
    for (unsigned at = 0; at < BINS; at++) {
        const struct bin *bin = &cache->bins[at];
        uint64_t here = 0;
        for (struct block *b = bin->head; b; b = b->next) {
            here += block_bytes(b);
            HOLDS(b->next || b == bin->tail);
        }
        int line = check_list(bin->head, at, bin->count, here);
        if (line != 0) {
            return line;
        }
        bytes += here;
    }
    HOLDS(bytes == cache->bytes);
    HOLDS(!quota_sleeps(cache) || cache->number == 0 || cache->transfer.number == 0);
    return 0;
}

static int check_page_at(uint64_t address, struct in_pages *all) {
    struct page *page = page_map_page(page_map_get(address));
    return page ? check_page(page, all) : 0;
}

static int check_pages(const struct pool *pool, struct in_pages *all) {
    int line = 0;
    for (const struct window *w = pool->layouts.windows; w && line == 0; w = w->next_of_all) {
        line = check_page_at(w->segment.base, all);
    }
    for (const struct segment *s = pool->small.segments; s; s = s->next) {
        for (uint64_t a = s->base; a < s->base + s->bytes && line == 0; a += PAGE_BYTES) {
            line = check_page_at(a, all);
        }
    }
    return line;
}

static int check_pending(const struct pool *pool) {
    uint64_t queued = 0;
    for (enum reach reach = 0; reach < REACHES; reach++) {
        for (struct block *b = pool->pending[reach].head; b; b = b->next) {
            HOLDS(block_state(b) == BLOCK_CACHED);
            HOLDS(!b->next || b->stamp <= b->next->stamp);
            queued += block_bytes(b);
        }
    }
    HOLDS(queued == pool->pending_bytes);
    return 0;
}

/* What lies in caches, and what is live as they count. */
static int check_caches(struct pool *pool, uint64_t *held, uint64_t *live) {
    uint64_t quotas = 0;
    int line = 0;
    for (struct cache *c = atomic_load(&pool->caches); c && line == 0; c = c->next_in_pool) {
        cache_seize(c);
        line = check_cache(c);
        *held += c->bytes;
        quotas += cache_room(c) + c->transfer.room;
        *live += watermark_live(&c->watermarks[WATERMARK_ALLOCATED]);
        cache_return(c);
    }
    for (struct cache *c = atomic_load(&pool->caches); c && line == 0; c = c->next_in_pool) {
        lock_acquire(&c->transfer.lock);
        line = check_transfer(&c->transfer);
        *held += books_get(&c->transfer.bytes);
        if (line == 0 && quota_sleeps(c) && quota_cached(c) > 0) {
            line = __LINE__;
        }
        lock_release(&c->transfer.lock);
    }
    HOLDS(line != 0 || quotas == pool->quotas);
    return line;
}

static int check_locked(struct pool *pool) {
    struct in_pages small = {0};
    uint64_t live = 0, pending = 0, held = 0, counted = 0;
    int line = check_arena(&pool->large, &live, &pending);
    line = line ? line : check_arena(&pool->small, &live, &pending);
    line = line ? line : check_layouts(&pool->layouts, &live, &pending);
    line = line ? line : check_pages(pool, &small);
    line = line ? line : check_pending(pool);
    line = line ? line : check_caches(pool, &held, &counted);
    if (line != 0) {
        return line;
    }
    HOLDS(small.free_units == pool->runs.free_units && small.free_runs == pool->runs.count);
    HOLDS(counted == live + small.live);
    HOLDS(small.cached + pending == held + pool->pending_bytes + atomic_load(&pool->retired_bytes));
    return 0;
}

int pool_check(struct pool *pool) {
    lock_acquire(&pool->mapper); /* nothing is half mapped */
    lock_acquire(&pool->lock);
    int line = check_locked(pool);
    lock_release(&pool->lock);
    lock_release(&pool->mapper);
    return line;
}
