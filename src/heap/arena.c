/*
 * The arena: takes ranges for requests, gives them back, adds and removes segments. The placement
 * rules, the lock and the invariant are in arena.h. ranges.c keeps the sorted array of free ranges;
 * arena_prepare() makes that array longer.
 */
#include "heap/arena.h"

#include "heap/arith.h"
#include "heap/page_map.h"
#include "heap/ranges.h"
#include "heap/va_range.h"

#include <errno.h>
#include <string.h>

void arena_start(struct arena *arena, struct pool *pool, bool in_address_order) {
    memset(arena, 0, sizeof *arena); /* a compound literal would lie on the stack at -O0 */
    arena->pool = pool;
    arena->in_address_order = in_address_order;
    arena->range_freelist.object_bytes = sizeof(struct range);
    arena->segment_freelist.object_bytes = sizeof(struct segment);
    arena->va_range_freelist.object_bytes = sizeof(struct va_range);
}

/* --- giving and holding --- */

/* Returns how many bytes of the range lie in the segment. */
static uint64_t overlap(const struct range *range, const struct segment *segment) {
    uint64_t begin = range->block.address, end = begin + range->bytes;
    uint64_t until = segment->base + segment->bytes;
    return min_u64(end, until) - max_u64(begin, segment->base);
}

/* Adds a range that was free to `used` of its segments, and updates the arena's idle bytes. */
static void count_used(struct arena *arena, const struct range *range) {
    for (struct segment *s = range->segment; s; s = range_next_segment(range, s)) {
        arena->idle_bytes -= s->used == 0 ? s->bytes : 0;
        s->used += overlap(range, s);
    }
}

/** Reverses count_used(). */
void arena_give(struct arena *arena, struct range *range) {
    for (struct segment *s = range->segment; s; s = range_next_segment(range, s)) {
        s->used -= overlap(range, s);
        arena->idle_bytes += s->used == 0 ? s->bytes : 0;
    }
    ranges_merge(arena, range);
}

void arena_hold(struct arena *arena, struct range *range) {
    ranges_cut_out(arena, ranges_index(arena, range), 0, range->bytes);
    count_used(arena, range);
    block_become(&range->block, BLOCK_CACHED | (uint64_t)BIN_NONE << HEADER_BIN_SHIFT);
}

/* --- taking --- */

/* Returns whether the range ends where the arena grows (vmm backend). */
static bool is_growing_end(const struct arena *arena, const struct range *range) {
    const struct segment *last = arena->last;
    return arena->in_address_order &&
           range->block.address + range->bytes == last->base + last->bytes;
}

/*
 * Returns how many bytes of the range, which has at least `bytes`, stay free in front of the block,
 * or UINT64_MAX if the block must not be placed there.
 *
 * 1. vmm backend: 0.
 * 2. Segments backend, range at its segment's base: all but `bytes`, so that the block lies at the
 *    range's end. UINT64_MAX if the range has only `bytes`: the block would begin at the base.
 *    Exception, 0: the block takes the whole segment, or PLACEMENT_ANYWHERE.
 * 3. Segments backend, other ranges: 0.
 */
static uint64_t bytes_to_skip(const struct range *range, uint64_t bytes,
                              enum arena_placement placement) {
    const struct segment *segment = range->segment;
    bool from_end = segment->is_allocation && placement != PLACEMENT_ANYWHERE &&
                    range->block.address == segment->base && bytes < segment->bytes;
    if (!from_end)
        return 0;
    return range->bytes > bytes ? range->bytes - bytes : UINT64_MAX;
}

/*
 * Returns the index of the best free range, or free_count if there is none. A range at the growing
 * end is the last choice.
 */
static size_t best_fit(const struct arena *arena, uint64_t bytes, enum arena_placement placement) {
    size_t last_choice = arena->free_count;
    for (size_t i = ranges_of_size(arena, bytes); i < arena->free_count; i++) {
        const struct range *range = arena->free[i].range;
        if (bytes_to_skip(range, bytes, placement) == UINT64_MAX)
            continue;
        if (!is_growing_end(arena, range))
            return i;
        last_choice = i;
    }
    return last_choice;
}

