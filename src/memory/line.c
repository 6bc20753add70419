#include "memory/line.h"

#include "memory/arith.h"
#include "memory/page_map.h"

#include <stddef.h>

static uint64_t end_of(const struct segment *segment) {
    return segment->base + segment->bytes;
}

/* What is free on both sides of [base, end), behind `after`. */
static void look_around(const struct arena *arena, uint64_t base, uint64_t end,
                        struct segment *after, struct line_place *place) {
    const struct segment *before = after ? after->next : arena->segments;
    place->left = after && end_of(after) == base ? arena_free_end(after) : NULL;
    place->right = before && before->base == end ? arena_free_start(before) : NULL;
}

/* What of a hole is needed, with the free ranges beside it; false: it is too short. */
static bool fits(const struct arena *arena, uint64_t bytes, uint64_t base, uint64_t end,
                 struct segment *after, struct line_place *place) {
    *place = (struct line_place){.base = base, .room = end - base};
    look_around(arena, base, end, after, place);
    uint64_t left = place->left ? place->left->bytes : 0, hole = end - base;
    uint64_t right = place->right ? place->right->bytes : 0;
    uint64_t behind = round_up(bytes - least_of(left, bytes), PAGE_BYTES);
    uint64_t before = round_up(bytes - least_of(right, bytes), PAGE_BYTES);
    if (behind <= hole && (behind <= before || before > hole)) {
        place->bytes = behind;
        place->right = NULL;
    } else if (before <= hole) {
        place->bytes = before;
        place->base = end - before;
        place->left = NULL;
    } else {
        place->bytes = hole;
    }
    return left + hole + right >= bytes;
}

static void keep_better(const struct line_place *place, struct line_place *best) {
    bool lower = place->bytes == best->bytes && place->base < best->base;
    if (best->bytes == 0 || place->bytes < best->bytes || lower) {
        *best = *place;
    }
}

/* A hole, in the parts that aliases leave of it. */
static void look_between(const struct arena *arena, uint64_t bytes, uint64_t base, uint64_t end,
                         struct segment *after, struct line_place *best) {
    struct line_place place;
    while (base < end) {
        const struct alias *alias = aliases_behind(&arena->aliases, base);
        uint64_t until = alias && alias->base < end ? alias->base : end;
        if (until > base && fits(arena, bytes, base, until, after, &place)) {
            keep_better(&place, best);
        }
        base = alias && alias->base < end ? alias->base + alias->bytes : end;
    }
}

/* What lies between two segments, or beside all of them, as far as there are addresses. */
static void look_at_gap(const struct arena *arena, uint64_t bytes, uint64_t base, uint64_t end,
                        struct segment *after, struct line_place *best) {
    for (const struct line *line = arena->lines; line; line = line->next) {
        uint64_t line_end = line->base + line->bytes;
        look_between(arena, bytes, base > line->base ? base : line->base,
                     end < line_end ? end : line_end, after, best);
    }
}

/* Only holes are looked at, not thousands of segments. */
bool line_find(const struct arena *arena, uint64_t bytes, struct line_place *place) {
    struct segment *last = arena->last;
    *place = (struct line_place){0};
    look_at_gap(arena, bytes, 0, last ? arena->segments->base : UINT64_MAX, NULL, place);
    for (struct segment *s = arena->holes; s; s = s->next_hole) {
        look_at_gap(arena, bytes, end_of(s), s->next->base, s, place);
    }
    if (last) {
        look_at_gap(arena, bytes, end_of(last), UINT64_MAX, last, place);
    }
    return place->bytes > 0;
}

void line_place_become(struct line_place *place, uint64_t bytes) {
    bytes = least_of(bytes, place->room);
    if (place->right && !place->left) { /* it grows to the left */
        place->base = place->base + place->bytes - bytes;
    }
    place->bytes = bytes;
}

bool line_prepare(struct arena *arena) {
    return host_slab_prepare(&arena->line_slab, 1);
}

void line_add(struct arena *arena, uint64_t base, uint64_t bytes) {
    struct line *line = host_slab_get(&arena->line_slab), **at = &arena->lines;
    while (*at && (*at)->base < base) {
        at = &(*at)->next;
    }
    *line = (struct line){.base = base, .bytes = bytes, .next = *at};
    *at = line;
}

bool line_remove(struct arena *arena, uint64_t *base, uint64_t *bytes) {
    struct line *line = arena->lines;
    if (line) {
        *base = line->base;
        *bytes = line->bytes;
        arena->lines = line->next;
        host_slab_put(&arena->line_slab, line);
    }
    return line != NULL;
}
