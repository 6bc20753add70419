/*
 * Slabs of small blocks: exact best fit by length, boundary tags, slabs that open and close.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "heap/arena.h"
#include "heap/slab.h"
#include "large_pages.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define SLABS 8
#define GIB ((uint64_t)1 << 30)

/*
 * Slabs in a segment of an arena. start() does not use the first slab of the segment,
 * start_at_segment() does.
 */
struct bench {
    struct arena arena;
    struct runs runs;
    uint64_t base;
};

static struct slab *open_slab(struct bench *bench) {
    struct range *range = arena_take(&bench->arena, PAGE_BYTES, PLACEMENT_ANYWHERE);
    assert_non_null(range);
    block_become(&range->block, BLOCK_SLAB);
    assert_int_equal(runs_add_slab(&bench->runs, range), 0);
    struct slab *slab = page_map_slab(page_map_get(range->block.address));
    assert_non_null(slab);
    assert_ptr_equal(slab->range, range);
    return slab;
}

static void start_at_segment(struct bench *bench, unsigned slabs) {
    static uint64_t next = (uint64_t)64 << 30;
    bench->base = next += (uint64_t)64 << 30;
    struct pool *owner = (struct pool *)0x1000;
    arena_start(&bench->arena, owner, false);
    assert_int_equal(arena_add(&bench->arena, bench->base, slabs * PAGE_BYTES, NULL), 0);
    bench->runs = (struct runs){.pool = owner};
}

static void start(struct bench *bench) {
    start_at_segment(bench, SLABS + 1);
    assert_non_null(arena_take(&bench->arena, PAGE_BYTES, PLACEMENT_ANYWHERE));
    bench->base += PAGE_BYTES;
}

/* ---- a checker that shares nothing with the pool's own ---- */

/* Units at the start of a run that are reserved: the first unit of a segment. */
static unsigned reserved_units(const struct block *run) {
    const struct slab *slab = slab_of(run);
    return run == &slab->blocks[0] && slab->address == slab->range->segment->base;
}

static void check(const struct bench *bench) {
    uint64_t free_units = 0, longest = 0;
    for (uint64_t i = 0; i < SLABS; i++) {
        struct slab *slab = page_map_slab(page_map_get(bench->base + i * PAGE_BYTES));
        if (!slab)
            continue;
        unsigned used = 0;
        enum block_state before = BLOCK_LIVE;
        for (unsigned u = 0; u < SLAB_UNITS;) {
            const struct block *b = slab_unit(slab, u);
            assert_true(block_state(b) == BLOCK_FREE || block_state(b) == BLOCK_CACHED);
            assert_true(block_units(b) > 0 && u + block_units(b) <= SLAB_UNITS);
            assert_false(block_state(b) == BLOCK_FREE && before == BLOCK_FREE);
            for (unsigned j = 1; j < block_units(b); j++) {
                bool tail = block_state(b) == BLOCK_FREE && j + 1 == block_units(b);
                const struct block *inner = slab_unit(slab, u + j);
                assert_int_equal(block_state(inner), tail ? BLOCK_TAIL : BLOCK_INSIDE);
                assert_true(!tail || block_units(inner) == block_units(b));
            }
            if (block_state(b) == BLOCK_FREE) {
                unsigned length = block_units(b) - reserved_units(b);
                free_units += block_units(b);
                longest = length > longest ? length : longest;
            } else {
                used += block_units(b);
            }
            before = block_state(b);
            u += block_units(b);
        }
        assert_int_equal(slab->used_units, used);
    }
    uint64_t listed = 0;
    for (unsigned units = 0; units <= SLAB_UNITS; units++) {
        const struct block *head = bench->runs.lists[units];
        bool bit = bench->runs.lengths[units >> 6] >> (units & 63) & 1;
        assert_true(bit == (head != NULL));
        assert_true(!head || head->previous == NULL);
        for (const struct block *b = head; b; b = b->next) {
            assert_true(block_state(b) == BLOCK_FREE &&
                        block_units(b) == units + reserved_units(b));
            assert_true(!b->next || b->next->previous == b);
            listed += block_units(b);
        }
    }
    assert_int_equal(listed, free_units);
    assert_int_equal(bench->runs.free_units, free_units);
    assert_int_equal(runs_largest(&bench->runs), longest << UNIT_SHIFT);
}

