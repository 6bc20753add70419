/*
 * Tests pools that map memory (vmm): where and by how much a request makes the pool grow, which
 * handles are remapped or released for it, and which handles an export of a block names.
 */
#include "pool_bench.h"

#include "heap/idle.h"
#include "heap/page_map.h"
#include "heap/va_range.h"

#include <sched.h>

#define PAGE (2 * MIB)

static int with_vmm(void **state) {
    (void)state;
    maps_pages = true;
    return 0;
}

static void finish_and_update(void) {
    finish_all();
    pool_stuck_bytes(pool); /* updates the safe epoch */
}

/* Gets a block, and checks that all of it is mapped. */
static uint64_t get_mapped(uint64_t bytes) {
    uint64_t address = get(bytes);
    fake_reach(fake, address, bytes, 0, fake_submit(fake, 0));
    for (uint64_t at = address & ~(PAGE - 1); at < address + bytes; at += PAGE)
        fake_physical(fake, at);
    assert_int_equal(fake->broken_laws, 0);
    check();
    return address;
}

static struct segment *segment_at(uint64_t address) {
    struct segment *segment = pool->source.large.segments;
    while (segment && segment->base + segment->bytes <= address)
        segment = segment->next;
    return segment && segment->base <= address ? segment : NULL;
}

/* Makes free memory in adjacent segments of these lengths. Returns its address. */
static uint64_t free_in_parts(const uint64_t *parts, unsigned count) {
    uint64_t at[16], all = 0;
    for (unsigned i = 0; i < count; i++) {
        at[i] = get_mapped(parts[i]);
        assert_int_equal(at[i], at[0] + all);
        assert_int_equal(segment_at(at[i])->bytes, parts[i]);
        all += parts[i];
    }
    finish_and_update();
    for (unsigned i = 0; i < count; i++)
        drop(at[i]);
    finish_and_update();
    return at[0];
}

/* A block in segments of 4 MiB. */
#define PART (4 * MIB)
#define PARTS(count) free_in_parts((const uint64_t[]){PART, PART, PART, PART, PART}, count)

static uint64_t get_in_parts(unsigned count) {
    uint64_t at = PARTS(count);
    assert_int_equal(get_mapped(count * PART), at);
    finish_and_update();
    return at;
}

/* Adjacent blocks, each in a segment of its own. */
enum { A, B, C, D, E, BLOCKS };
#define EACH (8 * MIB)

static uint64_t blocks[BLOCKS];

static void start_side_by_side(void) {
    start(4 * GIB, REUSE_BARRIER, RELAXED);
    for (unsigned i = 0; i < BLOCKS; i++) {
        blocks[i] = get_mapped(EACH);
        assert_int_equal(blocks[i], blocks[0] + i * EACH);
    }
    finish_and_update();
    assert_int_equal(pool->source.large.segment_count, BLOCKS);
}

static void make_gap(unsigned which) {
    drop(blocks[which]);
    finish_and_update();
    assert_int_equal(pool_trim(pool, true), 0);
    assert_null(segment_at(blocks[which]));
    assert_null(segment_at(blocks[which] + EACH - 1));
    check();
}

static void make_free(unsigned which) {
    drop(blocks[which]);
    finish_and_update();
}

/* ---- where the pool grows ---- */

static void a_request_grows_by_what_it_lacks_at_the_end(void **state) {
    (void)state;
    start(4 * GIB, REUSE_BARRIER, RELAXED);
    get_mapped(10 * MIB);
    uint64_t end = get_mapped(20 * MIB);
    drop(end);
    finish_and_update();
    assert_int_equal(get_mapped(26 * MIB), end);
    assert_int_equal(fake->reserved, 36 * MIB);
    uint64_t last = get_mapped(3 * MIB), half = last + 3 * MIB; /* half a VMM page is free */
    assert_int_equal(fake->reserved, 40 * MIB);
    assert_int_equal(get_mapped(5 * MIB), half);
    assert_int_equal(fake->reserved, 44 * MIB);
    assert_int_equal(pool->source.large.free_count, 0);
    assert_int_equal(fake->releases, 0);
}

static void a_block_that_fits_elsewhere_does_not_use_the_end(void **state) {
    (void)state;
    start_side_by_side();
    make_free(E);
    make_free(B);
    assert_int_equal(get_mapped(6 * MIB), blocks[B]);
    assert_int_equal(get_mapped(7 * MIB), blocks[E]);
    assert_int_equal(fake->reserved, BLOCKS * EACH);
}

/* Range B is longer than the one at the end, but at a lower address. Both fit the request. */
static void a_longer_range_is_taken_before_the_end(void **state) {
    (void)state;
    start_side_by_side();
    make_free(B), make_free(C); /* 16 MiB */
    make_free(E);
    assert_int_equal(get_mapped(6 * MIB), blocks[B]);
    assert_int_equal(fake->reserved, BLOCKS * EACH);
}

static void a_gap_is_filled_from_its_left(void **state) {
    (void)state;
    start_side_by_side();
    make_gap(C);
    make_free(B);
    assert_int_equal(get_mapped(EACH + 3 * MIB), blocks[B]);
    assert_int_equal(fake->reserved, (BLOCKS - 1) * EACH + 4 * MIB);
    assert_non_null(segment_at(blocks[C] + 4 * MIB - 1));
    assert_null(segment_at(blocks[C] + 4 * MIB));
}

static void a_gap_is_filled_from_its_right(void **state) {
    (void)state;
    start_side_by_side();
    make_gap(C);
    make_free(D);
    assert_int_equal(get_mapped(EACH + 4 * MIB), blocks[D] - 4 * MIB);
    assert_int_equal(fake->reserved, (BLOCKS - 1) * EACH + 4 * MIB);
    assert_null(segment_at(blocks[C] + 4 * MIB - 1));
}

static void a_gap_is_filled_from_the_side_that_lacks_less(void **state) {
    (void)state;
    for (unsigned left = 0; left < 2; left++) {
        start_side_by_side();
        make_gap(C);
        make_free(left ? D : B);
        get_mapped(left ? 2 * MIB
                        : 4 * MIB); /* now that side has less free memory than the other */
        make_free(left ? B : D);
        uint64_t reserved = fake->reserved;
        assert_int_equal(get_mapped(10 * MIB), left ? blocks[B] : blocks[D] - 2 * MIB);
        assert_int_equal(fake->reserved, reserved + 2 * MIB);
        assert_int_equal(stop(NULL), 0);
    }
}

static void a_block_may_fill_a_gap_and_the_free_ranges_beside_it(void **state) {
    (void)state;
    start_side_by_side();
    make_gap(C);
    make_free(B), make_free(D);
    assert_int_equal(get_mapped(3 * EACH), blocks[B]);
    assert_int_equal(fake->reserved, BLOCKS * EACH);
    assert_int_equal(pool->source.large.free_count, 0);
}

static void a_block_that_fits_no_gap_goes_to_the_end(void **state) {
    (void)state;
    start_side_by_side();
    make_gap(C);
    make_free(B), make_free(D);
    assert_int_equal(get_mapped(3 * EACH + 1), blocks[E] + EACH);
    assert_int_equal(fake->reserved, (BLOCKS - 1) * EACH + 3 * EACH + PAGE);
}

static void of_equal_gaps_the_lowest_is_filled(void **state) {
    (void)state;
    start_side_by_side();
    make_gap(D);
    make_gap(B);
    assert_int_equal(get_mapped(EACH), blocks[B]);
    assert_int_equal(get_mapped(EACH), blocks[D]);
    assert_int_equal(get_mapped(EACH), blocks[E] + EACH);
}

static void the_gap_that_needs_least_new_memory_is_filled(void **state) {
    (void)state;
    start_side_by_side();
    make_gap(B);
    make_gap(D);
    make_free(E);
    assert_int_equal(get_mapped(EACH + 2 * MIB), blocks[E] - 2 * MIB); /* lower than the end */
    assert_int_equal(fake->reserved, 3 * EACH + 2 * MIB);
    drop(blocks[C]);
    finish_and_update();
    assert_int_equal(get_mapped(EACH + 2 * MIB), blocks[C] - 2 * MIB);
    assert_int_equal(fake->reserved, 3 * EACH + 4 * MIB);
}

static void a_gap_in_front_of_all_segments_is_filled(void **state) {
    (void)state;
    start_side_by_side();
    make_gap(A);
    assert_int_equal(get_mapped(5 * MIB), blocks[A]);
    assert_ptr_equal(pool->source.large.segments, segment_at(blocks[A]));
    assert_int_equal(pool->source.large.segments->previous != NULL, false);
}

/* ---- segments of a block ---- */

static void a_block_over_several_segments_is_counted_in_each(void **state) {
    (void)state;
    start(4 * GIB, REUSE_BARRIER, RELAXED);
    PARTS(5);
    uint64_t block = get_mapped(4 * PART + 512 * KIB), other = get_mapped(MIB + 256 * KIB);
    const struct segment *s[5];
    assert_int_equal(other, block + 4 * PART + 512 * KIB);
    assert_int_equal(pool->source.large.segment_count, 5);
    for (unsigned i = 0; i < 5; i++) {
        s[i] = segment_at(block + i * PART);
        assert_int_equal(s[i]->used, i < 4 ? PART : MIB + 768 * KIB);
    }
    pool->source.decay.tick = 7;
    finish_and_update();
    drop_used(block, 4 * PART + 512 * KIB);
    assert_int_equal(s[1]->used, PART); /* still pending */
    assert_int_equal(pool->source.large.idle_bytes, 0);
    finish_and_update();
    for (unsigned i = 0; i < 5; i++) {
        assert_int_equal(s[i]->used, i < 4 ? 0 : MIB + 256 * KIB);
        assert_true(s[i]->stamp > 0 && s[i]->stamp == s[0]->stamp);
        assert_int_equal(s[i]->since, 7);
    }
    assert_int_equal(pool->source.large.idle_bytes, 4 * PART);
    check();
    pool->source.decay.tick = 9;
    uint64_t stamp = s[0]->stamp, middle = get_mapped(2 * PART + MIB); /* in the first three */
    assert_int_equal(middle, block);
    assert_int_equal(pool->source.large.idle_bytes, PART);
    finish_and_update();
    drop_used(middle, 2 * PART + MIB);
    finish_and_update();
    for (unsigned i = 0; i < 5; i++) {
        assert_int_equal(s[i]->stamp > stamp, i < 3);
        assert_int_equal(s[i]->since, i < 3 ? 9 : 7);
    }
    assert_int_equal(pool->source.large.idle_bytes, 4 * PART);
    assert_int_equal(pool->source.large.free_count, 2);
}

/* Free memory in front of the segment and behind it stays, and merges with memory mapped between
 * them later. A segment in use stays, however old. */
static void an_idle_segment_inside_a_free_range_is_released(void **state) {
    (void)state;
    start(4 * GIB, REUSE_BARRIER, RELAXED);
    pool->source.config.decays = true;
    pool->source.decay.tick = 100;
    uint64_t base = PARTS(5), live = get_mapped(MIB + 4 * KIB);
    assert_int_equal(live, base);
    for (unsigned i = 0; i < 5; i++)
        segment_at(base + i * PART)->since = i % 2 ? 100 : 50;
    segment_at(base + 4 * PART)->since = 100;
    while (pool_decay(pool)) {
    }
    assert_int_equal(fake->reserved, 4 * PART);
    assert_null(segment_at(base + 2 * PART));
    assert_int_equal(pool->source.large.free_count, 2);
    assert_int_equal(arena_largest_free(&pool->source.large), 2 * PART);
    struct pool_block found;
    assert_int_equal(pool_find(base + 2 * PART, &found), -ENOENT);
    assert_int_equal(pool_find(base + PART, &found), -EINVAL);
    check();
    assert_int_equal(get_mapped(4 * PART), base + MIB + 4 * KIB);
    assert_int_equal(fake->reserved, 5 * PART);
}

/* ---- what is released ---- */

