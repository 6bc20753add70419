/*
 * The arena: best fit, cutting and merging of ranges, segments added and removed. Random steps,
 * with separate segments and in a VA range, are compared with a model that has a state for every
 * unit.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "heap/idle.h"
#include "heap/page_map.h"
#include "heap/va_range.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define MIB ((uint64_t)1 << 20)
#define GIB ((uint64_t)1 << 30)

static struct pool *const owner = (struct pool *)0x1000;
static struct pool *const neighbour = (struct pool *)0x2000;

/* Returns addresses that no other test has used. */
static uint64_t new_base(void) {
    static uint64_t next = 64 * GIB;
    return next += 64 * GIB;
}

/* ---- a checker that shares nothing with the pool's own ---- */

static void check(const struct arena *arena) {
    uint64_t free_bytes = 0, idle = 0, reserved = 0;
    size_t free_count = 0, ranges = 0, segments = 0;
    for (const struct segment *s = arena->segments; s; s = s->next) {
        assert_true(!s->next || s->next->previous == s);
        uint64_t at = s->base;
        const struct range *left = NULL;
        for (const struct range *r = s->first; r; r = r->next) {
            assert_int_equal(r->block.address, at);
            assert_true(r->bytes > 0 && r->bytes % ARENA_UNIT == 0);
            assert_ptr_equal(r->segment, s);
            assert_ptr_equal(r->previous, left);
            assert_false(left && range_state(left) == BLOCK_FREE && range_state(r) == BLOCK_FREE);
            assert_ptr_equal(arena_find(r->block.address), r);
            assert_ptr_equal(arena_find(r->block.address + r->bytes - 1), r);
            assert_ptr_equal(page_map_pool(r->block.address), arena->pool);
            if (range_state(r) == BLOCK_FREE) {
                free_bytes += r->bytes;
                free_count++;
                idle += r->bytes == s->bytes ? r->bytes : 0;
            }
            at += r->bytes;
            ranges++;
            left = r;
        }
        assert_int_equal(at, s->base + s->bytes);
        reserved += s->bytes;
        segments++;
    }
    assert_int_equal(arena->free_bytes, free_bytes);
    assert_int_equal(arena->idle_bytes, idle);
    assert_int_equal(arena->reserved_bytes, reserved);
    assert_int_equal(arena->free_count, free_count);
    assert_int_equal(arena->range_count, ranges);
    assert_int_equal(arena->segment_count, segments);
    for (size_t i = 0; i < arena->free_count; i++) {
        const struct free_range *f = &arena->free[i];
        assert_int_equal(range_state(f->range), BLOCK_FREE);
        assert_int_equal(f->range->bytes, f->bytes);
        assert_true(
            i == 0 || f[-1].bytes < f->bytes ||
            (f[-1].bytes == f->bytes && f[-1].range->block.address < f->range->block.address));
    }
}

static uint64_t start_with(struct arena *arena, uint64_t bytes) {
    uint64_t base = new_base();
    arena_start(arena, owner, false);
    assert_int_equal(arena_add(arena, base, bytes, NULL), 0);
    check(arena);
    return base;
}

static struct range *take(struct arena *arena, uint64_t bytes) {
    struct range *range = arena_take(arena, bytes, PLACEMENT_ANYWHERE);
    assert_non_null(range);
    assert_int_equal(range_state(range), BLOCK_CACHED);
    assert_int_equal(range->bytes, bytes);
    check(arena);
    return range;
}

static void give(struct arena *arena, struct range *range) {
    arena_give(arena, range);
    check(arena);
}

/* ---- cutting and merging ---- */

static void the_rest_of_a_cut_range_stays_free(void **state) {
    (void)state;
    struct arena arena;
    uint64_t base = start_with(&arena, 64 * MIB);
    struct range *range = take(&arena, 5 * MIB + 512);
    assert_int_equal(range->block.address, base);
    assert_int_equal(arena.free_bytes, 59 * MIB - 512);
    assert_int_equal(arena_largest_free(&arena), 59 * MIB - 512);
    assert_int_equal(arena.idle_bytes, 0);
}

static void an_exact_fit_leaves_nothing_behind(void **state) {
    (void)state;
    struct arena arena;
    start_with(&arena, 64 * MIB);
    take(&arena, 64 * MIB);
    assert_int_equal(arena.free_count, 0);
    assert_int_equal(arena_largest_free(&arena), 0);
    assert_null(arena_take(&arena, 512, PLACEMENT_ANYWHERE));
}