static struct block *take(struct bench *bench, unsigned units) {
    struct block *block = runs_take(&bench->runs, units, 0, false);
    if (block) {
        assert_int_equal(block_units(block), units);
        assert_int_equal(block_state(block), BLOCK_CACHED);
        assert_int_equal(block->stamp, 0);
    }
    return block;
}

static struct range *give(struct bench *bench, struct block *block) {
    struct range *range = runs_give(&bench->runs, block);
    if (range)
        arena_give(&bench->arena, range);
    check(bench);
    return range;
}

static void nothing_fits_without_an_open_slab(void **state) {
    (void)state;
    struct bench bench;
    start(&bench);
    check(&bench);
    assert_null(runs_take(&bench.runs, 1, 0, false));
    assert_int_equal(runs_largest(&bench.runs), 0);
}

static void a_block_knows_its_address_and_its_slab(void **state) {
    (void)state;
    struct bench bench;
    start(&bench);
    struct slab *slab = open_slab(&bench);
    check(&bench);
    struct block *a = take(&bench, 3), *b = take(&bench, 5);
    assert_ptr_equal(slab_of(b), slab);
    assert_int_equal(a->address, bench.base);
    assert_int_equal(b->address, bench.base + 3 * 512);
    assert_int_equal(block_bytes(b), 5 * 512);
    assert_ptr_equal(slab_block(slab, bench.base + 3 * 512), b);
    assert_ptr_equal(slab_block(slab, bench.base + 3 * 512 + 511), b);
}

static void an_address_is_found_in_its_block_only(void **state) {
    (void)state;
    struct bench bench;
    start(&bench);
    struct slab *slab = open_slab(&bench);
    struct block *a = take(&bench, 3), *b = take(&bench, 5), *c = take(&bench, 1);
    assert_ptr_equal(slab_find(slab, bench.base), a);
    assert_ptr_equal(slab_find(slab, bench.base + 3 * 512 - 1), a);
    assert_ptr_equal(slab_find(slab, bench.base + 3 * 512), b);
    assert_ptr_equal(slab_find(slab, bench.base + 8 * 512 - 1), b);
    assert_ptr_equal(slab_find(slab, bench.base + 8 * 512 + 100), c);
    assert_null(slab_find(slab, bench.base + 9 * 512));
    assert_null(slab_find(slab, bench.base + PAGE_BYTES - 1));
    give(&bench, b);
    assert_null(slab_find(slab, bench.base + 5 * 512));
    assert_ptr_equal(slab_find(slab, bench.base + 100), a);
}

/*
 * Makes free runs of selected lengths, not adjacent to each other. Each request gets the shortest
 * that holds it.
 */
static void the_best_fit_is_exact_for_every_length(void **state) {
    (void)state;
    static const unsigned lengths[] = {1, 2, 3, 63, 64, 65, 127, 128, 129, 700};
    enum { COUNT = sizeof lengths / sizeof *lengths };
    struct bench bench;
    start(&bench);
    for (unsigned request = 1; request <= 700; request++) {
        open_slab(&bench);
        struct block *freed[COUNT], *between[COUNT];
        for (unsigned i = 0; i < COUNT; i++) {
            freed[i] = take(&bench, lengths[i]);
            between[i] = take(&bench, 1);
            assert_non_null(between[i]);
        }
        struct block *rest = take(&bench, SLAB_UNITS - 1282 - COUNT);
        assert_non_null(rest);
        assert_null(take(&bench, 1));
        for (unsigned i = 0; i < COUNT; i++)
            assert_null(runs_give(&bench.runs, freed[i]));
        unsigned best = 0;
        while (lengths[best] < request)
            best++;
        struct block *got = take(&bench, request);
        assert_ptr_equal(got, freed[best]);
        check(&bench);
        assert_null(give(&bench, got));
        for (unsigned i = 0; i < COUNT; i++)
            assert_null(runs_give(&bench.runs, between[i]));
        assert_non_null(give(&bench, rest));
    }
}

