/*
 * Searches for idle segments: to release, to remap, or idle for the decay time. Walks the free
 * ranges, because an idle segment lies in one. idle.h has the order of preference and the lock.
 */
#include "heap/idle.h"

#include "heap/arith.h"
#include "heap/ranges.h"

/*
 * Returns whether no other segment is adjacent on at least one side. Removing the segment then
 * lengthens a gap and makes no new one.
 */
static bool is_adjacent_to_gap(const struct segment *s) {
    return !is_ablated(ABLATION_BESIDE_GAP) &&
           (!s->previous || s->previous->gap_follows || s->gap_follows || !s->next);
}

/* Returns whether idle_segment() prefers `s` to `other` (case 2 there). NULL loses. */
static bool is_preferred(const struct segment *s, const struct segment *other) {
    bool adjacent = is_adjacent_to_gap(s);
    if (!other || adjacent != is_adjacent_to_gap(other))
        return !other || adjacent;
    return s->stamp < other->stamp || (s->stamp == other->stamp && s->base < other->base);
}

/*
 * Returns whether the segment's handle may be mapped elsewhere: it is idle, has at most `most` and
 * at most VMM_HANDLE bytes, is not externally visible, and is not marked as refused. Its epoch need
 * not have finished: the new user of the memory waits behind the same barrier as a user of the
 * memory here (struct stale_mapping). Longer segments are not remapped, because one block would
 * keep a whole segment from being released at the new address, too. remap_split() splits longer
 * segments instead.
 */
static bool is_movable(const struct segment *s, uint64_t most) {
    return s->used == 0 && s->bytes <= min_u64(most, VMM_HANDLE) && !s->refused &&
           !atomic_load_explicit(&s->externally_visible, memory_order_relaxed) &&
           !is_ablated(ABLATION_REMAPPING);
}

/*
 * Returns the preferred idle segment, or NULL.
 *
 *      most = 0   considers segments that may be released: stamp at most `finished`
 *      most > 0   considers segments that may be remapped: at most `most` bytes, stamp at least
 *                 `from`
 *      first_found   returns the first one found: a large growth releases so many that their order
 *                    does not matter
 */
static struct segment *preferred_idle(const struct arena *arena, uint64_t finished, uint64_t most,
                                      uint64_t from, bool first_found) {
    struct segment *preferred = NULL;
    for (size_t i = arena->idle_bytes > 0 ? arena->free_count : 0; i-- > 0;) {
        const struct range *range = arena->free[i].range;
        for (struct segment *s = range->segment; s; s = range_next_segment(range, s)) {
            bool allowed = most > 0 ? is_movable(s, most) && s->stamp >= from
                                    : segment_is_releasable(s, finished);
            preferred = allowed && (first_found || is_preferred(s, preferred)) ? s : preferred;
            if (first_found && preferred)
                return preferred;
        }
    }
    return preferred;
}

struct segment *idle_movable(const struct arena *arena, uint64_t most, uint64_t from) {
    bool allowed = most > 0 && !stale_is_full(&arena->stale_mappings);
    return allowed ? preferred_idle(arena, 0, most, from, false) : NULL;
}

struct segment *idle_segment(struct arena *arena, uint64_t bytes, uint64_t finished) {
    if (arena->in_address_order)
        return preferred_idle(arena, finished, 0, 0, bytes > TRANSIT_MOST * VMM_HANDLE_LEAST);
    size_t enough = ranges_of_size(arena, bytes),
           count = arena->idle_bytes > 0 ? arena->free_count : 0;
    for (size_t k = 0; k < count; k++) { /* upwards from `enough`, then downwards */
        size_t i = enough + k < count ? enough + k : count - 1 - k;
        struct segment *whole = arena->free[i].range->segment;
        if (segment_is_releasable(whole, finished))
            return whole;
    }
    return NULL;
}

/** Searches from the largest free range: removing the last entry of the array moves no others. */
struct segment *idle_aged(const struct arena *arena, uint64_t tick, uint64_t finished,
                          bool *waits) {
    for (size_t i = arena->idle_bytes > 0 ? arena->free_count : 0; i-- > 0;) {
        const struct range *range = arena->free[i].range;
        for (struct segment *s = range->segment; s; s = range_next_segment(range, s)) {
            bool aged = s->used == 0 && !s->refused && tick - s->since > DECAY_TICKS;
            if (aged && s->stamp <= finished)
                return s;
            *waits |= aged;
        }
    }
    return NULL;
}

/**
 * Counts at most as many segments to remap as the arena's table of stale mappings can take. The
 * table limits this arena only: limits->segments keeps the rest for the other arena.
 */
uint64_t idle_available_bytes(const struct arena *arena, uint64_t finished, const struct gap *gap,
                              uint64_t enough, struct idle_limits *limits) {
    unsigned table_space = STALE_MOST - arena->stale_mappings.count, limit = limits->segments;
    uint64_t bytes = 0;
    unsigned most = limit < table_space ? limit : table_space;
    limits->segments = most;
    for (size_t i = arena->idle_bytes > 0 ? arena->free_count : 0; i-- > 0 && bytes < enough;) {
        const struct range *range = arena->free[i].range;
        bool adjacent = range == gap->left || range == gap->right;
        for (const struct segment *s = adjacent ? NULL : range->segment; s;
             s = range_next_segment(range, s)) {
            bool releasable = segment_is_releasable(s, finished);
            bool movable = !releasable && limits->segments > 0 && is_movable(s, limits->bytes);
            limits->bytes -= movable ? s->bytes : 0;
            limits->segments -= movable;
            bytes += releasable || movable ? s->bytes : 0;
        }
    }
    limits->segments = limit - (most - limits->segments);
    return bytes;
}

uint64_t idle_stamp(const struct arena *arena, uint64_t finished) {
    uint64_t earliest = UINT64_MAX;
    for (size_t i = 0; i < arena->free_count && arena->idle_bytes > 0; i++) {
        const struct range *range = arena->free[i].range;
        for (struct segment *s = range->segment; s; s = range_next_segment(range, s)) {
            bool later = s->used == 0 && s->stamp > finished;
            earliest = later && s->stamp < earliest ? s->stamp : earliest;
        }
    }
    return earliest;
}