static void over_the_budget_idle_segments_are_released_before_growth(void **state) {
    (void)state;
    start(4 * GIB, REUSE_BARRIER, 40 * MIB);
    uint64_t idle = get_in_parts(5), live = get_mapped(2 * MIB);
    finish_and_update();
    drop(idle);
    finish_and_update();
    fake->reserved_peak = 0;
    assert_int_equal(get_mapped(30 * MIB), live + 2 * MIB);
    assert_int_equal(fake->reserved, 38 * MIB); /* released: as many segments of 4 MiB as needed, */
    assert_int_equal(fake->reserved_peak, 38 * MIB); /* before the growth, */
    assert_null(segment_at(idle + 12 * MIB));        /* from the lowest address */
    assert_non_null(segment_at(idle + 16 * MIB));
    assert_int_equal(fake->waits, 0);
}

/* Gets a block of `parts` segments of 4 MiB (*first), and returns a block of 20 MiB. Neither is
 * next to a free range. */
static uint64_t get_two(unsigned parts, uint64_t *first) {
    start(4 * GIB, REUSE_BARRIER, 60 * MIB);
    *first = get_in_parts(parts);
    get_mapped(2 * MIB);
    uint64_t second = get_mapped(20 * MIB);
    get_mapped(2 * MIB);
    return second;
}

/* Running work uses only other segments. */
static void idle_segments_without_work_are_released_without_a_wait(void **state) {
    (void)state;
    uint64_t idle, later = get_two(5, &idle);
    finish_and_update();
    drop(idle);
    finish_and_update();
    drop_used(later, 20 * MIB);
    get_mapped(34 * MIB);
    assert_in_range(fake->reserved, 52 * MIB, 60 * MIB);
    assert_int_equal(fake->waits, 0);
    finish_and_update();
}

/* The request itself needs the idle memory next to the gap. */
static void idle_memory_next_to_the_gap_is_not_released(void **state) {
    (void)state;
    uint64_t idle, later = get_two(2, &idle);
    uint64_t adjacent = get_mapped(20 * MIB);
    finish_and_update();
    drop(idle), drop(adjacent);
    finish_and_update();
    drop_used(later, 20 * MIB);
    assert_int_equal(get_mapped(34 * MIB), adjacent);
    assert_in_range(fake->reserved, 52 * MIB, 60 * MIB);
    assert_int_equal(fake->waits, 0);
    finish_and_update();
}

static void below_the_budget_no_idle_segment_is_released(void **state) {
    (void)state;
    start(4 * GIB, REUSE_BARRIER, 60 * MIB);
    uint64_t idle = get_mapped(20 * MIB);
    get_mapped(2 * MIB);
    finish_and_update();
    drop(idle);
    finish_and_update();
    get_mapped(38 * MIB);
    assert_int_equal(fake->reserved, 60 * MIB);
    assert_int_equal(fake->unmaps, 0);
}

/* Gets 128 MiB in long segments, which do not move, 32 MiB in short ones, which do, and 2 MiB
 * behind them, which stay. The fake checks that nothing is unmapped under work. */
static uint64_t get_long(uint64_t budget) {
    start(4 * GIB, REUSE_BARRIER, budget);
    uint64_t at = get_mapped(160 * MIB);
    assert_int_equal(segment_at(at)->bytes, 32 * MIB);
    get_mapped(2 * MIB);
    finish_and_update();
    return at;
}

static void unfinished_memory_is_waited_for_if_it_suffices(void **state) {
    (void)state;
    for (unsigned suffices = 0; suffices < 2; suffices++) {
        drop_used(get_long(320 * MIB), 160 * MIB);
        get_mapped(suffices ? 240 * MIB : 480 * MIB);
        assert_int_equal(fake->waits > 0, suffices);
        assert_in_range(fake->reserved, suffices ? 304 * MIB : 610 * MIB,
                        suffices ? 320 * MIB : 610 * MIB);
        assert_int_equal(fake->unmaps > 0, suffices);
        finish_and_update();
        assert_int_equal(stop(NULL), 0);
    }
}

/* The pool exceeded its budget before, which is no reason to wait. A short segment is remapped for
 * the slab. */
static void no_more_is_waited_for_than_a_growth_adds(void **state) {
    (void)state;
    uint64_t at = get_long(320 * MIB);
    get_mapped(240 * MIB);
    finish_and_update();
    drop_used(at, 160 * MIB);
    get(MIB);
    assert_int_equal(fake->waits, 0);
    assert_int_equal(fake->reserved, 402 * MIB);
    assert_int_equal(pool->source.small.reserved_bytes, VMM_HANDLE);
    finish_and_update();
}

/* Memory next to the gap cannot be released: it is no reason to wait, nor a reason not to wait for
 * other memory. */
static void memory_next_to_the_gap_does_not_count(void **state) {
    (void)state;
    start(4 * GIB, REUSE_BARRIER, 24 * MIB);
    get_mapped(2 * MIB);
    uint64_t near = get_mapped(20 * MIB);
    finish_and_update();
    drop_used(near, 20 * MIB);
    assert_int_equal(get_mapped(30 * MIB), near);
    assert_int_equal(fake->reserved, 32 * MIB);
    assert_int_equal(fake->waits, 0);
    finish_and_update();
    assert_int_equal(stop(NULL), 0);
    uint64_t far = get_long(300 * MIB);
    near = get_mapped(20 * MIB);
    finish_and_update();
    drop(near);
    finish_and_update();
    drop_used(far, 160 * MIB);
    assert_int_equal(get_mapped(200 * MIB), near);
    assert_in_range(fake->reserved, 284 * MIB, 300 * MIB);
    assert_true(fake->waits > 0);
}

static void memory_that_cannot_be_waited_for_is_not_released(void **state) {
    (void)state;
    uint64_t idle = get_long(320 * MIB);
    fake->wait_code = -EBUSY;
    drop_used(idle, 160 * MIB);
    get_mapped(240 * MIB);
    assert_int_equal(fake->reserved, 370 * MIB);
    assert_int_equal(fake->unmaps, 0);
    fake->wait_code = 0;
}

static void free_memory_next_to_the_gap_stays(void **state) {
    (void)state;
    start(4 * GIB, REUSE_BARRIER, 30 * MIB);
    uint64_t far = get_mapped(4 * MIB);
    get_mapped(2 * MIB);
    uint64_t near = get_mapped(20 * MIB);
    finish_and_update();
    drop(far), drop(near);
    finish_and_update();
    assert_int_equal(get_mapped(30 * MIB), near);
    assert_null(segment_at(far));
    assert_int_equal(fake->reserved, 32 * MIB);
    assert_int_equal(pool->source.large.stale_mappings.count, 1);
}

static void free_memory_on_both_sides_of_the_gap_stays(void **state) {
    (void)state;
    start_side_by_side();
    pool->source.config.budget = 1;
    make_gap(C);
    make_free(B), make_free(D);
    unsigned unmaps = fake->unmaps;
    assert_int_equal(get_mapped(3 * EACH), blocks[B]);
    assert_int_equal(fake->unmaps, unmaps);
    make_free(A); /* segment A is next to no free range */
    assert_int_equal(get_mapped(EACH + MIB), blocks[E] + EACH);
    assert_null(segment_at(blocks[A]));
}

/* The range on the other side, with as much free memory or less, is released. */
static void free_memory_beside_the_gap_that_is_not_needed_is_released(void **state) {
    (void)state;
    for (unsigned left = 0; left < 2; left++) {
        static const uint64_t lengths[2][3] = {{4 * MIB, 8 * MIB, 6 * MIB},
                                               {8 * MIB, 8 * MIB, 4 * MIB}};
        start(4 * GIB, REUSE_BARRIER, 40 * MIB);
        uint64_t at[3];
        for (unsigned i = 0; i < 3; i++)
            at[i] = get_mapped(lengths[left][i]);
        get_mapped(2 * MIB);
        finish_and_update();
        drop(at[1]);
        finish_and_update();
        pool->source.config.budget = 1;
        pool_trim(pool, true);
        drop(at[0]), drop(at[2]);
        finish_and_update();
        uint64_t needed = left ? 0 : 2;
        get_mapped(lengths[left][needed] + 2 * MIB);
        assert_non_null(segment_at(at[needed]));
        assert_null(segment_at(at[2 - needed]));
        /* 2 MiB live, and a handle of 4 MiB, which moved whole although 2 MiB were needed */
        assert_int_equal(fake->reserved, lengths[left][needed] + 6 * MIB);
        assert_int_equal(stop(NULL), 0);
    }
}

/* Segments of both arenas are released. */
static void idle_slabs_are_released_for_large_blocks(void **state) {
    (void)state;
    start(4 * GIB, REUSE_BARRIER, 20 * MIB);
    uint64_t small[16];
    for (unsigned i = 0; i < 16; i++)
        small[i] = get(MIB);
    for (unsigned i = 0; i < 16; i++)
        drop(small[i]);
    finish_and_update();
    assert_null(pool_check(pool));
    get_mapped(18 * MIB);
    assert_int_equal(fake->reserved, 18 * MIB);
}

/* ---- barriers ahead of need ---- */

/* A free range would serve the request. With several streams there is a barrier only if much memory
 * was live. */
static void pending_memory_gets_a_barrier_ahead_of_its_need(void **state) {
    (void)state;
    for (unsigned much = 0; much < 2; much++) {
        for (unsigned streams = 0; streams <= 4; streams += 4) {
            start(4 * GIB, REUSE_BARRIER, 40 * MIB);
            if (much) {
                drop(get_mapped(900 * MIB));
                finish_and_update();
                pool_trim(pool, true);
            }
            pool_expect_streams(streams);
            uint64_t idle = get_mapped(20 * MIB), used = get_mapped(18 * MIB);
            finish_and_update();
            drop(idle);
            finish_and_update();
            drop_used(used, 18 * MIB);
            assert_int_equal(fake->orders, 0);
            assert_int_equal(get(10 * MIB), idle);
            assert_int_equal(fake->orders, streams == 0 || much);
            pool_expect_streams(0);
            finish_and_update();
            assert_int_equal(stop(NULL), 0);
        }
    }
}

#define WHOLE (16 * MIB) /* VMM_HANDLE */

static bool is_one_of(const uint64_t *handles, unsigned count, uint64_t handle) {
    unsigned i = 0;
    while (i < count && handles[i] != handle)
        i++;
    return i < count;
}

/* Gets blocks in one segment each, and frees each block whose bit is set in `drops`. */
static void get_whole(uint64_t *at, uint64_t *handles, unsigned count, unsigned drops) {
    for (unsigned i = 0; i < count; i++) {
        at[i] = get_mapped(WHOLE);
        assert_int_equal(segment_at(at[i])->bytes, WHOLE);
        handles[i] = segment_at(at[i])->handle;
    }
    finish_and_update();
    for (unsigned i = 0; i < count; i++)
        if (drops >> i & 1)
            drop(at[i]);
    finish_and_update();
}

/* Externally visible memory is released instead: other processes may know its handle. */
static void idle_handles_are_remapped_where_they_are_needed(void **state) {
    (void)state;
    for (unsigned visible = 0; visible < 2; visible++) {
        start(4 * GIB, REUSE_BARRIER, 6 * WHOLE);
        uint64_t at[6], handles[6];
        get_whole(at, handles, 6, 0);
        for (unsigned i = 0; i < 5; i += 2) {
            assert_int_equal(visible ? pool_mark_externally_visible(at[i]) : 0, 0);
            drop(at[i]);
        }
        finish_and_update();
        fake->reserved_peak = 0;
        uint64_t block = get_mapped(3 * WHOLE);
        for (unsigned i = 0; i < 3; i++) {
            uint64_t handle = segment_at(block + i * WHOLE)->handle;
            assert_true(visible || is_one_of(handles, 6, handle));
        }
        assert_int_equal(counter_get(&pool->source.counters.driver_allocs), 6 + (visible ? 3 : 0));
        assert_int_equal(counter_get(&pool->source.counters.driver_frees), visible ? 3 : 0);
        assert_int_equal(fake->reserved, 6 * WHOLE);
        assert_int_equal(fake_books(pool).reserved.current, 6 * WHOLE);
        assert_int_equal(atomic_load(&pool->source.remap.unmapping_bytes), 0);
        assert_int_equal(stop(NULL), 0);
    }
}