static void a_whole_slab_is_one_block_at_most(void **state) {
    (void)state;
    struct bench bench;
    start(&bench);
    open_slab(&bench);
    open_slab(&bench);
    assert_int_equal(runs_largest(&bench.runs), PAGE_BYTES);
    struct block *a = take(&bench, SLAB_UNITS), *b = take(&bench, SLAB_UNITS);
    assert_non_null(a);
    assert_non_null(b);
    assert_null(take(&bench, 1));
    check(&bench);
    assert_non_null(give(&bench, a));
    assert_non_null(give(&bench, b));
}

static void free_neighbours_are_merged_from_every_side(void **state) {
    (void)state;
    static const int orders[6][3] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2},
                                     {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};
    static const unsigned sizes[][3] = {{1, 1, 1}, {1, 2, 1}, {2, 1, 2}, {7, 64, 3}};
    for (int i = 0; i < 6; i++) {
        for (int j = 0; j < 4; j++) {
            struct bench bench;
            start(&bench);
            open_slab(&bench);
            assert_non_null(take(&bench, 1));
            struct block *blocks[3];
            unsigned sum = 0;
            for (int k = 0; k < 3; k++) {
                blocks[k] = take(&bench, sizes[j][k]);
                sum += sizes[j][k];
            }
            assert_non_null(take(&bench, SLAB_UNITS - sum - 1));
            for (int k = 0; k < 3; k++)
                assert_null(give(&bench, blocks[orders[i][k]]));
            assert_int_equal(runs_largest(&bench.runs), (uint64_t)sum << UNIT_SHIFT);
            assert_int_equal(bench.runs.free_units, sum);
        }
    }
}

static void an_empty_slab_goes_back_to_the_arena(void **state) {
    (void)state;
    struct bench bench;
    start(&bench);
    struct slab *slab = open_slab(&bench);
    struct block *a = take(&bench, 100), *b = take(&bench, 7);
    assert_null(give(&bench, a));
    assert_non_null(page_map_slab(page_map_get(bench.base)));
    assert_non_null(give(&bench, b));
    assert_null(page_map_slab(page_map_get(bench.base)));
    assert_int_equal(bench.arena.free_bytes, SLABS * PAGE_BYTES);
    assert_null(take(&bench, 1));
    assert_ptr_equal(open_slab(&bench), slab); /* recycled descriptors are like new ones */
    assert_int_equal(runs_largest(&bench.runs), PAGE_BYTES);
    check(&bench);
    assert_null(slab_find(slab, bench.base + 5 * 512));
}

static void a_forgotten_slab_is_like_a_new_one(void **state) {
    (void)state;
    struct bench bench;
    start(&bench);
    struct slab *slab = open_slab(&bench);
    struct block *a = take(&bench, 3);
    take(&bench, 9);
    slab->externally_visible = true;
    runs_give(&bench.runs, a);
    arena_leave_map(&bench.arena);
    runs_forget_slab(&bench.runs, slab);
    runs_forget(&bench.runs);
    arena_forget(&bench.arena);
    check(&bench);
    for (unsigned i = 0; i < SLAB_UNITS; i++)
        assert_int_equal(block_state(&slab->blocks[i]), BLOCK_INSIDE);
    assert_int_equal(arena_add(&bench.arena, bench.base, SLABS * PAGE_BYTES, NULL), 0);
    assert_ptr_equal(open_slab(&bench), slab);
    assert_false(slab->externally_visible);
    check(&bench);
}