static void free_neighbours_are_merged_from_every_side(void **state) {
    (void)state;
    /* orders of freeing three neighbours that a live block follows */
    static const int orders[6][3] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2},
                                     {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};
    for (int i = 0; i < 6; i++) {
        struct arena arena;
        start_with(&arena, 64 * MIB);
        struct range *ranges[3];
        for (int j = 0; j < 3; j++)
            ranges[j] = take(&arena, 3 * MIB + 512);
        struct range *last = take(&arena, 64 * MIB - 3 * (3 * MIB + 512));
        for (int j = 0; j < 3; j++)
            give(&arena, ranges[orders[i][j]]);
        assert_int_equal(arena.free_count, 1);
        assert_int_equal(arena_largest_free(&arena), 3 * (3 * MIB + 512));
        give(&arena, last);
        assert_int_equal(arena.free_count, 1);
        assert_int_equal(arena.idle_bytes, 64 * MIB);
        assert_int_equal(arena.range_count, 1);
    }
}

static void segments_side_by_side_are_never_merged(void **state) {
    (void)state;
    struct arena arena;
    uint64_t base = start_with(&arena, 8 * MIB);
    assert_int_equal(arena_add(&arena, base + 8 * MIB, 8 * MIB, NULL), 0);
    check(&arena);
    assert_null(arena_take(&arena, 9 * MIB, PLACEMENT_ANYWHERE));
    struct range *a = take(&arena, 8 * MIB), *b = take(&arena, 8 * MIB);
    give(&arena, a);
    give(&arena, b);
    assert_int_equal(arena.free_count, 2);
    assert_int_equal(arena.idle_bytes, 16 * MIB);
}

/* ---- which range ---- */

/* Makes free ranges of these sizes between live ones, and stores their addresses. */
static void make_free_ranges(struct arena *arena, const uint64_t *sizes, uint64_t *addresses,
                             int count) {
    struct range *freed[16];
    for (int i = 0; i < count; i++) {
        freed[i] = take(arena, sizes[i]);
        addresses[i] = freed[i]->block.address;
        take(arena, 512);
    }
    for (int i = 0; i < count; i++)
        give(arena, freed[i]);
}

static void the_smallest_range_that_fits_is_taken(void **state) {
    (void)state;
    struct arena arena;
    start_with(&arena, 64 * MIB);
    const uint64_t sizes[] = {8 * MIB, 2 * MIB, 5 * MIB, 3 * MIB};
    uint64_t at[4];
    make_free_ranges(&arena, sizes, at, 4);
    assert_int_equal(take(&arena, 4 * MIB)->block.address, at[2]);
    assert_int_equal(take(&arena, 3 * MIB)->block.address, at[3]);
    assert_int_equal(take(&arena, 2 * MIB - 512)->block.address, at[1]);
    assert_int_equal(take(&arena, 6 * MIB)->block.address, at[0]);
}

static void the_lowest_address_among_equals_is_taken(void **state) {
    (void)state;
    struct arena arena;
    start_with(&arena, 64 * MIB);
    const uint64_t sizes[] = {4 * MIB, 4 * MIB, 4 * MIB, 4 * MIB};
    uint64_t at[4];
    make_free_ranges(&arena, sizes, at, 4);
    for (int i = 0; i < 4; i++)
        assert_int_equal(take(&arena, 4 * MIB)->block.address, at[i]);
}

/*
 * A large free range is kept for large requests while the arena may grow, and given to any request
 * otherwise.
 */
static void a_large_range_is_kept_for_large_requests(void **state) {
    (void)state;
    struct arena arena;
    uint64_t base = start_with(&arena, 640 * MIB);
    assert_null(arena_take(&arena, 640 * MIB / ARENA_KEEP_LONG_FACTOR - 512, PLACEMENT_KEEP_LONG));
    assert_null(arena_take(&arena, 512, PLACEMENT_KEEP_LONG));
    check(&arena);
    assert_int_equal(arena.free_bytes, 640 * MIB);
    struct range *whole =
        arena_take(&arena, 640 * MIB / ARENA_KEEP_LONG_FACTOR, PLACEMENT_KEEP_LONG);
    assert_non_null(whole);
    give(&arena, whole);
    assert_int_equal(take(&arena, 512)->block.address, base);
    assert_int_equal(arena_add(&arena, base + GIB, 4 * MIB, NULL), 0);
    struct range *small = arena_take(&arena, 512, PLACEMENT_KEEP_LONG); /* a small range is used */
    assert_non_null(small);
    assert_int_equal(small->block.address, base + GIB + 4 * MIB - 512);
    check(&arena);
}

