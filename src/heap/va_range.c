/*
 * Finds the gap in the reserved addresses where a growth needs the least new memory, and keeps the
 * table of stale mappings. va_range.h has the drawing and the lock.
 */
#include "heap/va_range.h"

#include "heap/arith.h"
#include "heap/page_map.h"

#include <stddef.h>
#include <string.h>

static uint64_t end_of(const struct segment *segment) {
    return segment->base + segment->bytes;
}

/*
 * Computes which part of [base, end) a request of `bytes` needs: the start, the end, or all of it.
 * A free range that touches the part makes the part shorter. Nothing is mapped at [base, end). It
 * lies behind the segment `after` (NULL: in front of all) and in front of the segment `before`.
 * Returns false if [base, end) and both free ranges together are too short.
 */
static bool measure_gap(const struct arena *arena, uint64_t bytes, uint64_t base, uint64_t end,
                        struct segment *after, struct gap *gap) {
    const struct segment *before = after ? after->next : arena->segments;
    struct range *in_front = after && end_of(after) == base ? segment_last(after) : NULL;
    struct range *behind = before && before->base == end ? before->first : NULL;
    *gap = (struct gap){.base = base, .longest = end - base};
    gap->left = in_front && range_state(in_front) == BLOCK_FREE ? in_front : NULL;
    gap->right = behind && range_state(behind) == BLOCK_FREE ? behind : NULL;
    uint64_t left = gap->left ? gap->left->bytes : 0, gap_bytes = end - base;
    uint64_t right = gap->right ? gap->right->bytes : 0;
    uint64_t with_left = round_up(bytes - min_u64(left, bytes), PAGE_BYTES);
    uint64_t with_right = round_up(bytes - min_u64(right, bytes), PAGE_BYTES);
    if (with_left <= gap_bytes && (with_left <= with_right || with_right > gap_bytes)) {
        gap->bytes = with_left;
        gap->right = NULL;
    } else if (with_right <= gap_bytes) {
        gap->bytes = with_right;
        gap->base = end - with_right;
        gap->left = NULL;
    } else {
        gap->bytes = gap_bytes;
    }
    return left + gap_bytes + right >= bytes;
}

/* Measures the parts of [base, end) without stale mappings. Keeps the best: the one that needs the
 * least new memory, at the lowest address. */
static void search_gap(const struct arena *arena, uint64_t bytes, uint64_t base, uint64_t end,
                       struct segment *after, struct gap *best) {
    struct gap gap;
    while (base < end) {
        const struct stale_mapping *stale_mapping = stale_behind(&arena->stale_mappings, base);
        uint64_t until = stale_mapping && stale_mapping->base < end ? stale_mapping->base : end;
        if (until > base && measure_gap(arena, bytes, base, until, after, &gap) &&
            (best->bytes == 0 || gap.bytes < best->bytes ||
             (gap.bytes == best->bytes && gap.base < best->base)))
            *best = gap;
        base = stale_mapping && stale_mapping->base < end
                   ? stale_mapping->base + stale_mapping->bytes
                   : end;
    }
}

/*
 * Searches the part of [base, end) that VA ranges cover: between two segments, before the first, or
 * behind the last.
 */
static void search_addresses(const struct arena *arena, uint64_t bytes, uint64_t base, uint64_t end,
                             struct segment *after, struct gap *best) {
    for (const struct va_range *va_range = arena->va_ranges; va_range; va_range = va_range->next) {
        uint64_t range_end = va_range->base + va_range->bytes;
        search_gap(arena, bytes, base > va_range->base ? base : va_range->base,
                   end < range_end ? end : range_end, after, best);
    }
}

/** Walks arena.gap_list: there may be thousands of segments, but few gaps. */
bool va_range_find(const struct arena *arena, uint64_t bytes, struct gap *gap) {
    struct segment *last = arena->last;
    *gap = (struct gap){0};
    search_addresses(arena, bytes, 0, last ? arena->segments->base : UINT64_MAX, NULL, gap);
    for (struct segment *s = arena->gap_list; s; s = s->next_in_gap_list)
        search_addresses(arena, bytes, end_of(s), s->next->base, s, gap);
    if (last)
        search_addresses(arena, bytes, end_of(last), UINT64_MAX, last, gap);
    return gap->bytes > 0;
}

void gap_become(struct gap *gap, uint64_t bytes) {
    bytes = min_u64(bytes, gap->longest);
    if (gap->right && !gap->left) /* the memory grows to the left */
        gap->base = gap->base + gap->bytes - bytes;
    gap->bytes = bytes;
}

void va_range_add(struct arena *arena, uint64_t base, uint64_t bytes) {
    struct va_range *va_range = host_freelist_get(&arena->va_range_freelist);
    *va_range = (struct va_range){.base = base, .bytes = bytes, .next = arena->va_ranges};
    arena->va_ranges = va_range;
}

bool va_range_remove(struct arena *arena, uint64_t *base, uint64_t *bytes) {
    struct va_range *va_range = arena->va_ranges;
    if (va_range) {
        *base = va_range->base;
        *bytes = va_range->bytes;
        arena->va_ranges = va_range->next;
        host_freelist_put(&arena->va_range_freelist, va_range);
    }
    return va_range != NULL;
}

/* --- the table of stale mappings --- */

/* Returns the index of the first entry that ends after `address`. */
static unsigned first_behind(const struct stale_mappings *stale_mappings, uint64_t address) {
    unsigned low = 0, high = stale_mappings->count;
    while (low < high) {
        unsigned middle = low + (high - low) / 2;
        const struct stale_mapping *stale_mapping = &stale_mappings->at[middle];
        if (stale_mapping->base + stale_mapping->bytes <= address)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

void stale_add(struct stale_mappings *stale_mappings, const struct stale_mapping *stale_mapping) {
    unsigned i = first_behind(stale_mappings, stale_mapping->base);
    memmove(&stale_mappings->at[i + 1], &stale_mappings->at[i],
            (stale_mappings->count - i) * sizeof *stale_mapping);
    stale_mappings->at[i] = *stale_mapping;
    stale_mappings->count++;
}

const struct stale_mapping *stale_behind(const struct stale_mappings *stale_mappings,
                                         uint64_t address) {
    unsigned i = first_behind(stale_mappings, address);
    return i < stale_mappings->count ? &stale_mappings->at[i] : NULL;
}

void stale_remove(struct stale_mappings *stale_mappings, uint64_t base) {
    unsigned i = first_behind(stale_mappings, base);
    if (i < stale_mappings->count && stale_mappings->at[i].base == base) {
        stale_mappings->count--;
        memmove(&stale_mappings->at[i], &stale_mappings->at[i + 1],
                (stale_mappings->count - i) * sizeof stale_mappings->at[0]);
    }
}