struct range *arena_take(struct arena *arena, uint64_t bytes, enum arena_placement placement) {
    size_t i = best_fit(arena, bytes, placement);
    if (i == arena->free_count)
        return NULL;
    struct range *range = arena->free[i].range;
    uint64_t skip = bytes_to_skip(range, bytes, placement);
    bool keep_whole = placement == PLACEMENT_KEEP_LONG && !arena->in_address_order &&
                      !is_ablated(ABLATION_KEEP_LONG) && range->bytes >= ARENA_KEEP_LONG_BYTES &&
                      range->bytes / ARENA_KEEP_LONG_FACTOR > bytes;
    if (keep_whole || (range->bytes > bytes && !arena_prepare(arena, 0)))
        return NULL;
    range = ranges_cut_out(arena, i, skip, bytes);
    count_used(arena, range);
    range->block.stamp = 0;
    block_become(&range->block, BLOCK_CACHED | (uint64_t)bin_of_large(range->bytes)
                                                   << HEADER_BIN_SHIFT);
    return range;
}

/*
 * Returns the range's bytes in the segment if the segment has cached or pending blocks but nothing
 * live, else 0.
 */
static uint64_t part_without_live(const struct range *range, const struct segment *segment) {
    for (const struct range *r = segment->first; segment_has(segment, r); r = r->next)
        if (range_state(r) == BLOCK_LIVE || range_state(r) == BLOCK_SLAB)
            return 0;
    return segment->used > 0 ? overlap(range, segment) : 0;
}

/** Checks only the first and the last segment of each free range: those between are idle. */
uint64_t arena_free_bytes_without_live(const struct arena *arena) {
    uint64_t bytes = 0;
    for (size_t i = 0; i < arena->free_count; i++) {
        const struct range *range = arena->free[i].range, *next = range->next;
        const struct segment *last = next ? next->segment : NULL;
        bool ends_within = last && last != range->segment && next->block.address > last->base;
        bytes += part_without_live(range, range->segment);
        bytes += ends_within ? part_without_live(range, last) : 0;
    }
    return bytes;
}

/* --- segments --- */

/**
 * Makes the array large enough for all ranges before anything changes, so that making memory free
 * needs no host memory.
 */
bool arena_prepare(struct arena *arena, unsigned count) {
    unsigned more = count + 2;
    size_t capacity = arena->free_capacity ? arena->free_capacity : 512;
    while (capacity < arena->range_count + more)
        capacity *= 2;
    if (capacity > arena->free_capacity) {
        struct free_range *wider =
            host_grow(arena->free, arena->free_capacity * sizeof *wider,
                      arena->free_count * sizeof *wider, capacity * sizeof *wider);
        if (!wider)
            return false;
        arena->free = wider;
        arena->free_capacity = capacity;
    }
    return host_freelist_prepare(&arena->range_freelist, more) &&
           host_freelist_prepare(&arena->segment_freelist, count);
}

/* Links the segment into arena.gap_list, or unlinks it, after its neighbours have changed. */
static void update_gap_list(struct arena *arena, struct segment *segment) {
    if (!segment || !arena->in_address_order)
        return;
    bool gap_follows = segment->next && segment->base + segment->bytes != segment->next->base;
    if (gap_follows && !segment->gap_follows) {
        segment->previous_in_gap_list = NULL;
        segment->next_in_gap_list = arena->gap_list;
        arena->gap_list = segment;
        if (segment->next_in_gap_list)
            segment->next_in_gap_list->previous_in_gap_list = segment;
    } else if (!gap_follows && segment->gap_follows) {
        struct segment *previous = segment->previous_in_gap_list, *next = segment->next_in_gap_list;
        *(previous ? &previous->next_in_gap_list : &arena->gap_list) = next;
        if (next)
            next->previous_in_gap_list = previous;
    }
    segment->gap_follows = gap_follows;
}

/* Links the segment behind `after`, or first if `after` is NULL. */
static void link_segment(struct arena *arena, struct segment *segment, struct segment *after) {
    segment->previous = after;
    segment->next = after ? after->next : arena->segments;
    *(after ? &after->next : &arena->segments) = segment;
    *(segment->next ? &segment->next->previous : &arena->last) = segment;
    update_gap_list(arena, after);
    update_gap_list(arena, segment);
}

static void unlink_segment(struct arena *arena, struct segment *segment) {
    struct segment *previous = segment->previous, *next = segment->next;
    *(previous ? &previous->next : &arena->segments) = next;
    *(next ? &next->previous : &arena->last) = previous;
    segment->next = NULL;
    update_gap_list(arena, previous);
    update_gap_list(arena, segment);
}

struct segment *arena_before(const struct arena *arena, uint64_t address) {
    struct segment *segment = arena->last;
    while (segment && segment->base > address)
        segment = segment->previous;
    return segment;
}