/*
 * A program that bypasses the library may free, at the driver, a block that begins where a segment
 * does.
 */
static void only_a_whole_segment_begins_at_a_segment_base(void **state) {
    (void)state;
    struct arena arena;
    uint64_t base = start_with(&arena, 8 * MIB);
    struct range *a = arena_take(&arena, 3 * MIB, PLACEMENT_KEEP_LONG);
    struct range *b = arena_take(&arena, 2 * MIB, PLACEMENT_KEEP_LONG);
    assert_int_equal(a->block.address, base + 5 * MIB);
    assert_int_equal(b->block.address, base + 3 * MIB);
    assert_null(arena_take(&arena, 3 * MIB, PLACEMENT_KEEP_LONG));
    check(&arena);
    struct range *c = arena_take(&arena, 3 * MIB - 512, PLACEMENT_KEEP_LONG);
    assert_int_equal(c->block.address, base + 512);
    check(&arena);
    give(&arena, c);
    c = take(&arena, 3 * MIB); /* PLACEMENT_ANYWHERE allows it */
    assert_int_equal(c->block.address, base);
    give(&arena, b);
    /* only a range at a segment's base is cut from its end */
    b = arena_take(&arena, 512, PLACEMENT_KEEP_LONG);
    assert_int_equal(b->block.address, base + 3 * MIB);
    give(&arena, a);
    give(&arena, b);
    give(&arena, c);
    a = arena_take(&arena, 8 * MIB, PLACEMENT_KEEP_LONG);
    assert_int_equal(a->block.address, base);
    check(&arena);
}

/* ---- segments ---- */

static void an_address_is_found_in_its_range_only(void **state) {
    (void)state;
    struct arena arena;
    uint64_t base = start_with(&arena, 16 * MIB);
    struct range *a = take(&arena, 5 * MIB + 512), *b = take(&arena, 512), *c = take(&arena, 512);
    assert_ptr_equal(arena_find(base), a);
    assert_ptr_equal(arena_find(base + 5 * MIB + 511), a);
    assert_ptr_equal(arena_find(base + 5 * MIB + 512), b);
    assert_ptr_equal(arena_find(base + 5 * MIB + 1024), c);
    assert_null(arena_find(base - 1));
    assert_null(arena_find(base + 16 * MIB));
    assert_null(arena_find(0));
    assert_null(arena_find(UINT64_MAX));
}

static void only_whole_segments_are_idle(void **state) {
    (void)state;
    struct arena arena;
    uint64_t base = start_with(&arena, 8 * MIB);
    uint64_t large = base + GIB, middle = base + 2 * GIB;
    assert_int_equal(arena_add(&arena, large, 32 * MIB, NULL), 0);
    assert_int_equal(arena_add(&arena, middle, 16 * MIB, NULL), 0);
    assert_int_equal(idle_segment(&arena, 512, 0)->base, base);
    assert_int_equal(idle_segment(&arena, 9 * MIB, 0)->base, middle);
    assert_int_equal(idle_segment(&arena, 17 * MIB, 0)->base, large);
    assert_int_equal(idle_segment(&arena, GIB, 0)->base, large); /* the largest, as none suffices */
    struct range *live = take(&arena, 30 * MIB);
    assert_int_equal(idle_segment(&arena, GIB, 0)->base, middle);
    take(&arena, 15 * MIB);
    take(&arena, 7 * MIB);
    assert_null(idle_segment(&arena, 512, 0));
    give(&arena, live);
    assert_int_equal(idle_segment(&arena, 512, 0)->base, large);
}