/* Returns how many host pages the slab's descriptors occupy. */
static unsigned resident(const struct slab *slab) {
    unsigned char in[40];
    size_t bytes = sizeof slab->blocks, page = (size_t)getpagesize();
    assert_int_equal(mincore((void *)((uintptr_t)slab->blocks & ~(page - 1)), bytes, in), 0);
    unsigned count = 0;
    for (size_t i = 0; i < bytes / page; i++)
        count += in[i] & 1;
    return count;
}

static void closed_slabs_give_their_host_memory_back(void **state) {
    (void)state;
    struct bench bench;
    start(&bench);
    struct slab *open = open_slab(&bench), *slab = open_slab(&bench);
    /* The descriptors share a host page with the slab's head. */
    assert_int_not_equal((uintptr_t)slab->blocks % (size_t)getpagesize(), 0);
    struct block *kept = NULL, *all[SLAB_UNITS];
    for (unsigned i = 0; i < SLAB_UNITS; i++)
        all[i] = take(&bench, 1);
    for (unsigned i = 0; i < SLAB_UNITS; i++)
        assert_ptr_equal(slab_of(all[i]), slab); /* the slab that was opened last */
    kept = take(&bench, 7);
    assert_ptr_equal(slab_of(kept), open);
    for (unsigned i = 0; i < SLAB_UNITS; i++) {
        struct range *emptied = runs_give(&bench.runs, all[i]);
        assert_true((emptied != NULL) == (i == SLAB_UNITS - 1));
        if (emptied)
            arena_give(&bench.arena, emptied);
    }
    assert_int_equal(resident(slab), sizeof slab->blocks / (size_t)getpagesize());
    runs_trim(&bench.runs);
    assert_true(resident(slab) <= 2); /* host pages shared with neighbours */
    assert_int_equal(block_units(kept), 7);
    assert_ptr_equal(slab->pool, bench.runs.pool);
    for (unsigned i = 0; i < SLAB_UNITS; i++)
        assert_int_equal(block_state(&slab->blocks[i]), BLOCK_INSIDE);
    unsigned after = resident(slab);
    runs_trim(&bench.runs); /* a second trim changes nothing */
    assert_int_equal(resident(slab), after);
    assert_ptr_equal(open_slab(&bench), slab);
    check(&bench);
}

/* Every second slab closes: its neighbours' descriptors lie in the same host pages. */
static void trim_beside_open_slabs(size_t page) {
    enum { MANY = SLAB_REGION_SLABS };
    struct bench bench;
    static struct slab *slabs[MANY];
    static struct block *blocks[MANY][SLAB_UNITS];
    large_pages_start(page);
    start(&bench);
    assert_int_equal(arena_add(&bench.arena, bench.base + GIB, MANY * PAGE_BYTES, NULL), 0);
    for (unsigned i = 0; i < MANY; i++) {
        slabs[i] = open_slab(&bench);
        for (unsigned j = 0; j < SLAB_UNITS; j++)
            blocks[i][j] = take(&bench, 1);
    }
    for (unsigned i = 0; i < MANY; i += 2) {
        for (unsigned j = 0; j < SLAB_UNITS; j++) {
            /* the first unit of a segment is not handed out */
            struct range *emptied = blocks[i][j] ? runs_give(&bench.runs, blocks[i][j]) : NULL;
            if (emptied)
                arena_give(&bench.arena, emptied);
        }
    }
    runs_trim(&bench.runs);
    for (unsigned i = 1; i < MANY; i += 2) {
        assert_ptr_equal(slabs[i]->pool, bench.runs.pool);
        for (unsigned j = 0; j < SLAB_UNITS && blocks[i][j]; j++) {
            assert_int_equal(block_units(blocks[i][j]), 1);
            assert_ptr_equal(slab_of(blocks[i][j]), slabs[i]);
        }
    }
    large_pages_end();
}