int arena_add(struct arena *arena, uint64_t base, uint64_t bytes, struct segment *after) {
    int r = arena_prepare(arena, 1) ? page_map_prepare(base, bytes) : -ENOMEM;
    if (r != 0)
        return r;
    struct segment *segment = host_freelist_get(&arena->segment_freelist);
    struct range *range = host_freelist_get(&arena->range_freelist);
    segment->base = base;
    segment->bytes = bytes;
    segment->is_allocation = !arena->in_address_order;
    link_segment(arena, segment, after);
    range->block.address = base;
    range->bytes = bytes;
    range->segment = segment;
    if (arena->in_address_order && after && !after->gap_follows) {
        range->previous = segment_last(after);
        range->previous->next = range;
    }
    if (arena->in_address_order && segment->next && !segment->gap_follows) {
        range->next = segment->next->first;
        range->next->previous = range;
    }
    arena->range_count++;
    page_map_set_owner(base, bytes, arena->pool);
    ranges_enter(range, range);
    ranges_merge(arena, range);
    arena->reserved_bytes += bytes;
    arena->idle_bytes += bytes;
    arena->segment_count++;
    return 0;
}

struct segment *arena_to_split(const struct arena *arena, uint64_t bytes, uint64_t finished) {
    bool possible = arena->idle_bytes > VMM_HANDLE && !is_ablated(ABLATION_SPLITTING);
    size_t i = possible ? best_fit(arena, bytes, PLACEMENT_ANYWHERE) : arena->free_count;
    const struct range *range = i < arena->free_count ? arena->free[i].range : NULL;
    uint64_t end = range ? range->block.address + bytes : 0;
    for (struct segment *s = range ? range->segment : NULL; s && s->base < end;
         s = range_next_segment(range, s)) {
        bool partly_used = s->base + s->bytes > end;
        if (s->bytes > VMM_HANDLE && partly_used && segment_is_releasable(s, finished))
            return s;
    }
    return NULL;
}

/** An idle segment lies in one free range, because adjacent free ranges are merged at once. */
bool arena_remove(struct arena *arena, struct segment *segment) {
    struct range *range = segment->first;
    uint64_t skip = segment->base - range->block.address;
    if (range->bytes > segment->bytes && !arena_prepare(arena, 0))
        return false;
    range = ranges_cut_out(arena, ranges_index(arena, range), skip, segment->bytes);
    if (range->previous)
        range->previous->next = NULL;
    if (range->next)
        range->next->previous = NULL;
    page_map_remove(segment->base, segment->bytes, arena->pool);
    unlink_segment(arena, segment);
    arena->reserved_bytes -= segment->bytes;
    arena->idle_bytes -= segment->bytes;
    arena->segment_count--;
    arena->range_count--;
    ranges_recycle(arena, range);
    host_freelist_put(&arena->segment_freelist, segment);
    return true;
}

struct range *arena_find(uint64_t address) {
    page_map_entry entry = page_map_get(address);
    if (entry == 0 || page_map_slab(entry))
        return NULL;
    struct range *range = (struct range *)entry;
    while (range && range->block.address + range->bytes <= address)
        range = range->next;
    return range;
}

void arena_leave_map(struct arena *arena) {
    for (const struct segment *segment = arena->segments; segment; segment = segment->next)
        page_map_remove(segment->base, segment->bytes, arena->pool);
    for (unsigned i = 0; i < arena->stale_mappings.count; i++) {
        const struct stale_mapping *stale_mapping = &arena->stale_mappings.at[i];
        page_map_remove(stale_mapping->base, stale_mapping->bytes, arena->pool);
    }
}

void arena_forget(struct arena *arena) {
    for (struct segment *segment = arena->segments, *after; segment; segment = after) {
        for (struct range *r = segment_first(segment), *next; segment_has(segment, r); r = next) {
            next = r->next;
            ranges_recycle(arena, r);
        }
        /* segment_first() of the next one may read a range that is recycled already: with the vmm
         * backend a range may span segments. host_freelist_put() changes only the first word. */
        after = segment->next;
        host_freelist_put(&arena->segment_freelist, segment);
    }
    arena->segments = arena->last = arena->gap_list = NULL;
    arena->stale_mappings.count = 0;
    arena->free_count = arena->range_count = 0;
    arena->free_bytes = arena->idle_bytes = arena->reserved_bytes = arena->segment_count = 0;
}