static void a_removed_segment_is_unknown(void **state) {
    (void)state;
    struct arena arena;
    uint64_t base = start_with(&arena, 8 * MIB);
    assert_int_equal(arena_add(&arena, base + GIB, 8 * MIB, NULL), 0);
    assert_int_equal(arena_add(&arena, base + 2 * GIB, 8 * MIB, NULL), 0);
    const uint64_t order[] = {base + GIB, base + 2 * GIB, base};
    for (int i = 0; i < 3; i++) {
        arena_remove(&arena, arena_find(order[i])->segment);
        check(&arena);
        assert_true(page_map_get(order[i]) == 0 && page_map_get(order[i] + 6 * MIB) == 0);
        assert_null(page_map_pool(order[i]));
        assert_null(arena_find(order[i]));
    }
    assert_null(arena_take(&arena, 512, PLACEMENT_ANYWHERE));
    /* the segment can be added again */
    assert_int_equal(arena_add(&arena, base, 8 * MIB, NULL), 0);
    check(&arena);
}

static void memory_beyond_the_map_is_refused_whole(void **state) {
    (void)state;
    struct arena arena;
    arena_start(&arena, owner, false);
    uint64_t top = (uint64_t)1 << PAGE_MAP_ADDRESS_BITS;
    assert_int_equal(arena_add(&arena, top - 2 * MIB, 4 * MIB, NULL), -ERANGE);
    check(&arena);
    assert_int_equal(arena.segment_count, 0);
    assert_null(page_map_pool(top - 2 * MIB));
}

static void a_forgotten_arena_is_empty_and_can_be_used(void **state) {
    (void)state;
    struct arena arena;
    uint64_t base = start_with(&arena, 8 * MIB);
    assert_int_equal(arena_add(&arena, base + GIB, 8 * MIB, NULL), 0);
    take(&arena, 3 * MIB);
    take(&arena, 8 * MIB);
    page_map_set_owner(base + GIB, 2 * MIB,
                       neighbour); /* the driver gave it these addresses afterwards */
    arena_leave_map(&arena);
    assert_null(arena_find(base));
    assert_null(page_map_pool(base));
    assert_ptr_equal(page_map_pool(base + GIB), neighbour);
    page_map_set_owner(base + GIB, 2 * MIB, NULL);
    arena_forget(&arena);
    check(&arena);
    assert_int_equal(arena.segment_count, 0);
    assert_null(arena_find(base));
    assert_null(page_map_pool(base + GIB));
    assert_null(arena_take(&arena, 512, PLACEMENT_ANYWHERE));
    assert_int_equal(arena_add(&arena, base, 8 * MIB, NULL), 0);
    take(&arena, 512);
}

/* ---- at random ---- */

#define UNITS (64 * MIB / 512 * 3)

static void random_steps_agree_with_a_map_of_every_unit(void **state) {
    (void)state;
    static uint8_t used[UNITS];
    static struct range *live[512];
    memset(used, 0, sizeof used);
    memset(live, 0, sizeof live);
    struct arena arena;
    uint64_t base = start_with(&arena, 64 * MIB);
    assert_int_equal(arena_add(&arena, base + 64 * MIB, 128 * MIB, NULL), 0);
    srand(1);
    for (int step = 0; step < 20000; step++) {
        struct range **slot = &live[rand() % 512];
        if (*slot) {
            uint64_t at = ((*slot)->block.address - base) / 512, units = (*slot)->bytes / 512;
            memset(used + at, 0, units);
            arena_give(&arena, *slot);
            *slot = NULL;
        } else {
            uint64_t bytes = (1 + (uint64_t)rand() % (rand() % 8 ? 512 : 16384)) * 512;
            struct range *range = arena_take(&arena, bytes, PLACEMENT_ANYWHERE);
            if (range) {
                uint64_t at = (range->block.address - base) / 512;
                assert_null(memchr(used + at, 1, bytes / 512));
                memset(used + at, 1, bytes / 512);
                *slot = range;
            } else {
                assert_true(arena_largest_free(&arena) < bytes);
            }
        }
        if (step % 64 == 0)
            check(&arena);
    }
    check(&arena);
}

/* ---- in a VA range, at random ---- */

#define MODEL_PAGES 64
#define MODEL_UNITS (MODEL_PAGES * PAGE_BYTES / ARENA_UNIT)
#define UNITS_PER_PAGE (PAGE_BYTES / ARENA_UNIT)

enum { UNMAPPED, UNUSED, USED };

static struct range_model {
    uint64_t base;
    uint8_t units[MODEL_UNITS];
    /* Pages of the segment that begins here; 0: no segment begins here. */
    uint8_t begins[MODEL_PAGES + 1];
    uint64_t stamps[MODEL_PAGES];
    struct range *taken[64];
    unsigned between, spanning; /* segments removed between free ranges; blocks over several
                                  * segments */
    unsigned stale_mappings;
} model;