static void a_trim_clears_no_other_slab_on_large_host_pages(void **state) {
    (void)state;
    trim_beside_open_slabs(16384);
    trim_beside_open_slabs(65536);
}

/*
 * Descriptors of one block size use few of the slab's 32 host pages, each a cache line of its own,
 * evenly over the sets.
 */
static void descriptors_of_one_size_lie_together(void **state) {
    (void)state;
    const struct { unsigned units, most; } rows[] = {{2048, 6}, {128, 4}, {32, 8}, {8, 16}};
    for (unsigned i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct bench bench;
        uintptr_t lines[SLAB_UNITS / 8], base;
        unsigned units = rows[i].units, in_set[64] = {0};
        start(&bench);
        for (unsigned j = 0; j < 3; j++) { /* the last slab has neighbours */
            struct slab *slab = open_slab(&bench);
            base = (uintptr_t)slab->blocks;
            for (unsigned k = 0; k < SLAB_UNITS / units; k++) {
                lines[k] = (uintptr_t)take(&bench, units) / 64;
                assert_ptr_equal(slab_of((struct block *)(lines[k] * 64)), slab);
                for (unsigned l = 0; l < k; l++)
                    assert_int_not_equal(lines[l], lines[k]);
                in_set[(lines[k] - base / 64) % 64] += j == 2;
            }
            assert_in_range(resident(slab), 1, rows[i].most);
        }
        for (unsigned set = 0; set < 64; set++)
            assert_true(in_set[set] <= (SLAB_UNITS / units + 63) / 64);
    }
}

static void every_descriptor_finds_its_slab(void **state) {
    (void)state;
    enum { MANY = 3 * SLAB_REGION_SLABS + 1 };
    struct bench bench;
    static struct slab *slabs[MANY];
    start(&bench);
    assert_int_equal(arena_add(&bench.arena, bench.base + GIB, MANY * PAGE_BYTES, NULL), 0);
    for (unsigned i = 0; i < MANY; i++) {
        slabs[i] = open_slab(&bench);
        for (unsigned unit = 0; unit < SLAB_UNITS; unit++) {
            struct block *block = slab_unit(slabs[i], unit);
            assert_ptr_equal(slab_of(block), slabs[i]);
            assert_int_equal(block_unit(block), unit);
            assert_ptr_equal(slab_block(slabs[i], slabs[i]->address + 512 * unit), block);
        }
        for (unsigned j = 0; j < i; j++)
            assert_true(slabs[j] + 1 <= slabs[i] || slabs[i] + 1 <= slabs[j]);
    }
}

static void a_slab_opened_in_a_marked_segment_is_marked_too(void **state) {
    (void)state;
    struct bench bench;
    start(&bench);
    struct slab *slab = open_slab(&bench);
    assert_true(page_map_is_plain_slab(page_map_get(slab->address)));
    slab->range->segment->externally_visible = true;
    struct slab *later = open_slab(&bench);
    assert_true(later->externally_visible);
    assert_ptr_equal(page_map_slab(page_map_get(later->address)), later);
    assert_false(page_map_is_plain_slab(page_map_get(later->address)));
}

/*
 * A program that bypasses the library may free, at the driver, a block that begins where a segment
 * does.
 */