/* Only whole handles can be remapped again later. */
static void a_handle_is_remapped_whole_if_a_part_is_needed(void **state) {
    (void)state;
    for (int code = 0; code >= -EIO; code -= EIO) {
        uint64_t at[5], handles[5], block;
        start(5 * WHOLE, REUSE_BARRIER, 82 * MIB);
        get_whole(at, handles, 5, 5);
        fake->map_code = code;
        int r = pool_alloc(pool, 24 * MIB, &block);
        fake->map_code = 0;
        assert_int_equal(r, code ? -ERANGE : 0);
        assert_int_equal(fake->reserved,
                         5 * WHOLE); /* if refused, the handle is at its old address again */
        for (unsigned i = 0; i < 5 && code; i++)
            assert_int_equal(segment_at(at[i])->handle, handles[i]);
        assert_int_equal(pool->source.large.reserved_bytes, fake->reserved);
        assert_int_equal(atomic_load(&pool->source.remap.unmapping_bytes), 0);
        assert_int_equal(fake->in_vain, code ? 1 : 0);
        if (code == 0) {
            assert_true(is_one_of(handles, 5, segment_at(block)->handle));
            assert_true(is_one_of(handles, 5, segment_at(block + WHOLE)->handle));
            assert_int_equal(counter_get(&pool->source.counters.driver_allocs), 5);
            assert_int_equal(counter_get(&pool->source.counters.driver_frees), 0);
            assert_int_equal(get_mapped(8 * MIB), block + 24 * MIB);
        }
        assert_int_equal(stop(NULL), 0);
    }
}

/* ---- memory behind a barrier ---- */

/* Makes the pool exceed its budget while the work of two of six segments still runs. A barrier lets
 * both move. */
static uint64_t move_behind_a_barrier(uint64_t *at, uint64_t *handles) {
    start(4 * GIB, REUSE_BARRIER, 6 * WHOLE);
    get_whole(at, handles, 6, 0);
    drop_used(at[1], WHOLE), drop_used(at[3], WHOLE);
    pool->source.decay.tick = 9;
    uint64_t block = get(2 * WHOLE);
    assert_int_equal(fake->orders, 1);
    assert_int_equal(fake->waits, 0);
    return block;
}

/* Running work uses the memory at the old addresses, which stay mapped. */
static void unfinished_memory_behind_a_barrier_moves_at_once(void **state) {
    (void)state;
    uint64_t at[6], handles[6], block = move_behind_a_barrier(at, handles);
    assert_int_equal(fake->unmaps, 0);
    assert_int_equal(fake->reserved, 6 * WHOLE);
    for (unsigned i = 0; i < 2; i++) {
        const struct segment *segment = segment_at(block + i * WHOLE);
        assert_true(segment->handle == handles[1] || segment->handle == handles[3]);
        assert_true(segment->stamp > pool->source.epochs.finished);
        assert_int_equal(segment->since, 9);
        assert_null(segment_at(at[1 + 2 * i]));
        fake_physical(fake, at[1 + 2 * i]); /* still mapped */
    }
    assert_int_equal(pool->source.large.stale_mappings.count, 2);
    struct pool_block found;
    assert_int_equal(pool_find(at[1], &found), -EINVAL); /* freed by the program */
    check();
    assert_int_equal(atomic_load(&pool->source.remap.unmapping_bytes), 0);
}

/* Until then no other memory is mapped at these addresses. */
static void a_stale_mapping_is_unmapped_when_its_work_is_done(void **state) {
    (void)state;
    uint64_t at[6], handles[6], block = move_behind_a_barrier(at, handles);
    uint64_t other = get(WHOLE); /* would fit in that gap */
    assert_int_equal(other, block + 2 * WHOLE);
    assert_int_equal(fake->unmaps, 0);
    finish_and_update();
    assert_int_equal(get_mapped(WHOLE), at[1]);
    assert_int_equal(fake->unmaps, 2 * WHOLE / PAGE);
    assert_int_equal(pool->source.large.stale_mappings.count, 0);
}

/* The driver gets memory back only when its last mapping is unmapped. */
static void remapped_memory_is_released_whole(void **state) {
    (void)state;
    uint64_t at[6], handles[6], block = move_behind_a_barrier(at, handles);
    fake_reach(fake, block, 2 * WHOLE, 0, fake_submit(fake, 0));
    drop(block);
    pool_trim(pool, false); /* no work has completed */
    assert_int_equal(fake->reserved, 6 * WHOLE);
    finish_and_update();
    assert_int_equal(pool_trim(pool, true), 0);
    assert_int_equal(fake->reserved, 4 * WHOLE);
    assert_int_equal(pool->source.large.stale_mappings.count, 0);
    assert_int_equal(fake->unmaps, 4 * WHOLE / PAGE);
}

static struct backend_ops ending;
static const struct backend_ops *before;

static int unmap_while_work_ends(struct backend *backend, uint64_t address, unsigned count,
                                 bool left) {
    finish_and_update();
    return before->unmap(backend, address, count, left);
}

/* The work completes while another segment is released. */
static void remapped_memory_is_released_whole_if_work_ends_meanwhile(void **state) {
    (void)state;
    uint64_t at[6], handles[6];
    start(4 * GIB, REUSE_BARRIER, 6 * WHOLE);
    get_whole(at, handles, 6, 1);
    drop_used(at[2], WHOLE), drop_used(at[4], WHOLE);
    uint64_t block = get(2 * WHOLE);
    assert_int_equal(pool->source.large.stale_mappings.count, 2);
    fake_reach(fake, block, 2 * WHOLE, 0, fake_submit(fake, 0));
    drop(block);
    before = fake->backend.ops;
    ending = *before;
    ending.unmap = unmap_while_work_ends;
    fake->backend.ops = &ending;
    assert_int_equal(pool_trim(pool, false), 0);
    fake->backend.ops = before;
    assert_int_equal(fake->reserved, 3 * WHOLE);
    assert_int_equal(pool->source.large.stale_mappings.count, 0);
}

static int finish_work_unless_stale(struct backend *backend, uint64_t address, unsigned count,
                                    bool left) {
    if (!left)
        finish_and_update();
    return before->unmap(backend, address, count, left);
}

/* The work at the old addresses ends while another segment is released. The same release unmaps the
 * old addresses. */
static void stale_mappings_that_become_safe_in_a_release_are_unmapped(void **state) {
    (void)state;
    uint64_t at[6], handles[6];
    move_behind_a_barrier(at, handles);
    drop(at[0]);
    lock_acquire(&pool->source.lock);
    assert_true(
        sync_make_safe(&pool->source, epochs_latest_in_free(&pool->source.epochs), SYNC_WAIT));
    pending_release(&pool->source, EVERY_STAMP);
    segment_at(at[0])->stamp = 0; /* as if its work had completed before the others' */
    lock_release(&pool->source.lock);
    before = fake->backend.ops;
    ending = *before;
    ending.unmap = finish_work_unless_stale;
    fake->backend.ops = &ending;
    assert_int_equal(pool->source.large.stale_mappings.count, 2);
    assert_int_equal(pool_give_back(pool, WHOLE, false), 0);
    fake->backend.ops = before;
    assert_int_equal(fake->reserved, 5 * WHOLE);
    assert_int_equal(pool->source.large.stale_mappings.count, 0);
}

/* The next slow path repeats the refused unmapping. The end of the context drops the stale mapping.
 */
static void a_stale_mapping_that_cannot_be_unmapped_stays(void **state) {
    (void)state;
    uint64_t at[6], handles[6];
    move_behind_a_barrier(at, handles);
    finish_and_update();
    fake->unmap_code = -EIO;
    pool_trim(pool, true);
    fake->unmap_code = 0;
    assert_int_equal(pool->source.large.stale_mappings.count, 2);
    check();
    pool_trim(pool, true);
    assert_int_equal(pool->source.large.stale_mappings.count, 0);
    assert_int_equal(stop(NULL), 0);
    move_behind_a_barrier(at, handles);
    fake_finish_all(fake);
    pool_forget(pool);
    assert_int_equal(fake->reserved, 0);
    assert_int_equal(pool->source.large.stale_mappings.count, 0);
}

/* No barrier holds back users of the memory outside the context. */
static void externally_visible_memory_does_not_move(void **state) {
    (void)state;
    uint64_t at[6], handles[6];
    start(4 * GIB, REUSE_BARRIER, 6 * WHOLE);
    get_whole(at, handles, 6, 0);
    for (unsigned i = 1; i <= 3; i += 2) {
        assert_int_equal(pool_mark_externally_visible(at[i]), 0);
        drop_used(at[i], WHOLE);
    }
    get(2 * WHOLE);
    assert_int_equal(pool->source.large.stale_mappings.count, 0);
}

/* Nothing moves when the table of stale mappings is full. */
static void nothing_moves_without_an_entry_for_its_stale_mapping(void **state) {
    (void)state;
    uint64_t at[6], handles[6];
    start(4 * GIB, REUSE_BARRIER, 6 * WHOLE);
    get_whole(at, handles, 6, 0);
    struct stale_mappings *stale_mappings = &pool->source.large.stale_mappings;
    for (unsigned i = 0; i < STALE_MOST; i++) { /* at other addresses */
        stale_add(stale_mappings,
                  &(struct stale_mapping){UINT64_MAX / 2 + 1 + i * PAGE, PAGE, UINT64_MAX});
    }
    drop_used(at[1], WHOLE), drop_used(at[3], WHOLE);
    get(2 * WHOLE);
    assert_true(stale_is_full(stale_mappings));
    assert_true(fake->waits > 0);
    assert_int_equal(fake->reserved, 6 * WHOLE);
    finish_and_update();
    for (unsigned i = 0; i < STALE_MOST; i++)
        stale_remove(stale_mappings, UINT64_MAX / 2 + 1 + i * PAGE);
    assert_int_equal(stale_mappings->count, 0);
}

static uint64_t first_to_move(uint64_t from) {
    const struct segment *segment = idle_movable(&pool->source.large, VMM_HANDLE, from);
    return segment ? segment->base : 0;
}

/* The order keeps the number of gaps low. Among equals, the segment that is unused for longest
 * moves first. */
static void segments_next_to_a_gap_move_first(void **state) {
    (void)state;
    uint64_t at[8];
    start(4 * GIB, REUSE_BARRIER, RELAXED);
    for (unsigned i = 0; i < 8; i++) {
        at[i] = get_mapped(WHOLE);
        assert_int_equal(at[i], at[0] + i * WHOLE);
    }
    finish_and_update();
    drop(at[4]);
    finish_and_update();
    assert_int_equal(pool_trim(pool, true), 0);
    assert_null(segment_at(at[4]));
    drop(at[1]);
    finish_and_update();
    assert_int_equal(first_to_move(0), at[1]);
    drop(at[3]);
    finish_and_update();
    assert_int_equal(first_to_move(0), at[3]);
    drop(at[5]);
    finish_and_update();
    assert_int_equal(first_to_move(0), at[3]);
    assert_int_equal(first_to_move(segment_at(at[3])->stamp + 1), at[5]);
    assert_int_equal(first_to_move(segment_at(at[5])->stamp + 1), 0);
    drop(at[0]);
    finish_and_update();
    assert_int_equal(first_to_move(0), at[3]);
    assert_int_equal(first_to_move(segment_at(at[3])->stamp + 1), at[5]);
    assert_int_equal(first_to_move(segment_at(at[5])->stamp + 1), at[0]);
}

/* More than TRANSIT_MOST handles would have to be in transit at a time. */
static void a_growth_that_needs_more_handles_than_transit_most_waits(void **state) {
    (void)state;
    enum { COUNT = TRANSIT_MOST + 72 };
    static uint64_t at[2 * COUNT];
    start(8 * GIB, REUSE_BARRIER, 2 * COUNT * PART);
    for (unsigned i = 0; i < 2 * COUNT; i++)
        at[i] = get(PART);
    finish_and_update();
    for (unsigned i = 0; i < 2 * COUNT; i += 2)
        drop_used(at[i], PART);
    get((COUNT - 20) * PART);
    assert_true(fake->waits > 0);
    assert_in_range(fake->reserved, 0, 2 * COUNT * PART + WHOLE);
}

/* Checks that the counters of driver calls agree with the segments: every handle that was moved,
 * and not mapped again, was released. */