static uint64_t count_units(uint64_t from, uint64_t to, uint8_t what) {
    uint64_t count = 0;
    for (uint64_t i = from; i < to; i++)
        count += model.units[i] == what;
    return count * ARENA_UNIT;
}

/* Checks that the arena's free ranges are exactly the longest runs of unused units. */
static void check_runs(const struct arena *arena) {
    size_t runs = 0;
    uint64_t bytes = 0;
    for (uint64_t i = 0, end; i < MODEL_UNITS; i = end) {
        for (end = i + 1; end < MODEL_UNITS && model.units[end] == model.units[i]; end++) {
        }
        if (model.units[i] == UNUSED) {
            const struct range *range = arena_find(model.base + i * ARENA_UNIT);
            assert_int_equal(range_state(range), BLOCK_FREE);
            assert_int_equal(range->block.address, model.base + i * ARENA_UNIT);
            assert_int_equal(range->bytes, (end - i) * ARENA_UNIT);
            assert_ptr_equal(arena_find(model.base + end * ARENA_UNIT - 1), range);
            runs++;
            bytes += range->bytes;
        } else if (model.units[i] == UNMAPPED) {
            assert_null(arena_find(model.base + i * ARENA_UNIT));
            assert_null(arena_find(model.base + end * ARENA_UNIT - 1));
            assert_null(page_map_pool(model.base + i * ARENA_UNIT));
        }
    }
    assert_int_equal(arena->free_count, runs);
    assert_int_equal(arena->free_bytes, bytes);
}

static void check_model(const struct arena *arena) {
    const struct segment *s = arena->segments, *last = NULL;
    uint64_t reserved = 0, idle = 0;
    size_t count = 0;
    for (unsigned page = 0; page < MODEL_PAGES; page++) {
        if (model.begins[page] == 0)
            continue;
        uint64_t from = page * UNITS_PER_PAGE, to = from + model.begins[page] * UNITS_PER_PAGE;
        assert_non_null(s);
        assert_ptr_equal(s->previous, last);
        assert_int_equal(s->base, model.base + page * PAGE_BYTES);
        assert_int_equal(s->bytes, model.begins[page] * PAGE_BYTES);
        assert_int_equal(s->used, count_units(from, to, USED));
        assert_int_equal(s->used + count_units(from, to, UNUSED), s->bytes);
        assert_int_equal(s->stamp, model.stamps[page]);
        assert_true(s->first->block.address <= s->base &&
                    s->first->block.address + s->first->bytes > s->base);
        assert_ptr_equal(page_map_pool(s->base + s->bytes - 1), owner);
        const struct range *first = segment_first(s);
        assert_true(!first || !segment_has(s, first) || first->segment == s);
        reserved += s->bytes;
        idle += s->used == 0 ? s->bytes : 0;
        count++;
        last = s;
        s = s->next;
    }
    assert_null(s);
    assert_ptr_equal(arena->last, last);
    assert_int_equal(arena->reserved_bytes, reserved);
    assert_int_equal(arena->idle_bytes, idle);
    assert_int_equal(arena->segment_count, count);
    check_runs(arena);
}

static void set_units(const struct range *range, uint8_t what) {
    uint64_t from = (range->block.address - model.base) / ARENA_UNIT;
    uint64_t count = range->bytes / ARENA_UNIT;
    assert_null(memchr(model.units + from, what, count));
    assert_null(memchr(model.units + from, UNMAPPED, count));
    memset(model.units + from, what, count);
}

static void add_at_random(struct arena *arena) {
    unsigned page = (unsigned)rand() % MODEL_PAGES, pages = 1 + (unsigned)rand() % 4;
    uint64_t from = page * UNITS_PER_PAGE, bytes = pages * PAGE_BYTES;
    if (page + pages > MODEL_PAGES ||
        count_units(from, from + pages * UNITS_PER_PAGE, UNMAPPED) != bytes)
        return;
    uint64_t base = model.base + page * PAGE_BYTES;
    for (const struct stale_mapping *stale_mapping;
         (stale_mapping = stale_behind(&arena->stale_mappings, base)) != NULL &&
         stale_mapping->base < base + bytes;)
        stale_remove(&arena->stale_mappings, stale_mapping->base);
    struct segment *after = arena_before(arena, base);
    assert_int_equal(arena_add(arena, base, bytes, after), 0);
    struct segment *segment = after ? after->next : arena->segments;
    model.begins[page] = (uint8_t)pages;
    segment->stamp = model.stamps[page] = (uint64_t)rand() % 8;
    segment->since = (uint64_t)rand() % 11;
    memset(model.units + from, UNUSED, pages * UNITS_PER_PAGE);
}