static void the_first_unit_of_a_segment_is_handed_out_only_on_request(void **state) {
    (void)state;
    struct bench bench;
    start_at_segment(&bench, 1);
    struct slab *slab = open_slab(&bench);
    check(&bench);
    assert_int_equal(runs_largest(&bench.runs), PAGE_BYTES - 512);
    struct block *a = take(&bench, 2048), *b = take(&bench, 7);
    assert_int_equal(a->address, bench.base + 2048 * 512);
    assert_int_equal(b->address, bench.base + 2041 * 512);
    assert_null(give(&bench, b));
    assert_null(take(&bench, 2048)); /* 2048 are free only with the reserved unit */
    b = runs_take(&bench.runs, 2048, 0, true);
    assert_ptr_equal(b, &slab->blocks[0]);
    assert_int_equal(b->address, bench.base);
    assert_int_equal(block_units(b), 2048);
    check(&bench);
    assert_null(give(&bench, a));
    a = take(&bench, 2048); /* only a run with the reserved unit is cut from its end */
    assert_int_equal(a->address, bench.base + 2048 * 512);
    assert_null(give(&bench, b));
    b = take(&bench, 2047);
    assert_int_equal(b->address, bench.base + 512);
    assert_null(take(&bench, 1));
    struct block *last = runs_take(&bench.runs, 1, 0, true);
    assert_ptr_equal(last, &slab->blocks[0]);
    check(&bench);
    assert_null(give(&bench, last));
    assert_null(give(&bench, a));
    assert_non_null(give(&bench, b));
}

static void random_steps(bool at_segment) {
    static uint8_t used[SLABS * 4096];
    static struct block *live[1024];
    memset(used, 0, sizeof used);
    memset(live, 0, sizeof live);
    struct bench bench;
    if (at_segment)
        start_at_segment(&bench, SLABS);
    else
        start(&bench);
    srand(2);
    for (int step = 0; step < 40000; step++) {
        struct block **slot = &live[rand() % 1024];
        if (*slot) {
            uint64_t at = ((*slot)->address - bench.base) >> UNIT_SHIFT;
            memset(used + at, 0, block_units(*slot));
            struct range *range = runs_give(&bench.runs, *slot);
            if (range) {
                uint64_t first = (range->block.address - bench.base) >> UNIT_SHIFT;
                assert_null(memchr(used + first, 1, SLAB_UNITS));
                arena_give(&bench.arena, range);
            }
            *slot = NULL;
        } else {
            unsigned units = 1 + (unsigned)rand() % (rand() % 8 ? 32 : 2048);
            struct block *block = take(&bench, units);
            if (!block && bench.arena.free_bytes >= PAGE_BYTES) {
                open_slab(&bench);
                block = take(&bench, units);
            }
            if (!block) {
                assert_true(runs_largest(&bench.runs) >> UNIT_SHIFT < units);
                continue;
            }
            uint64_t at = (block->address - bench.base) >> UNIT_SHIFT;
            assert_null(memchr(used + at, 1, units));
            assert_true(at > 0 || !at_segment);
            memset(used + at, 1, units);
            *slot = block;
        }
        if (step % 512 == 0)
            check(&bench);
    }
    check(&bench);
}

static void random_steps_agree_with_a_map_of_every_unit(void **state) {
    (void)state;
    random_steps(false);
    random_steps(true);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_fits_without_an_open_slab),
        cmocka_unit_test(a_block_knows_its_address_and_its_slab),
        cmocka_unit_test(an_address_is_found_in_its_block_only),
        cmocka_unit_test(the_best_fit_is_exact_for_every_length),
        cmocka_unit_test(a_whole_slab_is_one_block_at_most),
        cmocka_unit_test(free_neighbours_are_merged_from_every_side),
        cmocka_unit_test(an_empty_slab_goes_back_to_the_arena),
        cmocka_unit_test(a_forgotten_slab_is_like_a_new_one),
        cmocka_unit_test(closed_slabs_give_their_host_memory_back),
        cmocka_unit_test(a_trim_clears_no_other_slab_on_large_host_pages),
        cmocka_unit_test(descriptors_of_one_size_lie_together),
        cmocka_unit_test(every_descriptor_finds_its_slab),
        cmocka_unit_test(a_slab_opened_in_a_marked_segment_is_marked_too),
        cmocka_unit_test(the_first_unit_of_a_segment_is_handed_out_only_on_request),
        cmocka_unit_test(random_steps_agree_with_a_map_of_every_unit),
    };
    return cmocka_run_group_tests_name("slabs", tests, NULL, NULL);
}