static void expect_counters_to_agree(void) {
    const struct counters *counters = &pool->source.counters;
    assert_int_equal(counter_get(&counters->driver_allocs) - counter_get(&counters->driver_frees),
                     pool->source.large.segment_count + pool->source.small.segment_count);
    assert_int_equal(fake->reserved,
                     pool->source.large.reserved_bytes + pool->source.small.reserved_bytes);
    assert_int_equal(atomic_load(&pool->source.remap.unmapping_bytes), 0);
    assert_int_equal(pool->source.growing.bytes, 0);
    assert_int_equal(pool->source.remap.held_bytes, 0);
    check();
}

static struct backend_ops watched;
static const struct backend_ops *unwatched;
static unsigned probed_pages;
static int probe_code;

static int probe_handles(struct backend *backend, unsigned count) {
    (void)backend;
    probed_pages = probed_pages ? probed_pages : count;
    return probe_code;
}

static uint64_t now_ns, map_takes_ns, clock_step_ns;

static uint64_t stepping_clock(struct backend *backend) {
    (void)backend;
    return now_ns += clock_step_ns;
}

static int map_slowly(struct backend *backend, uint64_t address, unsigned count, unsigned length,
                      const uint64_t *handles) {
    now_ns += map_takes_ns;
    map_takes_ns = 0; /* later calls take no time */
    return unwatched->map(backend, address, count, length, handles);
}

static void watch(void) {
    unwatched = fake->backend.ops;
    watched = *unwatched;
    watched.probe_handles = probe_handles;
    watched.clock = stepping_clock;
    watched.map = map_slowly;
    fake->backend.ops = &watched;
    probed_pages = 0;
    probe_code = 0;
    now_ns = 0;
    map_takes_ns = clock_step_ns = 0;
}

/* The rest of the gap is filled by moved handles. The driver is asked beforehand for all that is
 * lacking, but not for one handle. */
static void the_driver_is_asked_for_no_more_than_is_lacking(void **state) {
    (void)state;
    for (unsigned lacking = 1; lacking <= 2; lacking++) {
        for (int code = 0; code >= -ENOMEM; code -= ENOMEM) {
            uint64_t at[7], handles[7], block;
            start(64 * WHOLE, REUSE_BARRIER, (7 + lacking) * WHOLE);
            get_whole(at, handles, 7, 5);
            watch();
            probe_code = code;
            int r = pool_alloc(pool, (2 + lacking) * WHOLE, &block);
            bool refused = code && lacking > 1;
            assert_int_equal(r, refused ? code : 0);
            assert_int_equal(probed_pages, lacking > 1 ? lacking * WHOLE / PAGE : 0);
            assert_int_equal(fake->reserved, (refused ? 5 : 7 + lacking) * WHOLE);
            expect_counters_to_agree();
            assert_int_equal(stop(NULL), 0);
        }
    }
}

/* The free range at the end lacks half a segment. An idle segment of that length is remapped. */
static void short_segments_are_mapped_where_they_are_needed(void **state) {
    (void)state;
    start(4 * GIB, REUSE_BARRIER, BLOCKS * EACH);
    for (unsigned i = 0; i < BLOCKS; i++)
        blocks[i] = get_mapped(EACH);
    uint64_t handle = segment_at(blocks[A])->handle;
    finish_and_update();
    make_free(A), make_free(E);
    assert_int_equal(get_mapped(2 * EACH), blocks[E]);
    assert_int_equal(segment_at(blocks[E] + EACH)->handle, handle);
    assert_int_equal(counter_get(&pool->source.counters.driver_frees), 0);
    assert_int_equal(fake->reserves, BLOCKS);
}

/* Two segments can be remapped, and three are needed. */
static void handles_that_moved_in_vain_are_counted(void **state) {
    (void)state;
    enum { DOES, MAPS_NOT, MAP_LACKS_MEMORY, UNMAPS_NOT, MEMORY, LIMIT, CASES };
    static const int answers[] = {0, -ERANGE, -ENOMEM, 0, -ENOMEM, -EDQUOT};
    for (unsigned what = DOES; what < CASES; what++) {
        uint64_t at[5], handles[5], block;
        start(64 * WHOLE, REUSE_BARRIER, 6 * WHOLE);
        get_whole(at, handles, 5, 5);
        fake->map_code = what == MAPS_NOT ? -EIO : what == MAP_LACKS_MEMORY ? -ENOMEM : 0;
        fake->unmap_code = what == UNMAPS_NOT ? -EIO : 0;
        fake->memory = what == MEMORY ? 5 * WHOLE : fake->memory;
        fake->limit = what == LIMIT ? 5 * WHOLE : 0;
        assert_int_equal(pool_alloc(pool, 3 * WHOLE, &block), answers[what]);
        fake->map_code = fake->unmap_code = 0;
        expect_counters_to_agree();
        assert_int_equal(stop(NULL), 0);
    }
}

/* The work of the remapped memory still runs. The memory is idle afterwards too, at its new or its
 * old addresses. */
static void handles_remapped_for_a_refused_growth_are_not_lost(void **state) {
    (void)state;
    enum { MAPS_NOT, LACKS_MEMORY, PROBE_REFUSES, CASES };
    for (unsigned what = MAPS_NOT; what < CASES; what++) {
        uint64_t at[6], handles[6], block;
        start(64 * WHOLE, REUSE_BARRIER, 6 * WHOLE);
        get_whole(at, handles, 6, 0);
        drop_used(at[1], WHOLE), drop_used(at[3], WHOLE);
        watch();
        clock_step_ns = 1000000000; /* the clock ends a wait for work that does not end */
        probe_code = what == PROBE_REFUSES ? -ENOMEM : 0;
        fake->map_code = what == MAPS_NOT ? -EIO : 0;
        fake->memory = what == LACKS_MEMORY ? 6 * WHOLE : fake->memory;
        fake->wait_code = -EBUSY;
        assert_int_equal(pool_alloc(pool, 5 * WHOLE, &block), what == MAPS_NOT ? -ERANGE : -ENOMEM);
        fake->map_code = fake->wait_code = probe_code = 0;
        assert_int_equal(fake->reserved, 6 * WHOLE);
        assert_int_equal(pool->source.large.idle_bytes, 2 * WHOLE);
        expect_counters_to_agree();
        finish_and_update();
        get_mapped(2 * WHOLE);
        assert_int_equal(fake->reserved, 6 * WHOLE);
        fake->backend.ops = unwatched;
        assert_int_equal(stop(NULL), 0);
    }
}

static const struct backend_ops *mapping_before;

static int map_no_short_ones(struct backend *backend, uint64_t address, unsigned count,
                             unsigned length, const uint64_t *handles) {
    return length == 2 ? -EIO : mapping_before->map(backend, address, count, length, handles);
}

/* Segments in MiB: live 8 | 4 | gap 24 | 16 | live 8 | 16 | live 8. Handles of 16 and 4 MiB move
 * into the gap; the driver does not map the second. */
static void handles_of_a_failed_growth_return_beside_new_segments(void **state) {
    (void)state;
    static const uint64_t parts[] = {8, 4, 24, 16, 8, 16, 8};
    uint64_t at[7], block;
    struct backend_ops failing;
    start(4 * GIB, REUSE_BARRIER, 60 * MIB);
    for (unsigned i = 0; i < 7; i++) {
        at[i] = get_mapped(parts[i] * MIB);
        assert_int_equal(at[i], i ? at[i - 1] + parts[i - 1] * MIB : at[0]);
    }
    finish_and_update();
    drop(at[2]);
    finish_and_update();
    assert_int_equal(pool_trim(pool, true), 0);
    assert_int_equal(fake->reserved, 60 * MIB);
    drop_used(at[3], 16 * MIB), drop_used(at[1], 4 * MIB), drop_used(at[5], 16 * MIB);
    mapping_before = fake->backend.ops;
    failing = *mapping_before;
    failing.map = map_no_short_ones;
    fake->backend.ops = &failing;
    pool_alloc(pool, 36 * MIB, &block);
    fake->backend.ops = mapping_before;
    uint64_t one = get(4 * MIB), two = get(4 * MIB);
    assert_int_not_equal(one, two);
    check();
    expect_counters_to_agree();
}

/* Half the length: more of the free memory can be released. */
static void segments_are_shorter_once_they_have_been_pinned(void **state) {
    (void)state;
    for (unsigned pinned = 0; pinned < 2; pinned++) {
        start(4 * GIB, REUSE_BARRIER, 64 * MIB);
        drop(get_mapped(4 * WHOLE));
        finish_and_update();
        uint64_t at[8];
        for (unsigned i = 0; i < 8; i++)
            at[i] = get_mapped(8 * MIB);
        finish_and_update();
        for (unsigned i = 0; i < 8;
             i += pinned ? 2 : 4) /* frees 32 MiB or 16 MiB that serve no request */
            drop(at[i]);
        finish_and_update();
        uint64_t first = get_mapped(24 * MIB);
        assert_int_equal(segment_at(first)->bytes, pinned ? WHOLE / 2 : WHOLE);
        assert_int_equal(segment_at(get_mapped(20 * MIB))->bytes, pinned ? WHOLE / 2 : WHOLE);
        assert_int_equal(stop(NULL), 0);
    }
}

/* A growth takes at most VMM_HANDLES_MOST segments. */
static void a_large_growth_comes_in_longer_segments(void **state) {
    (void)state;
    for (unsigned more = 0; more < 2; more++) {
        start(64 * GIB, REUSE_BARRIER, RELAXED);
        pool->source.remap.size_shift = 1;
        assert_int_equal(segment_at(get(8 * GIB + more))->bytes, 8 * MIB + more * 2 * MIB);
        assert_int_equal(stop(NULL), 0);
    }
}

/* Frees two separate GiB after a peak of 4 GiB of live memory. Neither serves a request for 1.5
 * GiB. Returns a live block. */
static uint64_t free_two_gib(void) {
    uint64_t at[4];
    for (unsigned i = 0; i < 4; i++)
        at[i] = get_mapped(GIB);
    finish_and_update();
    drop(at[0]), drop(at[2]);
    finish_and_update();
    lock_acquire(&pool->source.lock);
    slow_path_recompute(pool);
    lock_release(&pool->source.lock);
    return at[3];
}

#define PEAK (4 * GIB)
#define SECOND ((uint64_t)1000000000)