/*
 * Checks how much idle memory is releasable or movable, the next stamp, and the segment for decay.
 */
static void check_idle(const struct arena *arena, uint64_t finished) {
    const struct gap nowhere = {0};
    uint64_t bytes = 0, movable = 0, stamp = UINT64_MAX;
    struct idle_limits none = {0, UINT32_MAX}, limits = {UINT64_MAX, UINT32_MAX};
    bool aged = false, waits = false, waited = false;
    for (const struct segment *s = arena->segments; s; s = s->next) {
        bool idle = s->used == 0, old = idle && 10 - s->since > DECAY_TICKS;
        bytes += idle && s->stamp <= finished ? s->bytes : 0;
        movable += idle && s->stamp > finished ? s->bytes : 0;
        stamp = idle && s->stamp > finished && s->stamp < stamp ? s->stamp : stamp;
        aged |= old && s->stamp <= finished;
        waits |= old && s->stamp > finished;
    }
    assert_int_equal(idle_available_bytes(arena, finished, &nowhere, UINT64_MAX, &none), bytes);
    assert_int_equal(idle_available_bytes(arena, finished, &nowhere, UINT64_MAX, &limits),
                     bytes + movable);
    assert_int_equal(UINT64_MAX - limits.bytes, movable);
    assert_int_equal(idle_stamp(arena, finished), stamp);
    const struct segment *found = idle_aged(arena, 10, finished, &waited);
    assert_int_equal(found != NULL, aged);
    assert_true(!found || (found->used == 0 && found->since < 10 - DECAY_TICKS));
    assert_true(!found || found->stamp <= finished);
    assert_true(found || waited == waits);
}

static bool is_adjacent_to_gap(const struct segment *s) {
    return !s->previous || s->previous->base + s->previous->bytes != s->base || !s->next ||
           s->next->base != s->base + s->bytes;
}

/*
 * Compares idle_segment() with the rule of idle.h: adjacent to a gap, then the earliest stamp, then
 * the lowest address. Removes the segment, and enters a stale mapping for half of them.
 */
static void remove_at_random(struct arena *arena) {
    uint64_t finished = (uint64_t)rand() % 8;
    const struct segment *first = NULL;
    for (const struct segment *s = arena->segments; s; s = s->next) {
        bool may = s->used == 0 && s->stamp <= finished;
        bool adjacent = is_adjacent_to_gap(s), was = first && is_adjacent_to_gap(first);
        if (may && (!first || adjacent > was || (adjacent == was && s->stamp < first->stamp)))
            first = s;
    }
    check_idle(arena, finished);
    struct segment *idle = idle_segment(arena, ARENA_UNIT, finished);
    assert_ptr_equal(idle, first);
    if (idle) {
        unsigned page = (unsigned)((idle->base - model.base) / PAGE_BYTES);
        memset(model.units + page * UNITS_PER_PAGE, UNMAPPED, model.begins[page] * UNITS_PER_PAGE);
        model.begins[page] = 0;
        uint64_t end = idle->base + idle->bytes, before = arena->free_count;
        const struct stale_mapping stale_mapping = {idle->base, idle->bytes, idle->stamp};
        if (rand() % 2) {
            stale_add(&arena->stale_mappings, &stale_mapping);
            model.stale_mappings++;
        }
        assert_true(arena_remove(arena, idle));
        assert_null(arena_find(end - 1));
        model.between += arena->free_count > before;
    }
}

/* Checks that the gap overlaps no segment and no stale mapping. */
static void check_gap(const struct arena *arena, const struct gap *gap) {
    const struct stale_mapping *stale_mapping = stale_behind(&arena->stale_mappings, gap->base);
    uint64_t end = gap->base + gap->bytes, gap_end;
    assert_true(!stale_mapping || stale_mapping->base >= end);
    const struct segment *before = arena_before(arena, gap->base);
    assert_true(!before || before->base + before->bytes <= gap->base);
    assert_true(!before || !before->next || before->next->base >= end);
    struct gap whole = *gap;
    gap_become(&whole, UINT64_MAX);
    gap_end = whole.base + whole.bytes;
    assert_int_equal(whole.bytes, gap->longest);
    assert_true(whole.base <= gap->base && gap_end >= end &&
                (!stale_mapping || stale_mapping->base >= gap_end));
    gap_become(&whole, gap->bytes);
    assert_int_equal(whole.base, gap->base);
}

