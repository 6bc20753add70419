/*
 * Checks the invariants of an arena and its slabs: ranges cover the segments end to end, adjacent
 * free ranges are merged, lists are sorted, counters agree with what they count. pool/check.c calls
 * these functions for the unit tests, under the pool's lock.
 */
#include "debug/check.h"

#include "heap/arena.h"
#include "heap/page_map.h"
#include "heap/slab.h"
#include "heap/va_range.h"

/* Returns whether stale mappings are sorted, and overlap neither each other nor a segment. */
static bool stale_mappings_are_apart(const struct arena *arena) {
    bool apart = arena->in_address_order || arena->stale_mappings.count == 0;
    uint64_t end = 0;
    for (unsigned i = 0; i < arena->stale_mappings.count && apart; i++) {
        const struct stale_mapping *stale_mapping = &arena->stale_mappings.at[i];
        apart = stale_mapping->base >= end && stale_mapping->bytes > 0;
        end = stale_mapping->base + stale_mapping->bytes;
    }
    for (const struct segment *s = arena->segments; s && apart; s = s->next) {
        const struct stale_mapping *stale_mapping = stale_behind(&arena->stale_mappings, s->base);
        apart = !stale_mapping || stale_mapping->base >= s->base + s->bytes;
    }
    return apart;
}

/* Sums over the ranges of an arena. `pending`: bytes of cached and pending blocks. */
struct sums {
    uint64_t free_bytes, live, pending;
    size_t free, count; /* ranges: free ones, all */
};

/* Checks a range that begins in the segment being checked, and adds it to *all. */
static const char *check_range(const struct arena *arena, const struct range *range,
                               struct sums *all) {
    const struct range *next = range->next;
    enum block_state state = range_state(range);
    uint64_t end = range->block.address + range->bytes;
    HOLDS(range->bytes > 0 && range->bytes % ARENA_UNIT == 0);
    HOLDS(!next || (next->previous == range && next->block.address == end));
    HOLDS(!next || state != BLOCK_FREE || range_state(next) != BLOCK_FREE);
    HOLDS(state == BLOCK_SLAB || arena_find(range->block.address) == range);
    HOLDS(page_map_pool(range->block.address) == arena->pool);
    all->free_bytes += state == BLOCK_FREE ? range->bytes : 0;
    all->free += state == BLOCK_FREE;
    all->live += state == BLOCK_LIVE ? range->bytes : 0;
    all->pending += state == BLOCK_CACHED ? range->bytes : 0;
    all->count++;
    return NULL;
}

/* Checks a segment and the ranges that begin in it. `joined`: it continues the one before. */
static const char *check_segment(const struct arena *arena, const struct segment *segment,
                                 struct sums *all) {
    uint64_t at = segment->base, end = at + segment->bytes, used = 0;
    const struct segment *previous = segment->previous;
    bool joined = !segment->is_allocation && previous && previous->base + previous->bytes == at;
    HOLDS(segment->is_allocation || !previous || previous->base + previous->bytes <= at);
    HOLDS(segment->first->block.address == at || joined);
    HOLDS((segment->first->previous != NULL) == joined || segment->first->block.address < at);
    for (const struct range *r = segment->first; at < end; r = r->next) {
        HOLDS(r && r->block.address <= at && r->block.address + r->bytes > at);
        const char *broken = r->block.address < segment->base ? NULL : check_range(arena, r, all);
        HOLDS(r->block.address < segment->base || r->segment == segment);
        uint64_t until = r->block.address + r->bytes < end ? r->block.address + r->bytes : end;
        used += range_state(r) == BLOCK_FREE ? 0 : until - at;
        at = until;
        if (broken)
            return broken;
    }
    HOLDS(used == segment->used);
    return NULL;
}

const char *check_arena(const struct arena *arena, uint64_t *live, uint64_t *pending) {
    struct sums all = {0};
    uint64_t reserved = 0, idle = 0, gaps = 0;
    const struct segment *last = NULL;
    for (const struct segment *segment = arena->segments; segment; segment = segment->next) {
        HOLDS(segment->previous == last);
        const char *broken = check_segment(arena, segment, &all);
        if (broken)
            return broken;
        bool gap_follows = arena->in_address_order && segment->next &&
                           segment->base + segment->bytes != segment->next->base;
        HOLDS(segment->gap_follows == gap_follows);
        gaps += gap_follows;
        reserved += segment->bytes;
        idle += segment->used == 0 ? segment->bytes : 0;
        last = segment;
    }
    for (const struct segment *s = arena->gap_list; s; s = s->next_in_gap_list, gaps--) {
        HOLDS(s->gap_follows && gaps > 0 &&
              (!s->next_in_gap_list || s->next_in_gap_list->previous_in_gap_list == s));
    }
    HOLDS(arena->last == last && gaps == 0);
    HOLDS(stale_mappings_are_apart(arena));
    HOLDS(all.free_bytes == arena->free_bytes && reserved == arena->reserved_bytes);
    HOLDS(all.free == arena->free_count && all.count == arena->range_count);
    HOLDS(idle == arena->idle_bytes);
    for (size_t i = 1; i < arena->free_count; i++) {
        const struct free_range *a = &arena->free[i - 1], *b = &arena->free[i];
        HOLDS(a->bytes < b->bytes ||
              (a->bytes == b->bytes && a->range->block.address < b->range->block.address));
    }
    *live += all.live;
    *pending += all.pending;
    return NULL;
}

static bool is_head(const struct slab *slab, unsigned unit) {
    return slab_heads(slab)[unit >> 6] >> (unit & 63) & 1;
}

static const char *check_slab(struct slab *slab, struct in_slabs *all) {
    unsigned used = 0;
    bool after_free = false;
    for (unsigned i = 0; i < SLAB_UNITS;) {
        struct block *block = slab_unit(slab, i);
        unsigned units = block_units(block);
        enum block_state state = block_state(block);
        HOLDS(units > 0 && i + units <= SLAB_UNITS);
        bool is_free = state == BLOCK_FREE;
        HOLDS(is_free || state == BLOCK_LIVE || state == BLOCK_CACHED);
        HOLDS(!(is_free && after_free));
        HOLDS(is_head(slab, i) == !is_free);
        for (unsigned u = i + 1; u < i + units; u++)
            HOLDS(!is_head(slab, u));
        const struct block *tail = slab_unit(slab, i + units - 1);
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
    HOLDS(used == slab->used_units && used > 0);
    for (unsigned word = 0; word < SLAB_HEAD_WORDS; word++)
        HOLDS((slab->head_words >> word & 1) == (slab_heads(slab)[word] != 0));
    return NULL;
}

static const char *check_slab_at(uint64_t address, struct in_slabs *all) {
    struct slab *slab = page_map_slab(page_map_get(address));
    return slab ? check_slab(slab, all) : NULL;
}

const char *check_slabs(const struct arena *arena, struct in_slabs *all) {
    const char *broken = NULL;
    for (const struct segment *s = arena->segments; s; s = s->next)
        for (uint64_t a = s->base; a < s->base + s->bytes && !broken; a += PAGE_BYTES)
            broken = check_slab_at(a, all);
    return broken;
}