static void the_goal_is_raised_where_mapping_takes_too_long(void **state) {
    (void)state;
    const uint64_t share = 3600 * SECOND / REMAP_TIME_SHARE;
    static const struct {
        unsigned steps, then;
        uint64_t ahead;
        bool risen, set;
    } cases[] = {
        {0, 0, 0, false, false}, {0, 0, 1, false, false},
        {0, 1, 2, false, false}, {0, 0, 2, true, false}, /* the peak has risen since */
        {0, 0, 2, false, true},                          /* an option sets the budget */
        {1, 1, 1, false, false}, {1, 2, 2, false, false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        start(64 * GIB, REUSE_BARRIER, cases[i].set ? PEAK + PEAK / VMM_SLACK : 0);
        free_two_gib();
        pool->source.remap.slack = PEAK / REMAP_SLACK_STEP * cases[i].steps;
        pool->source.remap.slack_steps = cases[i].steps;
        lock_acquire(&pool->source.lock);
        slow_path_recompute(pool);
        lock_release(&pool->source.lock);
        uint64_t goal = pool->source.goal, then = PEAK / REMAP_SLACK_STEP * cases[i].then;
        uint64_t more = then - pool->source.remap.slack;
        assert_in_range(goal, PEAK + PEAK / VMM_SLACK + then - more - MIB,
                        PEAK + PEAK / VMM_SLACK + then - more + MIB);
        pool->source.remap.since_ns = backend_clock(pool->source.backend) - 3600 * SECOND;
        pool->source.remap.remap_ns = share + cases[i].ahead * REMAP_TIME_MOST_NS * 3 / 4;
        pool->source.remap.peak = cases[i].risen ? PEAK - PEAK / 32 : PEAK;
        uint64_t block = get_mapped(3 * GIB / 2);
        assert_in_range(fake->reserved, goal + more - WHOLE, goal + more + MIB);
        assert_int_equal(pool->source.remap.slack, then);
        assert_int_equal(pool->source.remap.slack_steps, cases[i].then);
        assert_in_range(pool->source.goal, goal + more - MIB, goal + more + MIB);
        assert_in_range(pool->source.remap.peak, PEAK, PEAK + MIB);
        for (unsigned round = 0; round < 3;
             round++) { /* later growths do not raise the goal again */
            finish_and_update();
            drop(block);
            finish_and_update();
            block = get_mapped((3 + round % 2) * GIB / 2);
        }
        assert_int_equal(pool->source.remap.slack, then);
        assert_true(fake->reserved <= goal + more + MIB);
        assert_int_equal(stop(NULL), 0);
    }
}

/* Pretends that remapping took too long, while the peak did not rise. */
static void take_too_long(void) {
    pool->source.remap.remap_ns = pool->source.remap.peak = UINT64_MAX / 2;
    pool->source.remap.slack_steps = 3; /* a fourth step is due */
}

/* A peak that the program has reset does not count. */
static void the_goal_is_raised_by_a_part_of_the_peak_that_counts(void **state) {
    (void)state;
    start(64 * GIB, REUSE_BARRIER, 0);
    uint64_t live = free_two_gib();
    take_too_long();
    get_mapped(3 * GIB / 2);
    assert_int_equal(pool->source.remap.slack, PEAK / 16);
    finish_and_update();
    pool_reset_peaks(pool);
    uint64_t peak = counter_get(&pool->source.counters.allocated.peak);
    assert_int_equal(peak, 7 * GIB / 2);
    assert_int_equal(pool->source.goal, peak + peak / VMM_SLACK + peak / 16);
    drop(live);
    finish_and_update();
    pool_reset_peaks(pool);
    peak = counter_get(&pool->source.counters.allocated.peak);
    assert_int_equal(peak, 5 * GIB / 2);
    assert_int_equal(pool->source.goal, peak + peak / VMM_SLACK + peak / 16);
    assert_true(pool->source.remap.peak >= PEAK);
    get_mapped(3 * GIB);
    assert_int_equal(pool->source.remap.slack, PEAK / 16);
    assert_in_range(pool->source.remap.peak, 5 * GIB / 2, PEAK - 1);
}

/* The request needs the free memory next to the gap itself. Memory that the driver refuses to unmap
 * would be refused in short handles too. */
static void segments_stay_long_for_free_memory_that_is_not_pinned(void **state) {
    (void)state;
    for (unsigned refused = 0; refused < 2; refused++) {
        start(4 * GIB, REUSE_BARRIER, 4 * WHOLE);
        uint64_t first = get_mapped(3 * WHOLE / 2);
        get_mapped(WHOLE);
        uint64_t last = get_mapped(3 * WHOLE / 2);
        finish_and_update();
        drop(last);
        finish_and_update();
        if (refused) { /* externally visible memory cannot move instead */
            assert_int_equal(pool_mark_externally_visible(first), 0);
            drop(first);
            finish_and_update();
            fake->unmap_code = -EIO;
        }
        uint64_t block = get_mapped(5 * WHOLE / 2);
        fake->unmap_code = 0;
        assert_int_equal(segment_at(block)->bytes, WHOLE);
        get_mapped(3 * WHOLE);
        assert_int_equal(pool->source.remap.size_shift, 0);
        assert_int_equal(stop(NULL), 0);
    }
}

/* Gets 32 blocks: live memory is at its peak. */
static void get_32(uint64_t *at, uint64_t memory) {
    start(memory, REUSE_BARRIER, 0);
    for (unsigned i = 0; i < 32; i++)
        at[i] = get_mapped(PEAK / 32);
    finish_and_update();
    lock_acquire(&pool->source.lock);
    slow_path_recompute(pool);
    lock_release(&pool->source.lock);
}

/* Frees two blocks that are not adjacent, and gets a larger one. */
static void get_for_two(const uint64_t *at, uint64_t bytes) {
    drop(at[0]), drop(at[2]);
    finish_and_update();
    get_mapped(bytes);
    finish_and_update();
}

/* The raise is no larger than the lacking bytes. After a refusal of the driver there is none. */
static void the_goal_is_raised_by_what_is_lacking(void **state) {
    (void)state;
    for (unsigned refused = 0; refused < 2; refused++) {
        uint64_t at[32];
        get_32(at, 64 * GIB);
        uint64_t lacking = PEAK + 200 * MIB - pool->source.budget;
        take_too_long();
        pool->source.refused_at = refused ? 32 * GIB : 0;
        get_for_two(at, 200 * MIB);
        assert_int_equal(pool->source.remap.slack, refused ? 0 : lacking);
        assert_int_equal(stop(NULL), 0);
    }
}

static void the_goal_is_raised_by_remap_slack_steps_at_most(void **state) {
    (void)state;
    uint64_t at[32];
    get_32(at, 64 * GIB);
    take_too_long();
    pool->source.remap.slack_steps = REMAP_SLACK_STEPS;
    get_for_two(at, 200 * MIB);
    assert_int_equal(pool->source.remap.slack_steps, REMAP_SLACK_STEPS);
    assert_int_equal(pool->source.remap.slack, PEAK + 200 * MIB - (PEAK + PEAK / VMM_SLACK));
}

/* A request above the device's memory would be refused. */
static void the_goal_is_not_raised_above_the_device(void **state) {
    (void)state;
    for (uint64_t more = 100 * MIB; more <= 200 * MIB; more += 100 * MIB) {
        uint64_t at[32];
        get_32(at, PEAK + more);
        uint64_t left = PEAK + more - pool->source.budget;
        assert_int_equal(left > 0, more > PEAK / VMM_SLACK);
        take_too_long();
        get_for_two(at, 250 * MIB);
        assert_int_equal(pool->source.remap.slack, left);
        assert_int_equal(pool->source.refused_at, 0);
        assert_int_equal(fake->in_vain, 0);
        assert_int_equal(stop(NULL), 0);
    }
}

/* The slack includes the quotas of thread caches. If they exceed the slack of a small program, its
 * budget is raised by the difference. */
static void caches_raise_the_budget_of_a_small_program(void **state) {
    (void)state;
    for (uint64_t peak = GIB; peak <= 16 * GIB; peak *= 4) {
        uint64_t slack = peak / VMM_SLACK < BUDGET_FLOOR ? BUDGET_FLOOR : peak / VMM_SLACK;
        start(64 * GIB, REUSE_BARRIER, 0);
        counter_set(&pool->source.counters.allocated.peak, peak);
        pool->source.quotas += GIB;
        unsigned active = pool->source.active_caches;
        for (unsigned caches = 2; caches <= 8; caches++) {
            uint64_t most = (caches < 4 ? caches : 4) * 80 * MIB;
            pool->source.active_caches = caches;
            lock_acquire(&pool->source.lock);
            slow_path_recompute(pool);
            lock_release(&pool->source.lock);
            assert_int_equal(pool->source.goal, peak + slack);
            assert_int_equal(pool->source.budget, peak + (slack < most ? most : slack));
        }
        pool->source.quotas -= GIB;
        pool->source.active_caches = active;
        assert_int_equal(stop(NULL), 0);
    }
}

/* The limit is one part in REMAP_TIME_SHARE, REMAP_TIME_MOST_NS and the credit. With a clock that
 * stands still nothing adds up. */
static void remapping_time_adds_up(void **state) {
    (void)state;
    const uint64_t share = SECOND, each = (REMAP_TIME_KEPT_NS + REMAP_TIME_MOST_NS) / 8 * 3;
    for (unsigned stands = 0; stands < 2; stands++) {
        uint64_t at[32];
        get_32(at, 64 * GIB);
        watch();
        pool->source.remap.peak = PEAK;
        now_ns += stands ? 0 : share * REMAP_TIME_SHARE;
        for (unsigned i = 0; i < 4; i++) {
            assert_int_equal(pool->source.remap.slack, 0);
            map_takes_ns = stands ? 0 : each;
            get_for_two(at + 4 * i, 250 * MIB);
            assert_int_equal(pool->source.remap.remap_ns, stands ? 0 : (i < 3 ? i + 1 : 1) * each);
        }
        assert_int_equal(pool->source.remap.slack > 0, !stands);
        fake->backend.ops = unwatched;
        assert_int_equal(stop(NULL), 0);
    }
}

/* The hour without remapping before is not counted. */
static void remapping_time_is_counted(void **state) {
    (void)state;
    start(64 * GIB, REUSE_BARRIER, 0);
    free_two_gib();
    pool->source.remap.since_ns -= 3600 * SECOND;
    pool->source.remap.peak = PEAK;
    get_mapped(3 * GIB / 2);
    assert_in_range(pool->source.remap.remap_ns, 1, 60 * SECOND);
}

/* An hour without remapping gives credit for a burst: at most REMAP_TIME_KEPT_NS. */
static void unused_remapping_time_is_credited_for_a_while(void **state) {
    (void)state;
    uint64_t at[32];
    get_32(at, 64 * GIB);
    watch();
    pool->source.remap.peak = PEAK;
    now_ns += 3600 * SECOND;
    for (unsigned i = 0; i < 5; i++) {
        map_takes_ns = REMAP_TIME_KEPT_NS / 10 * 4;
        get_for_two(at + 4 * i, 250 * MIB);
        assert_int_equal(pool->source.remap.slack_steps, i < 3 ? 0 : i - 2);
    }
    fake->backend.ops = unwatched;
}

static void slack_steps_fall_when_the_peak_rises(void **state) {
    (void)state;
    start(64 * GIB, REUSE_BARRIER, 0);
    free_two_gib();
    pool->source.remap.slack_steps = 10;
    pool->source.remap.peak = PEAK / 2;
    get_mapped(3 * GIB / 2);
    assert_int_equal(pool->source.remap.slack_steps, 5);
    assert_int_equal(pool->source.remap.peak, PEAK);
}

static void the_next_context_starts_without_slack(void **state) {
    (void)state;
    start(64 * GIB, REUSE_BARRIER, 0);
    free_two_gib();
    pool->source.remap.slack_steps = 10;
    pool->source.remap.slack = PEAK / 8;
    pool->source.remap.size_shift = 2;
    pool->source.remap.made_bytes = GIB;
    pool_forget(pool);
    assert_int_equal(pool->source.remap.slack_steps, 0);
    assert_int_equal(pool->source.remap.slack, 0);
    assert_int_equal(pool->source.remap.size_shift, 0);
    assert_int_equal(pool->source.remap.made_bytes, 0);
}

/* ---- refusals ---- */

static struct backend_ops hooked;
static const struct backend_ops *fake_ops;
static void (*in_create)(void); /* called once, in the second call of create_handles() */
static unsigned takes;

static int create_handles(struct backend *backend, unsigned count, unsigned length,
                          uint64_t *handles) {
    void (*call)(void) = ++takes == 2 ? in_create : NULL;
    if (call) {
        in_create = NULL;
        call();
    }
    return fake_ops->create_handles(backend, count, length, handles);
}

static void hook(void (*call)(void)) {
    fake_ops = fake->backend.ops;
    hooked = *fake_ops;
    hooked.create_handles = create_handles;
    fake->backend.ops = &hooked;
    in_create = call;
    takes = 0;
}

static void a_request_beyond_driver_or_limit_is_refused(void **state) {
    (void)state;
    uint64_t address;
    start(64 * MIB, REUSE_BARRIER, RELAXED);
    get_mapped(40 * MIB);
    assert_int_equal(pool_alloc(pool, 25 * MIB, &address), -ENOMEM);
    assert_int_equal(fake->reserved, 40 * MIB);
    check();
    get_mapped(24 * MIB);
    assert_int_equal(stop(NULL), 0);
    start(64 * MIB, REUSE_BARRIER, RELAXED);
    fake->limit = 50 * MIB;
    get_mapped(40 * MIB);
    assert_int_equal(pool_alloc(pool, 12 * MIB, &address), -EDQUOT);
    check();
    get_mapped(10 * MIB);
    assert_int_equal(fake->growing, 0);
}

/* The driver has 98 of the requested 100 MiB. The pool releases the segments created so far,
 * because another thread may need the memory. */
static void handles_of_a_refused_growth_are_released(void **state) {
    (void)state;
    uint64_t address;
    start(GIB, REUSE_BARRIER, RELAXED);
    uint64_t live = get_mapped(10 * MIB);
    fake->memory = (10 + 98) * MIB;
    assert_int_equal(pool_alloc(pool, 100 * MIB, &address), -ENOMEM);
    assert_in_range(fake->reserved, 10 * MIB, 10 * MIB);
    assert_int_equal(pool->source.large.reserved_bytes, 10 * MIB);
    assert_int_equal(pool->source.growing.bytes, 0);
    assert_true(fake->in_vain > 0);
    check();
    assert_int_equal(get_mapped(98 * MIB), live + 10 * MIB);
}

/* Memory that was idle before the growth stays. */
static void a_refused_growth_releases_no_older_memory(void **state) {
    (void)state;
    uint64_t address;
    start(4 * GIB, REUSE_BARRIER, RELAXED);
    get_mapped(2 * MIB);
    uint64_t end = get_mapped(20 * MIB);
    drop(end);
    finish_and_update();
    fake->map_code = -EIO;
    assert_int_equal(pool_alloc(pool, 100 * MIB, &address), -ERANGE);
    assert_int_equal(fake->reserved, 22 * MIB);
    assert_int_equal(pool->source.large.free_count, 1); /* no longer held */
    fake->map_code = 0;
    assert_int_equal(get_mapped(20 * MIB), end);
    assert_int_equal(fake->reserved, 22 * MIB);
}

static void a_request_that_cannot_be_mapped_goes_to_the_driver(void **state) {
    (void)state;
    uint64_t address;
    start(GIB, REUSE_BARRIER, RELAXED);
    fake->map_code = -EBUSY;
    assert_int_equal(pool_alloc(pool, 8 * MIB, &address), -ERANGE);
    assert_int_equal(fake->reserved, 0);
    check();
    fake->map_code = 0;
    uint64_t block = get_mapped(8 * MIB);
    fake->map_code = -EBUSY;
    assert_int_equal(pool_alloc(pool, 40 * MIB, &address), -ERANGE);
    assert_int_equal(fake->reserved, 8 * MIB);
    fake->map_code = 0;
    assert_int_equal(get_mapped(40 * MIB), block + 8 * MIB);
}

static void a_segment_that_cannot_be_unmapped_stays_unchanged(void **state) {
    (void)state;
    start(4 * GIB, REUSE_BARRIER, RELAXED);
    pool->source.decay.tick = 5;
    uint64_t block = get_in_parts(4);
    assert_int_equal(pool_mark_externally_visible(block), 0);
    finish_and_update();
    drop_used(block, 4 * PART);
    finish_and_update();
    uint64_t stamp = segment_at(block)->stamp, handles[4];
    for (unsigned i = 0; i < 4; i++)
        handles[i] = segment_at(block + i * PART)->handle;
    fake->unmap_code = -EIO;
    pool->source.decay.tick = 6;
    for (unsigned round = 0; round < 3; round++) {
        pool_trim(pool, true);
        assert_int_equal(fake->reserved, 4 * PART);
        assert_int_equal(fake_books(pool).reserved.current, 4 * PART);
        assert_int_equal(pool->source.large.idle_bytes, 4 * PART);
        assert_int_equal(pool->source.large.free_count, 1);
        assert_int_equal(atomic_load(&pool->source.remap.unmapping_bytes), 0);
        for (unsigned i = 0; i < 4; i++) {
            const struct segment *s = segment_at(block + i * PART);
            assert_int_equal(s->handle, handles[i]);
            assert_int_equal(s->stamp, stamp);
            assert_int_equal(s->since, 5);
            assert_true(s->externally_visible);
        }
        check();
    }
    fake->unmap_code = 0;
    assert_int_equal(get_mapped(4 * PART), block);
    finish_and_update();
    drop(block);
    finish_and_update();
    fake->unmap_code =
        -EIO; /* trims release nothing; each round releases one segment without refusals */
    for (unsigned left = 4; left > 0; left--) {
        pool_trim(pool, true);
        assert_int_equal(fake->reserved, left * PART);
        fake->unmap_code = 0;
        assert_int_equal(source_idle(&pool->source), left * PART);
        lock_acquire(&pool->source.lock);
        assert_int_equal(source_release_idle(&pool->source, 1), 0);
        lock_release(&pool->source.lock);
        fake->unmap_code = -EIO;
        check();
    }
    fake->unmap_code = 0;
    assert_int_equal(fake->reserved, 0);
}

/* The end of the context leaves these addresses reserved. */
static void mappings_left_at_the_end_keep_their_addresses(void **state) {
    (void)state;
    start(GIB, REUSE_BARRIER, RELAXED);
    get_mapped(8 * MIB);
    fake_finish_all(fake);
    fake->unmap_code = -EIO;
    pool_forget(pool); /* else the fake finds a mapping at freed addresses */
    assert_int_equal(fake->reserved, 8 * MIB);
    assert_true(fake->addresses > 0);
    fake->unmap_code = 0;
    fake->reserved = fake->addresses = 0;
    get_mapped(8 * MIB); /* at other addresses */
}

/* ---- other threads in between ---- */

static uint64_t stolen;

static void take_90(void) {
    assert_int_equal(pool_alloc(pool, 90 * MIB, &stolen), 0);
}

static void free_it(void) {
    drop(stolen);
    finish_and_update();
}

static void *take_in_a_thread(void *unused) {
    take_90();
    return unused;
}

static pthread_t other_thread;

static void start_another_request(void) {
    lock_acquire(&pool->source.lock);
    uint64_t largest = arena_largest_free(&pool->source.large),
             idle = pool->source.large.idle_bytes;
    lock_release(&pool->source.lock);
    assert_int_equal(largest, 0); /* 96 MiB are mapped already */
    assert_int_equal(idle, 0);
    assert_int_equal(pthread_create(&other_thread, NULL, take_in_a_thread, NULL), 0);
}

/* The growth takes two driver calls. Another thread does not get the memory of the first one. */
static void a_growth_gets_the_memory_that_it_mapped(void **state) {
    (void)state;
    start(4 * GIB, REUSE_BARRIER, RELAXED);
    hook(start_another_request);
    uint64_t block = get_mapped(100 * MIB);
    pthread_join(other_thread, NULL);
    assert_int_equal(fake->reserved, 190 * MIB);
    assert_int_equal(stolen, block + 100 * MIB);
    check();
}

/* A thread that waits for the remap lock takes memory that another thread frees meanwhile. */
static void a_waiting_growth_takes_memory_freed_by_others(void **state) {
    (void)state;
    start(4 * GIB, REUSE_BARRIER, RELAXED);
    uint64_t block = get_mapped(90 * MIB);
    finish_and_update();
    lock_acquire(&pool->source.remap.lock);
    assert_int_equal(pthread_create(&other_thread, NULL, take_in_a_thread, NULL), 0);
    for (bool waits = false; !waits; sched_yield()) {
        lock_acquire(&pool->source.lock);
        waits = pool->source.growing.threads > 0;
        lock_release(&pool->source.lock);
    }
    drop(block);
    finish_and_update();
    lock_release(&pool->source.remap.lock);
    pthread_join(other_thread, NULL);
    assert_int_equal(stolen, block);
    assert_int_equal(fake->reserved, 90 * MIB);
}

/* Another thread frees memory while the driver reserves addresses. No growth is needed then. */
static void memory_freed_during_a_reservation_is_used(void **state) {
    (void)state;
    start(4 * GIB, REUSE_BARRIER, RELAXED);
    fake->next = fake->base + ((uint64_t)64 << 30) - 64 * MIB;
    stolen = get_mapped(64 * MIB);
    finish_and_update();
    fake->next = fake->base;
    fake->in_reserve = free_it;
    assert_int_equal(get_mapped(60 * MIB), stolen);
    assert_int_equal(fake->reserved, 64 * MIB);
}

static void *end_the_context(void *unused) {
    pool_forget(pool);
    return unused;
}

static void wait_for_context_end(void) {
    assert_int_equal(pthread_create(&other_thread, NULL, end_the_context, NULL), 0);
}

static void *request_after_the_end(void *unused) {
    uint64_t address;
    assert_int_equal(pool_alloc(pool, 20 * MIB, &address), -ERANGE);
    return unused;
}

/* The thread that ends the context has the remap lock, for which the growth waits. */
static void a_growth_that_waited_for_the_end_of_the_context_is_refused(void **state) {
    (void)state;
    uint64_t threads = 0;
    start(4 * GIB, REUSE_BARRIER, RELAXED);
    lock_acquire(&pool->source.remap.lock);
    assert_int_equal(pthread_create(&other_thread, NULL, request_after_the_end, NULL), 0);
    while (threads == 0) {
        lock_acquire(&pool->source.lock);
        threads = pool->source.growing.threads;
        fake->backend.suspended = fake->backend.ended = threads > 0;
        lock_release(&pool->source.lock);
    }
    lock_release(&pool->source.remap.lock);
    assert_int_equal(pthread_join(other_thread, NULL), 0);
    assert_int_equal(fake->reserved, 0);
}

/* The end of the context waits for the growth, and removes all of its memory. */
static void the_context_ends_while_the_pool_grows(void **state) {
    (void)state;
    start(4 * GIB, REUSE_BARRIER, RELAXED);
    uint64_t end = get_mapped(20 * MIB), address;
    fake_finish_all(fake);
    drop(end);
    fake_finish_all(fake);
    hook(wait_for_context_end);
    assert_int_equal(pool_alloc(pool, 120 * MIB, &address), 0);
    pthread_join(other_thread, NULL);
    check();
    fake->backend.ops = fake_ops;
    fake_new_context(fake);
    assert_int_equal(fake->reserved, 0);
    assert_int_equal(fake->addresses, 0);
    get_mapped(30 * MIB);
}

/* ---- addresses ---- */

static void a_refused_reservation_is_retried_smaller(void **state) {
    (void)state;
    uint64_t address;
    start(GIB, REUSE_BARRIER, RELAXED);
    fake->next = fake->base + ((uint64_t)64 << 30) - 38 * MIB;
    uint64_t first = get_mapped(20 * MIB);
    assert_int_equal(fake->addresses, 32 * MIB);
    assert_int_equal(pool_alloc(pool, 20 * MIB, &address), -ERANGE);
    assert_int_equal(fake->addresses, 32 * MIB);
    assert_int_equal(get_mapped(12 * MIB), first + 20 * MIB);
    check();
    assert_int_equal(get_mapped(5 * MIB), first + 32 * MIB); /* whole VMM pages for the request */
    assert_int_equal(fake->addresses, 38 * MIB);
}

/* A block may lie across the border of two adjacent VA ranges. */
static void adjacent_va_ranges_are_one(void **state) {
    (void)state;
    start(GIB, REUSE_BARRIER, RELAXED);
    fake->next = fake->base + ((uint64_t)64 << 30) - 120 * MIB;
    uint64_t one = get_mapped(20 * MIB), other = get_mapped(50 * MIB);
    assert_int_equal(other, one + 64 * MIB);
    assert_int_equal(pool->source.large.va_ranges->next->base, one);
    assert_int_equal(pool->source.large.va_ranges->base, other);
    assert_int_equal(get_mapped(44 * MIB), one + 20 * MIB);
    finish_and_update();
    drop(other), drop(one), drop(one + 20 * MIB);
    finish_and_update();
    assert_int_equal(pool->source.large.free_count, 1);
    assert_int_equal(get_mapped(114 * MIB), one);
    assert_int_equal(fake->reserved, 114 * MIB);
}

static void another_va_range_is_reserved_where_one_is_full(void **state) {
    (void)state;
    start(GIB, REUSE_BARRIER, RELAXED);
    fake->next = fake->base + ((uint64_t)64 << 30) - 40 * MIB;
    uint64_t high = get_mapped(20 * MIB);
    fake->next = fake->base;
    uint64_t low = get_mapped(100 * MIB);
    assert_int_equal(low, fake->base);
    assert_int_equal(pool->source.large.va_ranges->base, fake->base);
    assert_int_equal(pool->source.large.va_ranges->next->base, high);
    assert_int_equal(pool->source.large.segments->base, low);
    assert_int_equal(fake->addresses, 4 * GIB + 32 * MIB);
    finish_and_update();
    drop(high);
    finish_and_update();
    assert_int_equal(get_mapped(24 * MIB), high); /* the place that needs least new memory */
    assert_int_equal(get_mapped(8 * MIB), low + 100 * MIB); /* the lowest gap */
    assert_int_equal(get_mapped(9 * MIB), low + 108 * MIB);
    assert_int_equal(fake->reserved, (24 + 100 + 8 + 10) * MIB);
    fake->next = fake->base + 8 * GIB; /* for stop(): the fake takes addresses back in order */
}

/* ---- long segments ---- */

/* 1 GiB has VMM_HANDLES_FEW segments of up to an eighth, and a short one at the end. */
#define LONG (128 * MIB)
#define SEGMENTS (VMM_HANDLES_FEW + 1)

static void a_large_growth_below_the_budget_takes_few_segments(void **state) {
    (void)state;
    start(64 * GIB, REUSE_BARRIER, RELAXED);
    get_mapped(GIB);
    assert_int_equal(pool->source.large.segment_count, SEGMENTS);
    assert_int_equal(pool->source.large.segments->bytes, LONG);
    assert_int_equal(pool->source.large.last->bytes, VMM_HANDLE);
    get_mapped(LONG + PAGE);
    assert_int_equal(pool->source.large.last->bytes, PAGE);
    assert_int_equal(pool->source.large.last->previous->bytes, 32 * MIB);
    get_mapped(LONG);
    assert_int_equal(pool->source.large.last->bytes, VMM_HANDLE);
    assert_int_equal(pool->source.large.last->previous->bytes, VMM_HANDLE);
    assert_int_equal(fake->reserved, GIB + 2 * LONG + PAGE);
}

/* A block begins in the last VMM page of a large one. */
static void a_block_behind_a_large_one_keeps_a_short_segment(void **state) {
    (void)state;
    start(64 * GIB, REUSE_BARRIER, RELAXED);
    uint64_t at = get_mapped(GIB - 3 * MIB / 2), next = get_mapped(3 * MIB);
    assert_int_equal(next, at + GIB - 3 * MIB / 2);
    finish_and_update();
    drop(at);
    finish_and_update();
    pool_trim(pool, true);
    assert_int_equal(fake->reserved, VMM_HANDLE + PAGE);
}

static void beyond_the_budget_segments_are_short(void **state) {
    (void)state;
    start(64 * GIB, REUSE_BARRIER, PAGE);
    get_mapped(GIB);
    assert_int_equal(pool->source.large.segment_count, GIB / VMM_HANDLE);
}

static uint64_t free_gib(void) {
    start(64 * GIB, REUSE_BARRIER, RELAXED);
    uint64_t at = get_mapped(GIB);
    drop_used(at, GIB);
    return at;
}

/* All parts stay mapped: other requests may need them. */
static void a_long_segment_is_split_for_a_shorter_block(void **state) {
    (void)state;
    uint64_t at = free_gib();
    finish_and_update();
    assert_int_equal(get_mapped(LONG), at); /* one whole segment */
    assert_int_equal(pool->source.large.segment_count, SEGMENTS);
    uint64_t block = get_mapped(LONG + 20 * MIB); /* the next segment and a part of its neighbour */
    assert_int_equal(block, at + LONG);
    assert_int_equal(segment_at(block)->bytes, LONG);
    assert_int_equal(segment_at(block + LONG)->bytes, VMM_HANDLE);
    assert_int_equal(pool->source.large.segment_count, SEGMENTS - 1 + LONG / VMM_HANDLE);
    assert_int_equal(get_mapped(20 * MIB), block + LONG + 20 * MIB);
    assert_int_equal(pool->source.large.segment_count, SEGMENTS - 1 + LONG / VMM_HANDLE);
    assert_int_equal(fake->reserved, GIB);
    assert_int_equal(pool->source.remap.held_bytes, 0);
    finish_and_update();
    drop(block);
    finish_and_update();
    pool_trim(pool, true);
    assert_int_equal(fake->reserved, LONG + 2 * VMM_HANDLE);
}

/* No thread has moved the segment from the pending queue yet. */
static void a_long_segment_is_split_as_soon_as_it_is_safe(void **state) {
    (void)state;
    uint64_t at = free_gib(), ticket = pool_sync_begin(pool);
    fake_finish_all(fake);
    pool_sync_end(pool, ticket);
    assert_int_equal(get_mapped(20 * MIB), at);
    assert_int_equal(segment_at(at)->bytes, VMM_HANDLE);
}

/* Holds for new memory beyond the budget, and for the parts of a split segment. Each size_shift
 * halves the length. */
static void segments_are_as_long_as_their_request_needs(void **state) {
    (void)state;
    static const uint64_t rows[][4] = {{4, 8, 8, 8}, {8, 8, 8, 8}, {9, 16, 8, 8}, {40, 16, 8, 8}};
    for (unsigned i = 0; i < sizeof rows / sizeof *rows; i++) {
        for (unsigned size_shift = 0; size_shift < 3; size_shift++) {
            uint64_t wanted = rows[i][1 + size_shift] * MIB, bytes = rows[i][0] * MIB;
            start(64 * GIB, REUSE_BARRIER, PAGE);
            pool->source.remap.size_shift = size_shift;
            uint64_t at = get_mapped(bytes);
            assert_int_equal(segment_at(at)->bytes, min_u64(wanted, round_up(bytes, PAGE)));
            assert_int_equal(stop(NULL), 0);
            at = free_gib();
            finish_and_update();
            pool->source.remap.size_shift = size_shift;
            assert_int_equal(get_mapped(bytes), at);
            assert_int_equal(segment_at(at)->bytes, wanted);
            assert_int_equal(segment_at(at + LONG - 1)->bytes, wanted);
            assert_int_equal(stop(NULL), 0);
        }
    }
}

/* A long segment of 1 GiB becomes one batch of short segments and one segment with the rest. */
static void a_split_makes_one_batch_of_short_segments(void **state) {
    (void)state;
    const uint64_t some = MAP_BATCH * VMM_HANDLE_LEAST;
    start(64 * GIB, REUSE_BARRIER, RELAXED);
    uint64_t at = get_mapped(8 * GIB);
    assert_int_equal(segment_at(at)->bytes, GIB);
    drop_used(at, 8 * GIB);
    finish_and_update();
    pool->source.remap.size_shift = 2;
    assert_int_equal(get_mapped(4 * MIB), at);
    assert_int_equal(segment_at(at + some - MIB)->bytes, VMM_HANDLE_LEAST);
    assert_int_equal(segment_at(at + some)->bytes, GIB - some - VMM_HANDLE);
    assert_int_equal(get_mapped(some - 4 * MIB), at + 4 * MIB);
    assert_int_equal(get_mapped(4 * MIB), at + some); /* the rest is split now */
    assert_int_equal(segment_at(at + some)->bytes, VMM_HANDLE_LEAST);
    assert_int_equal(fake->reserved, 8 * GIB);
}

/* The rest of a long segment is mapped again in parts, each as long as one split needs: blocks of
 * one size that fill the memory make the driver create each byte twice at most. */
static void splits_create_each_byte_twice_at_most(void **state) {
    (void)state;
    start(64 * GIB, REUSE_BARRIER, RELAXED);
    const uint64_t all = 15 * GIB;
    uint64_t at = get_mapped(all);
    assert_true(segment_at(at)->bytes > 3 * MAP_BATCH * VMM_HANDLE_LEAST);
    drop_used(at, all);
    finish_and_update();
    pool->source.remap.size_shift = 2;
    uint64_t made = pool->source.remap.made_bytes;
    for (uint64_t used = 0; used < all; used += 32 * MIB)
        assert_int_equal(get_mapped(32 * MIB), at + used);
    assert_true(pool->source.remap.made_bytes - made <= 2 * all);
    assert_int_equal(fake->reserved, all);
}

/* A slab cannot lie in a long segment. */
static void a_long_segment_is_split_for_a_slab(void **state) {
    (void)state;
    const uint64_t bytes = 18 * VMM_HANDLE; /* six long segments */
    start(64 * GIB, REUSE_BARRIER, bytes + PAGE);
    uint64_t at = get_mapped(bytes + 512 * KIB);
    get_mapped(MIB + 512 * KIB); /* keeps the short segment */
    finish_and_update();
    drop(at);
    finish_and_update();
    assert_int_equal(segment_at(at)->bytes, 3 * VMM_HANDLE);
    get(MIB);
    assert_int_equal(fake->reserved, bytes + 2 * PAGE - VMM_HANDLE);
    assert_int_equal(segment_at(at)->bytes, VMM_HANDLE_LEAST);
}

/* A split unmaps the segment, which running work forbids. */
static void a_long_segment_is_not_split_before_its_work_is_done(void **state) {
    (void)state;
    uint64_t at = free_gib();
    fake_inside_free(true);
    pool_stamp_in_free(pool);
    fake_inside_free(false);
    lock_acquire(&pool->source.lock);
    sync_make_safe(&pool->source, epochs_latest_in_free(&pool->source.epochs), SYNC_WAIT);
    lock_release(&pool->source.lock);
    unsigned unmaps = fake->unmaps;
    assert_int_equal(get(20 * MIB), at);
    lock_acquire(
        &pool->source.lock); /* the same if another thread has taken the finished segment */
    assert_true(vmm_policy.split(&pool->source, LONG));
    lock_release(&pool->source.lock);
    assert_int_equal(fake->unmaps, unmaps);
    assert_int_equal(pool->source.large.segment_count, SEGMENTS);
}

/* The rest of the segment stays. */
static void a_long_segment_is_released_in_parts(void **state) {
    (void)state;
    uint64_t at[4], more = GIB + 100 * MIB;
    start(64 * GIB, REUSE_BARRIER, 0);
    for (unsigned i = 0; i < 4; i++)
        at[i] = get_mapped(GIB);
    drop(at[1]);
    finish_and_update();
    lock_acquire(&pool->source.lock);
    pool->source.remap.slack = 64 * MIB;
    pool->source.remap.slack_steps = 1;
    slow_path_recompute(pool);
    lock_release(&pool->source.lock);
    uint64_t budget = budget_with(&pool->source, more);
    assert_in_range(fake->reserved + more - budget, 6 * 128 * MIB + 1, 7 * 128 * MIB - 17 * MIB);
    get_mapped(more);
    assert_in_range(fake->reserved, budget - VMM_HANDLE + 1, budget);
    assert_int_equal(segment_at(at[1])->bytes, LONG); /* the short end was remapped */
    assert_int_equal(segment_at(at[1] + LONG)->bytes, VMM_HANDLE);
    assert_int_equal(counter_get(&pool->source.counters.driver_frees), 7);
    assert_int_equal(pool->source.remap.held_bytes, 0);
}

static void a_split_that_lacks_driver_memory_loses_one_segment(void **state) {
    (void)state;
    uint64_t at = free_gib();
    finish_and_update();
    watch();
    fake->map_code = -ENOMEM;
    uint64_t block = get(20 * MIB);
    fake->map_code = 0;
    assert_true(block >= at);
    assert_int_equal(fake->reserved, GIB - 128 * MIB);
    fake->backend.ops = unwatched;
    check();
}

static void a_long_segment_that_cannot_be_unmapped_is_used_whole(void **state) {
    (void)state;
    uint64_t at = free_gib();
    finish_and_update();
    fake->unmap_code = -EBUSY;
    assert_int_equal(get_mapped(20 * MIB), at);
    fake->unmap_code = 0;
    assert_int_equal(pool->source.large.segment_count, SEGMENTS);
}

/* ---- externally visible ---- */

static bool is_visible(uint64_t address) {
    return segment_at(address)->externally_visible;
}

static void all_segments_of_a_block_are_externally_visible(void **state) {
    (void)state;
    start(4 * GIB, REUSE_BARRIER, RELAXED);
    uint64_t base = PARTS(5);
    get_mapped(5 * MIB);
    uint64_t block = get_mapped(8 * MIB);
    assert_int_equal(block, base + 5 * MIB);
    assert_int_equal(pool_mark_externally_visible(block + 2 * MIB), 0);
    for (unsigned i = 0; i < 5; i++)
        assert_int_equal(is_visible(base + i * PART), i > 0 && i < 4);
}

/* A later block has all of an externally visible segment, its beginning, or its end. */
static void a_later_block_in_visible_memory_is_not_reused_early(void **state) {
    (void)state;
    enum { ALL, BEGINNING, END, PLACES };
    for (unsigned place = 0; place < PLACES; place++) {
        start(64 * GIB, REUSE_BARRIER, RELAXED);
        drop(get_mapped(100 * MIB));
        finish_and_update();
        let_hold(64 * MIB);
        struct segment *s = pool->source.large.segments, *marked = place == END ? s->next : s;
        uint64_t all = place == ALL ? s->bytes - 2 * MIB : s->bytes - 512 * KIB;
        get_mapped(all);
        marked->externally_visible = true;
        uint64_t block = get_mapped(MIB + 512 * KIB);
        finish_and_update();
        assert_int_equal(block, s->base + all);
        assert_int_equal(block + MIB + 512 * KIB > s->next->base, place != ALL);
        uint64_t held = cache_mine(pool)->bytes;
        drop_used(block, MIB + 512 * KIB);
        assert_int_equal(cache_mine(pool)->bytes, held);
        fake_inside_free(true);
        pool_stamp_in_free(pool);
        fake_inside_free(false);
        lock_acquire(&pool->source.lock);
        sync_make_safe(&pool->source, epochs_latest_in_free(&pool->source.epochs),
                       SYNC_WAIT); /* a barrier is not enough for visible memory */
        pending_release(&pool->source, EVERY_STAMP);
        lock_release(&pool->source.lock);
        assert_ptr_equal(pool->source.pending[REACH_EXTERNAL].head, page_map_start(block));
        finish_and_update();
        assert_null(pool->source.pending[REACH_EXTERNAL].head);
        assert_int_equal(get_mapped(MIB + 512 * KIB), block);
        assert_int_equal(stop(NULL), 0);
    }
}

/* ---- exports ---- */

static void check_handles(const struct pool_exported *exported, uint64_t address) {
    for (unsigned i = 0; i < exported->count; i++) {
        assert_int_equal(fake_physical(fake, address + i * exported->length * PAGE),
                         fake->base + exported->handle[i] * PAGE);
    }
}

static void an_export_names_all_handles_of_a_block(void **state) {
    (void)state;
    start(4 * GIB, REUSE_BARRIER, RELAXED);
    struct pool_exported exported;
    static const uint64_t parts[] = {PART, PART, PART, PART, PART,    6 * MIB,
                                     PART, PART, PART, PART, 6 * MIB, PART};
    uint64_t base = free_in_parts(parts, 12);
    uint64_t in_front = get_mapped(3 * MIB),
             block = get_mapped(44 * MIB); /* all but the last segment */
    assert_int_equal(in_front, base);
    assert_int_equal(block, base + 3 * MIB);
    uint64_t id = pool_block_id(block);
    assert_int_equal(pool_export(block, id, 0, &exported), -ENOENT); /* not externally visible */
    assert_int_equal(pool_mark_externally_visible(block), 0);
    assert_int_equal(pool_export(block, id + 1, 0, &exported), -ENOENT);
    assert_int_equal(pool_export(block + 4096, id, 0, &exported), -ENOENT);
    /* first page, expected count of handles, expected VMM pages of each handle */
    static const uint32_t rows[][3] = {{0, 5, 2},  {2, 4, 2},  {8, 1, 2}, {10, 1, 3},
                                       {13, 4, 2}, {19, 1, 2}, {21, 1, 3}};
    for (unsigned i = 0; i < sizeof rows / sizeof *rows; i++) {
        assert_int_equal(pool_export(block, id, rows[i][0], &exported), 0);
        assert_int_equal(exported.count, rows[i][1]);
        assert_int_equal(exported.length, rows[i][2]);
        assert_int_equal(exported.offset, 3 * MIB);
        assert_int_equal(exported.bytes, 44 * MIB);
        assert_int_equal(exported.pages, 24);
        assert_false(lock_try(&pool->source.remap.lock)); /* held, so no handle can be released */
        check_handles(&exported, base + rows[i][0] * PAGE);
        pool_export_end(&exported);
    }
    static const uint32_t none[] = {1, 3, 9, 11, 12, 14, 22, 23, 24, 26, UINT32_MAX};
    for (unsigned i = 0; i < sizeof none / sizeof *none; i++)
        assert_int_equal(pool_export(block, id, none[i], &exported), -EINVAL);
    assert_true(lock_try(&pool->source.remap.lock));
    lock_release(&pool->source.remap.lock);
}

/* The next handles have the same length and belong to another block. */
static void an_export_names_no_handle_behind_the_block(void **state) {
    (void)state;
    start(4 * GIB, REUSE_BARRIER, RELAXED);
    struct pool_exported exported;
    PARTS(4);
    uint64_t block = get_mapped(2 * PART), other = get_mapped(2 * PART);
    for (uint64_t at = block; at <= other; at += other - block) {
        assert_int_equal(pool_mark_externally_visible(at), 0);
        assert_int_equal(pool_export(at, pool_block_id(at), 0, &exported), 0);
        assert_int_equal(exported.count, 2);
        assert_int_equal(exported.pages, 4);
        check_handles(&exported, at);
        pool_export_end(&exported);
        assert_int_equal(pool_export(at, pool_block_id(at), 4, &exported), -EINVAL);
    }
}

#define VMM_TEST(name) cmocka_unit_test_setup_teardown(name, with_vmm, stop)

int main(void) {
    const struct CMUnitTest tests[] = {
        VMM_TEST(a_request_grows_by_what_it_lacks_at_the_end),
        VMM_TEST(a_block_that_fits_elsewhere_does_not_use_the_end),
        VMM_TEST(a_longer_range_is_taken_before_the_end),
        VMM_TEST(a_gap_is_filled_from_its_left),
        VMM_TEST(a_gap_is_filled_from_its_right),
        VMM_TEST(a_gap_is_filled_from_the_side_that_lacks_less),
        VMM_TEST(a_block_may_fill_a_gap_and_the_free_ranges_beside_it),
        VMM_TEST(a_block_that_fits_no_gap_goes_to_the_end),
        VMM_TEST(of_equal_gaps_the_lowest_is_filled),
        VMM_TEST(the_gap_that_needs_least_new_memory_is_filled),
        VMM_TEST(a_gap_in_front_of_all_segments_is_filled),
        VMM_TEST(a_block_over_several_segments_is_counted_in_each),
        VMM_TEST(an_idle_segment_inside_a_free_range_is_released),
        VMM_TEST(over_the_budget_idle_segments_are_released_before_growth),
        VMM_TEST(idle_segments_without_work_are_released_without_a_wait),
        VMM_TEST(idle_memory_next_to_the_gap_is_not_released),
        VMM_TEST(below_the_budget_no_idle_segment_is_released),
        VMM_TEST(unfinished_memory_is_waited_for_if_it_suffices),
        VMM_TEST(no_more_is_waited_for_than_a_growth_adds),
        VMM_TEST(memory_next_to_the_gap_does_not_count),
        VMM_TEST(memory_that_cannot_be_waited_for_is_not_released),
        VMM_TEST(free_memory_next_to_the_gap_stays),
        VMM_TEST(free_memory_on_both_sides_of_the_gap_stays),
        VMM_TEST(free_memory_beside_the_gap_that_is_not_needed_is_released),
        VMM_TEST(idle_slabs_are_released_for_large_blocks),
        VMM_TEST(pending_memory_gets_a_barrier_ahead_of_its_need),
        VMM_TEST(idle_handles_are_remapped_where_they_are_needed),
        VMM_TEST(a_handle_is_remapped_whole_if_a_part_is_needed),
        VMM_TEST(unfinished_memory_behind_a_barrier_moves_at_once),
        VMM_TEST(a_stale_mapping_is_unmapped_when_its_work_is_done),
        VMM_TEST(remapped_memory_is_released_whole),
        VMM_TEST(remapped_memory_is_released_whole_if_work_ends_meanwhile),
        VMM_TEST(stale_mappings_that_become_safe_in_a_release_are_unmapped),
        VMM_TEST(a_stale_mapping_that_cannot_be_unmapped_stays),
        VMM_TEST(externally_visible_memory_does_not_move),
        VMM_TEST(nothing_moves_without_an_entry_for_its_stale_mapping),
        VMM_TEST(a_growth_that_needs_more_handles_than_transit_most_waits),
        VMM_TEST(segments_next_to_a_gap_move_first),
        VMM_TEST(handles_remapped_for_a_refused_growth_are_not_lost),
        VMM_TEST(handles_that_moved_in_vain_are_counted),
        VMM_TEST(handles_of_a_failed_growth_return_beside_new_segments),
        VMM_TEST(short_segments_are_mapped_where_they_are_needed),
        VMM_TEST(the_driver_is_asked_for_no_more_than_is_lacking),
        VMM_TEST(segments_are_shorter_once_they_have_been_pinned),
        VMM_TEST(a_large_growth_comes_in_longer_segments),
        VMM_TEST(segments_stay_long_for_free_memory_that_is_not_pinned),
        VMM_TEST(the_goal_is_raised_where_mapping_takes_too_long),
        VMM_TEST(the_goal_is_not_raised_above_the_device),
        VMM_TEST(the_goal_is_raised_by_what_is_lacking),
        VMM_TEST(the_goal_is_raised_by_remap_slack_steps_at_most),
        VMM_TEST(the_goal_is_raised_by_a_part_of_the_peak_that_counts),
        VMM_TEST(remapping_time_is_counted),
        VMM_TEST(unused_remapping_time_is_credited_for_a_while),
        VMM_TEST(slack_steps_fall_when_the_peak_rises),
        VMM_TEST(the_next_context_starts_without_slack),
        VMM_TEST(caches_raise_the_budget_of_a_small_program),
        VMM_TEST(remapping_time_adds_up),
        VMM_TEST(a_request_beyond_driver_or_limit_is_refused),
        VMM_TEST(handles_of_a_refused_growth_are_released),
        VMM_TEST(a_refused_growth_releases_no_older_memory),
        VMM_TEST(a_request_that_cannot_be_mapped_goes_to_the_driver),
        VMM_TEST(a_segment_that_cannot_be_unmapped_stays_unchanged),
        VMM_TEST(mappings_left_at_the_end_keep_their_addresses),
        VMM_TEST(a_growth_gets_the_memory_that_it_mapped),
        VMM_TEST(a_waiting_growth_takes_memory_freed_by_others),
        VMM_TEST(memory_freed_during_a_reservation_is_used),
        VMM_TEST(a_growth_that_waited_for_the_end_of_the_context_is_refused),
        VMM_TEST(the_context_ends_while_the_pool_grows),
        VMM_TEST(a_refused_reservation_is_retried_smaller),
        VMM_TEST(adjacent_va_ranges_are_one),
        VMM_TEST(another_va_range_is_reserved_where_one_is_full),
        VMM_TEST(a_large_growth_below_the_budget_takes_few_segments),
        VMM_TEST(a_block_behind_a_large_one_keeps_a_short_segment),
        VMM_TEST(beyond_the_budget_segments_are_short),
        VMM_TEST(a_long_segment_is_split_for_a_shorter_block),
        VMM_TEST(a_long_segment_is_split_as_soon_as_it_is_safe),
        VMM_TEST(segments_are_as_long_as_their_request_needs),
        VMM_TEST(a_split_makes_one_batch_of_short_segments),
        VMM_TEST(splits_create_each_byte_twice_at_most),
        VMM_TEST(a_long_segment_is_split_for_a_slab),
        VMM_TEST(a_long_segment_is_not_split_before_its_work_is_done),
        VMM_TEST(a_long_segment_is_released_in_parts),
        VMM_TEST(a_long_segment_that_cannot_be_unmapped_is_used_whole),
        VMM_TEST(a_split_that_lacks_driver_memory_loses_one_segment),
        VMM_TEST(all_segments_of_a_block_are_externally_visible),
        VMM_TEST(a_later_block_in_visible_memory_is_not_reused_early),
        VMM_TEST(an_export_names_all_handles_of_a_block),
        VMM_TEST(an_export_names_no_handle_behind_the_block),
    };
    return cmocka_run_group_tests_name("va_range", tests, NULL, NULL);
}