/*
 * Checks that the search by gap_list finds the same gap if there is a second, empty VA range.
 */
static void check_gaps(struct arena *arena) {
    struct va_range first = {.base = model.base, .bytes = (MODEL_PAGES + 8) * PAGE_BYTES};
    struct va_range second = {.base = model.base + 2 * first.bytes};
    arena->va_ranges = &first;
    for (uint64_t bytes = ARENA_UNIT; bytes < 64 * PAGE_BYTES; bytes *= 3) {
        struct gap by_gap_list, by_all;
        if (arena_largest_free(arena) >= bytes) /* the pool asks only when nothing fits */
            continue;
        first.next = NULL;
        bool found = va_range_find(arena, bytes, &by_gap_list);
        if (found)
            check_gap(arena, &by_gap_list);
        first.next = &second;
        assert_true(va_range_find(arena, bytes, &by_all) == found);
        assert_int_equal(by_gap_list.base, by_all.base);
        assert_int_equal(by_gap_list.bytes, by_all.bytes);
        assert_ptr_equal(by_gap_list.left, by_all.left);
        assert_ptr_equal(by_gap_list.right, by_all.right);
    }
    arena->va_ranges = NULL;
}

/* Holds a free range at an end of the arena, as a growth does, or takes one. */
static struct range *hold_or_take(struct arena *arena) {
    struct range *range = NULL;
    if (rand() % 8 == 0 && arena->last) {
        range = rand() % 2 ? segment_last(arena->last) : arena->segments->first;
        range = range_state(range) == BLOCK_FREE ? range : NULL;
        if (range)
            arena_hold(arena, range);
    } else {
        uint64_t bytes = (1 + (uint64_t)rand() % (rand() % 4 ? 4096 : 32768)) * ARENA_UNIT;
        range = arena_take(arena, bytes, PLACEMENT_KEEP_LONG);
        if (!range)
            assert_true(arena_largest_free(arena) < bytes);
        else
            assert_int_equal(range->bytes, bytes);
    }
    return range;
}

static void a_va_range_agrees_with_a_map_of_every_unit(void **state) {
    (void)state;
    struct arena arena;
    arena_start(&arena, owner, true);
    memset(&model, 0, sizeof model);
    model.base = new_base();
    srand(2);
    for (int step = 0; step < 30000; step++) {
        struct range **slot = &model.taken[rand() % 64];
        if (rand() % 8 == 0) {
            add_at_random(&arena);
        } else if (rand() % 16 == 0) {
            remove_at_random(&arena);
        } else if (*slot) {
            set_units(*slot, UNUSED);
            arena_give(&arena, *slot);
            *slot = NULL;
        } else {
            *slot = hold_or_take(&arena);
            if (*slot) {
                set_units(*slot, USED);
                model.spanning += range_next_segment(*slot, (*slot)->segment) != NULL;
            }
        }
        if (step % 64 == 0)
            check_model(&arena);
        if (step % 8 == 0)
            check_gaps(&arena);
    }
    assert_true(model.between > 30 && model.spanning > 300 && model.stale_mappings > 30);
    arena_leave_map(&arena);
    arena_forget(&arena);
    memset(model.units, UNMAPPED, sizeof model.units);
    memset(model.begins, 0, sizeof model.begins);
    check_model(&arena);
}

/* The part of a gap behind a stale mapping is as good as the part in front of it. */
static void a_gap_behind_a_stale_mapping(void **state) {
    (void)state;
    struct arena arena;
    arena_start(&arena, owner, true);
    uint64_t base = new_base();
    struct va_range all = {.base = base, .bytes = 100 * PAGE_BYTES};
    struct gap gap;
    arena.va_ranges = &all;
    assert_int_equal(arena_add(&arena, base, PAGE_BYTES, NULL), 0);
    assert_int_equal(arena_add(&arena, base + 6 * PAGE_BYTES, PAGE_BYTES, arena.last), 0);
    arena_hold(&arena, arena.segments->first);
    arena_hold(&arena, arena.last->first);
    stale_add(&arena.stale_mappings, &(struct stale_mapping){base + 2 * PAGE_BYTES, PAGE_BYTES, 1});
    assert_true(va_range_find(&arena, 3 * PAGE_BYTES, &gap));
    assert_int_equal(gap.base, base + 3 * PAGE_BYTES);
    assert_int_equal(gap.longest, 3 * PAGE_BYTES);
    assert_true(va_range_find(&arena, PAGE_BYTES, &gap));
    assert_int_equal(gap.base, base + PAGE_BYTES);
    arena.va_ranges = NULL;
    arena_leave_map(&arena);
    arena_forget(&arena);
}

/*
 * One free range may cover more than a thousand segments; the array of free ranges must have
 * capacity for all parts.
 */
static void every_other_segment_of_a_long_free_range_is_removed(void **state) {
    (void)state;
    struct arena arena;
    arena_start(&arena, owner, true);
    uint64_t base = new_base();
    for (unsigned i = 0; i < 1300; i++)
        assert_int_equal(arena_add(&arena, base + i * PAGE_BYTES, PAGE_BYTES, arena.last), 0);
    assert_int_equal(arena.free_count, 1);
    for (struct segment *s = arena.segments->next, *next; s; s = next) {
        next = s->next ? s->next->next : NULL;
        assert_true(arena_remove(&arena, s));
        assert_true(arena.free_count <= arena.free_capacity);
    }
    assert_int_equal(arena.free_count, 650);
    assert_int_equal(arena.idle_bytes, 650 * PAGE_BYTES);
    for (size_t i = 0; i < 650; i++) {
        assert_int_equal(arena.free[i].range->block.address, base + 2 * i * PAGE_BYTES);
        assert_int_equal(arena.free[i].bytes, PAGE_BYTES);
    }
}

/* A reader without the lock must notice a descriptor that is changed or recycled. */
static void each_change_of_a_descriptor_is_counted(void **state) {
    (void)state;
    struct arena arena;
    arena_start(&arena, owner, true);
    uint64_t base = new_base(), before = atomic_load(&arena.changes);
    for (unsigned i = 0; i < 3; i++)
        assert_int_equal(arena_add(&arena, base + i * PAGE_BYTES, PAGE_BYTES, arena.last), 0);
    assert_int_equal(atomic_load(&arena.changes), before + 4); /* two joins */
    struct range *range = arena_take(&arena, MIB, PLACEMENT_ANYWHERE);
    assert_int_equal(atomic_load(&arena.changes), before + 5); /* one cut */
    arena_give(&arena, range);
    assert_int_equal(atomic_load(&arena.changes), before + 7);
    assert_true(arena_remove(&arena, arena.segments->next));
    /* two cuts, one recycled descriptor */
    assert_int_equal(atomic_load(&arena.changes), before + 10);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_rest_of_a_cut_range_stays_free),
        cmocka_unit_test(an_exact_fit_leaves_nothing_behind),
        cmocka_unit_test(free_neighbours_are_merged_from_every_side),
        cmocka_unit_test(segments_side_by_side_are_never_merged),
        cmocka_unit_test(the_smallest_range_that_fits_is_taken),
        cmocka_unit_test(the_lowest_address_among_equals_is_taken),
        cmocka_unit_test(a_large_range_is_kept_for_large_requests),
        cmocka_unit_test(only_a_whole_segment_begins_at_a_segment_base),
        cmocka_unit_test(an_address_is_found_in_its_range_only),
        cmocka_unit_test(only_whole_segments_are_idle),
        cmocka_unit_test(a_removed_segment_is_unknown),
        cmocka_unit_test(memory_beyond_the_map_is_refused_whole),
        cmocka_unit_test(a_forgotten_arena_is_empty_and_can_be_used),
        cmocka_unit_test(random_steps_agree_with_a_map_of_every_unit),
        cmocka_unit_test(a_va_range_agrees_with_a_map_of_every_unit),
        cmocka_unit_test(a_gap_behind_a_stale_mapping),
        cmocka_unit_test(every_other_segment_of_a_long_free_range_is_removed),
        cmocka_unit_test(each_change_of_a_descriptor_is_counted),
    };
    return cmocka_run_group_tests_name("arena", tests, NULL, NULL);
}
