/* Lines: what a request makes the pool grow by and where, what goes back for it, and whom a block over several segments names. */
#include "pool_bench.h"

#include "memory/idle.h"
#include "memory/page_map.h"
#include "memory/va_range.h"
#include "source/remap.h"

#include <sched.h>

#define PAGE (2 * MIB)

static int with_pages(void **state) {
    (void)state;
    maps_pages = true;
    return 0;
}

static void finish_all(void) {
    uint64_t ticket = pool_sync_begin(pool);
    fake_finish_all(fake);
    pool_sync_end(pool, ticket);
    pool_stuck_bytes(pool); /* which looks at what is usable */
}

/* Used by work that is still running when it is freed: else the fake would not mind what is unmapped. */
static void drop_used(uint64_t address, uint64_t bytes) {
    fake_reach(fake, address, bytes, 0, fake_submit(fake, 0));
    drop(address);
}

/* All of it is mapped. */
static uint64_t get_mapped(uint64_t bytes) {
    uint64_t address = get(bytes);
    fake_reach(fake, address, bytes, 0, fake_submit(fake, 0));
    for (uint64_t at = address & ~(PAGE - 1); at < address + bytes; at += PAGE) {
        fake_physical(fake, at);
    }
    assert_int_equal(fake->broken_laws, 0);
    check();
    return address;
}

static struct segment *segment_at(uint64_t address) {
    struct segment *segment = pool->source.large.segments;
    while (segment && segment->base + segment->bytes <= address) {
        segment = segment->next;
    }
    return segment && segment->base <= address ? segment : NULL;
}

/* Free memory in segments of these lengths, side by side. */
static uint64_t free_in_parts(const uint64_t *parts, unsigned count) {
    uint64_t at[16], all = 0;
    for (unsigned i = 0; i < count; i++) {
        at[i] = get_mapped(parts[i]);
        assert_int_equal(at[i], at[0] + all);
        assert_int_equal(segment_at(at[i])->bytes, parts[i]);
        all += parts[i];
    }
    finish_all();
    for (unsigned i = 0; i < count; i++) {
        drop(at[i]);
    }
    finish_all();
    return at[0];
}

/* A block in so many of 4 MiB. */
#define PART (4 * MIB)
#define PARTS(count) free_in_parts((const uint64_t[]){PART, PART, PART, PART, PART}, count)

static uint64_t get_in_parts(unsigned count) {
    uint64_t at = PARTS(count);
    assert_int_equal(get_mapped(count * PART), at);
    finish_all();
    return at;
}

/* Blocks side by side, each in a segment of its own. */
enum { A, B, C, D, E, BLOCKS };
#define EACH (8 * MIB)

static uint64_t blocks[BLOCKS];

static void start_side_by_side(void) {
    start(4 * GIB, POOL_BARRIER, RELAXED);
    for (unsigned i = 0; i < BLOCKS; i++) {
        blocks[i] = get_mapped(EACH);
        assert_int_equal(blocks[i], blocks[0] + i * EACH);
    }
    finish_all();
    assert_int_equal(pool->source.large.segment_count, BLOCKS);
}

static void make_hole(unsigned which) {
    drop(blocks[which]);
    finish_all();
    assert_int_equal(pool_trim(pool, true), 0);
    assert_null(segment_at(blocks[which]));
    assert_null(segment_at(blocks[which] + EACH - 1));
    check();
}

static void make_free(unsigned which) {
    drop(blocks[which]);
    finish_all();
}

/* ---- where ---- */

static void a_request_grows_by_what_it_lacks_at_the_end(void **state) {
    (void)state;
    start(4 * GIB, POOL_BARRIER, RELAXED);
    get_mapped(10 * MIB);
    uint64_t end = get_mapped(20 * MIB);
    drop(end);
    finish_all();
    assert_int_equal(get_mapped(26 * MIB), end);
    assert_int_equal(fake->reserved, 36 * MIB);
    uint64_t last = get_mapped(3 * MIB), half = last + 3 * MIB; /* of a page is left */
    assert_int_equal(fake->reserved, 40 * MIB);
    assert_int_equal(get_mapped(5 * MIB), half);
    assert_int_equal(fake->reserved, 44 * MIB);
    assert_int_equal(pool->source.large.free_count, 0);
    assert_int_equal(fake->releases, 0);
}

static void what_fits_elsewhere_leaves_the_end_alone(void **state) {
    (void)state;
    start_side_by_side();
    make_free(E);
    make_free(B);
    assert_int_equal(get_mapped(6 * MIB), blocks[B]);
    assert_int_equal(get_mapped(7 * MIB), blocks[E]);
    assert_int_equal(fake->reserved, BLOCKS * EACH);
}

/* Although the end is as good, and no smaller. */
static void a_longer_range_is_taken_before_the_end(void **state) {
    (void)state;
    start_side_by_side();
    make_free(B), make_free(C); /* 16 MiB */
    make_free(E);
    assert_int_equal(get_mapped(6 * MIB), blocks[B]);
    assert_int_equal(fake->reserved, BLOCKS * EACH);
}

static void a_hole_is_filled_from_its_left(void **state) {
    (void)state;
    start_side_by_side();
    make_hole(C);
    make_free(B);
    assert_int_equal(get_mapped(EACH + 3 * MIB), blocks[B]);
    assert_int_equal(fake->reserved, (BLOCKS - 1) * EACH + 4 * MIB);
    assert_non_null(segment_at(blocks[C] + 4 * MIB - 1));
    assert_null(segment_at(blocks[C] + 4 * MIB));
}

static void a_hole_is_filled_from_its_right(void **state) {
    (void)state;
    start_side_by_side();
    make_hole(C);
    make_free(D);
    assert_int_equal(get_mapped(EACH + 4 * MIB), blocks[D] - 4 * MIB);
    assert_int_equal(fake->reserved, (BLOCKS - 1) * EACH + 4 * MIB);
    assert_null(segment_at(blocks[C] + 4 * MIB - 1));
}

static void from_the_side_that_lacks_less(void **state) {
    (void)state;
    for (unsigned left = 0; left < 2; left++) {
        start_side_by_side();
        make_hole(C);
        make_free(left ? D : B);
        get_mapped(left ? 2 * MIB : 4 * MIB); /* less is free there than on the other side */
        make_free(left ? B : D);
        uint64_t reserved = fake->reserved;
        assert_int_equal(get_mapped(10 * MIB), left ? blocks[B] : blocks[D] - 2 * MIB);
        assert_int_equal(fake->reserved, reserved + 2 * MIB);
        assert_int_equal(stop(NULL), 0);
    }
}

static void a_hole_is_filled_wholly_with_what_is_free_on_both_sides(void **state) {
    (void)state;
    start_side_by_side();
    make_hole(C);
    make_free(B), make_free(D);
    assert_int_equal(get_mapped(3 * EACH), blocks[B]);
    assert_int_equal(fake->reserved, BLOCKS * EACH);
    assert_int_equal(pool->source.large.free_count, 0);
}

static void what_is_longer_than_that_goes_to_the_end(void **state) {
    (void)state;
    start_side_by_side();
    make_hole(C);
    make_free(B), make_free(D);
    assert_int_equal(get_mapped(3 * EACH + 1), blocks[E] + EACH);
    assert_int_equal(fake->reserved, (BLOCKS - 1) * EACH + 3 * EACH + PAGE);
}

static void the_lowest_place_among_equals(void **state) {
    (void)state;
    start_side_by_side();
    make_hole(D);
    make_hole(B);
    assert_int_equal(get_mapped(EACH), blocks[B]);
    assert_int_equal(get_mapped(EACH), blocks[D]);
    assert_int_equal(get_mapped(EACH), blocks[E] + EACH);
}

static void where_the_least_is_lacking(void **state) {
    (void)state;
    start_side_by_side();
    make_hole(B);
    make_hole(D);
    make_free(E);
    assert_int_equal(get_mapped(EACH + 2 * MIB), blocks[E] - 2 * MIB); /* lower than the end */
    assert_int_equal(fake->reserved, 3 * EACH + 2 * MIB);
    drop(blocks[C]);
    finish_all();
    assert_int_equal(get_mapped(EACH + 2 * MIB), blocks[C] - 2 * MIB);
    assert_int_equal(fake->reserved, 3 * EACH + 4 * MIB);
}

static void in_front_of_all(void **state) {
    (void)state;
    start_side_by_side();
    make_hole(A);
    assert_int_equal(get_mapped(5 * MIB), blocks[A]);
    assert_ptr_equal(pool->source.large.segments, segment_at(blocks[A]));
    assert_int_equal(pool->source.large.segments->previous != NULL, false);
}

/* ---- segments of a block ---- */

static void a_block_over_several_segments_and_its_free(void **state) {
    (void)state;
    start(4 * GIB, POOL_BARRIER, RELAXED);
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
    finish_all();
    drop_used(block, 4 * PART + 512 * KIB);
    assert_int_equal(s[1]->used, PART); /* still pending */
    assert_int_equal(pool->source.large.idle_bytes, 0);
    finish_all();
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
    finish_all();
    drop_used(middle, 2 * PART + MIB);
    finish_all();
    for (unsigned i = 0; i < 5; i++) {
        assert_int_equal(s[i]->stamp > stamp, i < 3);
        assert_int_equal(s[i]->since, i < 3 ? 9 : 7);
    }
    assert_int_equal(pool->source.large.idle_bytes, 4 * PART);
    assert_int_equal(pool->source.large.free_count, 2);
}

/* What is free in front of it and behind it stays, and is one again with what comes there. One in use stays however old. */
static void a_segment_inside_what_is_free_goes_back(void **state) {
    (void)state;
    start(4 * GIB, POOL_BARRIER, RELAXED);
    pool->source.config.decays = true;
    pool->source.decay.tick = 100;
    uint64_t base = PARTS(5), live = get_mapped(MIB + 4 * KIB);
    assert_int_equal(live, base);
    for (unsigned i = 0; i < 5; i++) {
        segment_at(base + i * PART)->since = i % 2 ? 100 : 50;
    }
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

/* ---- what goes back ---- */

static void over_the_budget_what_is_idle_goes_back_first(void **state) {
    (void)state;
    start(4 * GIB, POOL_BARRIER, 40 * MIB);
    uint64_t idle = get_in_parts(5), live = get_mapped(2 * MIB);
    finish_all();
    drop(idle);
    finish_all();
    fake->reserved_peak = 0;
    assert_int_equal(get_mapped(30 * MIB), live + 2 * MIB);
    assert_int_equal(fake->reserved, 38 * MIB); /* no more than is needed, in segments of 4 MiB, */
    assert_int_equal(fake->reserved_peak, 38 * MIB); /* and before it grows */
    assert_null(segment_at(idle + 12 * MIB));        /* those at its beginning */
    assert_non_null(segment_at(idle + 16 * MIB));
    assert_int_equal(fake->waits, 0);
}

/* A block in so many parts, and one of 20 MiB, which is returned; both stay apart from all else. */
static uint64_t get_two(unsigned parts, uint64_t *first) {
    start(4 * GIB, POOL_BARRIER, 60 * MIB);
    *first = get_in_parts(parts);
    get_mapped(2 * MIB);
    uint64_t second = get_mapped(20 * MIB);
    get_mapped(2 * MIB);
    return second;
}

/* Of several segments, while others have not. */
static void what_has_finished_is_not_waited_for(void **state) {
    (void)state;
    uint64_t idle, later = get_two(5, &idle);
    finish_all();
    drop(idle);
    finish_all();
    drop_used(later, 20 * MIB);
    get_mapped(34 * MIB);
    assert_in_range(fake->reserved, 52 * MIB, 60 * MIB);
    assert_int_equal(fake->waits, 0);
    finish_all();
}

/* Though more than is lacking has finished beside the place, which is needed itself. */
static void nor_is_what_lies_beside_the_place_taken_for_it(void **state) {
    (void)state;
    uint64_t idle, later = get_two(2, &idle);
    uint64_t beside = get_mapped(20 * MIB);
    finish_all();
    drop(idle), drop(beside);
    finish_all();
    drop_used(later, 20 * MIB);
    assert_int_equal(get_mapped(34 * MIB), beside);
    assert_in_range(fake->reserved, 52 * MIB, 60 * MIB);
    assert_int_equal(fake->waits, 0);
    finish_all();
}

static void below_it_nothing_does(void **state) {
    (void)state;
    start(4 * GIB, POOL_BARRIER, 60 * MIB);
    uint64_t idle = get_mapped(20 * MIB);
    get_mapped(2 * MIB);
    finish_all();
    drop(idle);
    finish_all();
    get_mapped(38 * MIB);
    assert_int_equal(fake->reserved, 60 * MIB);
    assert_int_equal(fake->unmaps, 0);
}

/* Long segments, which do not move, and 32 MiB in short ones, which do; 2 MiB behind them stay. The fake sees to it that nothing is unmapped under work. */
static uint64_t get_long(uint64_t budget) {
    start(4 * GIB, POOL_BARRIER, budget);
    uint64_t at = get_mapped(160 * MIB);
    assert_int_equal(segment_at(at)->bytes, 32 * MIB);
    get_mapped(2 * MIB);
    finish_all();
    return at;
}

static void what_has_not_finished_is_waited_for_if_it_suffices(void **state) {
    (void)state;
    for (unsigned suffices = 0; suffices < 2; suffices++) {
        drop_used(get_long(320 * MIB), 160 * MIB);
        get_mapped(suffices ? 240 * MIB : 480 * MIB);
        assert_int_equal(fake->waits > 0, suffices);
        assert_in_range(fake->reserved, suffices ? 304 * MIB : 610 * MIB,
                        suffices ? 320 * MIB : 610 * MIB);
        assert_int_equal(fake->unmaps > 0, suffices);
        finish_all();
        assert_int_equal(stop(NULL), 0);
    }
}

/* What the pool has had to exceed it by before is no reason: a short one moves for a page of small blocks. */
static void no_more_is_waited_for_than_a_growth_adds(void **state) {
    (void)state;
    uint64_t at = get_long(320 * MIB);
    get_mapped(240 * MIB);
    finish_all();
    drop_used(at, 160 * MIB);
    get(MIB);
    assert_int_equal(fake->waits, 0);
    assert_int_equal(fake->reserved, 402 * MIB);
    assert_int_equal(pool->source.small.reserved_bytes, VMM_HANDLE);
    finish_all();
}

/* It cannot go, so that it is no reason to wait, nor one not to wait for what can. */
static void what_lies_beside_the_place_does_not_count(void **state) {
    (void)state;
    start(4 * GIB, POOL_BARRIER, 24 * MIB);
    get_mapped(2 * MIB);
    uint64_t near = get_mapped(20 * MIB);
    finish_all();
    drop_used(near, 20 * MIB);
    assert_int_equal(get_mapped(30 * MIB), near);
    assert_int_equal(fake->reserved, 32 * MIB);
    assert_int_equal(fake->waits, 0);
    finish_all();
    assert_int_equal(stop(NULL), 0);
    uint64_t far = get_long(300 * MIB);
    near = get_mapped(20 * MIB);
    finish_all();
    drop(near);
    finish_all();
    drop_used(far, 160 * MIB);
    assert_int_equal(get_mapped(200 * MIB), near);
    assert_in_range(fake->reserved, 284 * MIB, 300 * MIB);
    assert_true(fake->waits > 0);
}

static void what_cannot_be_waited_for_does_not_go(void **state) {
    (void)state;
    uint64_t idle = get_long(320 * MIB);
    fake->wait_code = -EBUSY;
    drop_used(idle, 160 * MIB);
    get_mapped(240 * MIB);
    assert_int_equal(fake->reserved, 370 * MIB);
    assert_int_equal(fake->unmaps, 0);
    fake->wait_code = 0;
}

static void what_is_free_beside_the_place_stays(void **state) {
    (void)state;
    start(4 * GIB, POOL_BARRIER, 30 * MIB);
    uint64_t far = get_mapped(4 * MIB);
    get_mapped(2 * MIB);
    uint64_t near = get_mapped(20 * MIB);
    finish_all();
    drop(far), drop(near);
    finish_all();
    assert_int_equal(get_mapped(30 * MIB), near);
    assert_null(segment_at(far));
    assert_int_equal(fake->reserved, 32 * MIB);
    assert_int_equal(pool->source.large.stale_mappings.count, 1);
}

static void on_both_sides_of_it(void **state) {
    (void)state;
    start_side_by_side();
    pool->source.config.budget = 1;
    make_hole(C);
    make_free(B), make_free(D);
    unsigned unmaps = fake->unmaps;
    assert_int_equal(get_mapped(3 * EACH), blocks[B]);
    assert_int_equal(fake->unmaps, unmaps);
    make_free(A); /* which is nobody's neighbour */
    assert_int_equal(get_mapped(EACH + MIB), blocks[E] + EACH);
    assert_null(segment_at(blocks[A]));
}

/* One on the other side that is not needed goes: as much is free there, or less. */
static void but_not_on_a_side_that_is_not_needed(void **state) {
    (void)state;
    for (unsigned left = 0; left < 2; left++) {
        static const uint64_t lengths[2][3] = {{4 * MIB, 8 * MIB, 6 * MIB},
                                               {8 * MIB, 8 * MIB, 4 * MIB}};
        start(4 * GIB, POOL_BARRIER, 40 * MIB);
        uint64_t at[3];
        for (unsigned i = 0; i < 3; i++) {
            at[i] = get_mapped(lengths[left][i]);
        }
        get_mapped(2 * MIB);
        finish_all();
        drop(at[1]);
        finish_all();
        pool->source.config.budget = 1;
        pool_trim(pool, true);
        drop(at[0]), drop(at[2]);
        finish_all();
        uint64_t needed = left ? 0 : 2;
        get_mapped(lengths[left][needed] + 2 * MIB);
        assert_non_null(segment_at(at[needed]));
        assert_null(segment_at(at[2 - needed]));
        assert_int_equal(fake->reserved,
                         lengths[left][needed] + 6 * MIB); /* it is where 2 are needed */
        assert_int_equal(stop(NULL), 0);
    }
}

/* Both kinds. */
static void pages_of_small_blocks_go_back_for_large_ones(void **state) {
    (void)state;
    start(4 * GIB, POOL_BARRIER, 20 * MIB);
    uint64_t small[16];
    for (unsigned i = 0; i < 16; i++) {
        small[i] = get(MIB);
    }
    for (unsigned i = 0; i < 16; i++) {
        drop(small[i]);
    }
    finish_all();
    assert_null(pool_check(pool));
    get_mapped(18 * MIB);
    assert_int_equal(fake->reserved, 18 * MIB);
}

/* ---- for the sake of time ---- */

/* Ahead of a request, though there is a free range for it; but not where streams run side by side and little is at stake. */
static void what_is_pending_is_put_in_order_ahead(void **state) {
    (void)state;
    for (unsigned much = 0; much < 2; much++) {
        for (unsigned streams = 0; streams <= 4; streams += 4) {
            start(4 * GIB, POOL_BARRIER, 40 * MIB);
            if (much) {
                drop(get_mapped(900 * MIB));
                finish_all();
                pool_trim(pool, true);
            }
            pool_expect_streams(streams);
            uint64_t idle = get_mapped(20 * MIB), used = get_mapped(18 * MIB);
            finish_all();
            drop(idle);
            finish_all();
            drop_used(used, 18 * MIB);
            assert_int_equal(fake->orders, 0);
            assert_int_equal(get(10 * MIB), idle);
            assert_int_equal(fake->orders, streams == 0 || much);
            pool_expect_streams(0);
            finish_all();
            assert_int_equal(stop(NULL), 0);
        }
    }
}

#define WHOLE (16 * MIB) /* VMM_HANDLE */

static bool is_one_of(const uint64_t *pages, unsigned count, uint64_t page) {
    unsigned i = 0;
    while (i < count && pages[i] != page) {
        i++;
    }
    return i < count;
}

/* Blocks with a segment each; some of them are free. */
static void get_whole(uint64_t *at, uint64_t *pages, unsigned count, unsigned drops) {
    for (unsigned i = 0; i < count; i++) {
        at[i] = get_mapped(WHOLE);
        assert_int_equal(segment_at(at[i])->bytes, WHOLE);
        pages[i] = segment_at(at[i])->handle;
    }
    finish_all();
    for (unsigned i = 0; i < count; i++) {
        if (drops >> i & 1) {
            drop(at[i]);
        }
    }
    finish_all();
}

/* But what others can reach is theirs as well. */
static void what_goes_back_is_mapped_where_it_is_needed(void **state) {
    (void)state;
    for (unsigned reached = 0; reached < 2; reached++) {
        start(4 * GIB, POOL_BARRIER, 6 * WHOLE);
        uint64_t at[6], pages[6];
        get_whole(at, pages, 6, 0);
        for (unsigned i = 0; i < 5; i += 2) {
            assert_int_equal(reached ? pool_mark_externally_visible(at[i]) : 0, 0);
            drop(at[i]);
        }
        finish_all();
        fake->reserved_peak = 0;
        uint64_t block = get_mapped(3 * WHOLE);
        for (unsigned i = 0; i < 3; i++) {
            uint64_t page = segment_at(block + i * WHOLE)->handle;
            assert_true(reached || is_one_of(pages, 6, page));
        }
        assert_int_equal(pool->source.counters.driver_allocs, 6 + (reached ? 3 : 0));
        assert_int_equal(pool->source.counters.driver_frees, reached ? 3 : 0);
        assert_int_equal(fake->reserved, 6 * WHOLE);
        assert_int_equal(fake_books(pool).reserved.current, 6 * WHOLE);
        assert_int_equal(atomic_load(&pool->source.remap.unmapping_bytes), 0);
        assert_int_equal(stop(NULL), 0);
    }
}

/* Although not all of it is lacking: what is as long as others can move on. */
static void whole_though_not_all_of_it_is_needed(void **state) {
    (void)state;
    for (int code = 0; code >= -EIO; code -= EIO) {
        uint64_t at[5], pages[5], block;
        start(5 * WHOLE, POOL_BARRIER, 82 * MIB);
        get_whole(at, pages, 5, 5);
        fake->map_code = code;
        int r = pool_alloc(pool, 24 * MIB, &block);
        fake->map_code = 0;
        assert_int_equal(r, code ? -ERANGE : 0);
        assert_int_equal(fake->reserved, 5 * WHOLE); /* or it is where it was */
        for (unsigned i = 0; i < 5 && code; i++) {
            assert_int_equal(segment_at(at[i])->handle, pages[i]);
        }
        assert_int_equal(pool->source.large.reserved_bytes, fake->reserved);
        assert_int_equal(atomic_load(&pool->source.remap.unmapping_bytes), 0);
        assert_int_equal(fake->in_vain, code ? 1 : 0);
        if (code == 0) {
            assert_true(is_one_of(pages, 5, segment_at(block)->handle));
            assert_true(is_one_of(pages, 5, segment_at(block + WHOLE)->handle));
            assert_int_equal(pool->source.counters.driver_allocs, 5);
            assert_int_equal(pool->source.counters.driver_frees, 0);
            assert_int_equal(get_mapped(8 * MIB), block + 24 * MIB);
        }
        assert_int_equal(stop(NULL), 0);
    }
}

/* ---- what stands behind a barrier ---- */

/* Two of six in whole segments were used by work that runs on, and are behind a barrier when `pool` grows over its budget. */
static uint64_t move_behind_a_barrier(uint64_t *at, uint64_t *pages) {
    start(4 * GIB, POOL_BARRIER, 6 * WHOLE);
    get_whole(at, pages, 6, 0);
    drop_used(at[1], WHOLE), drop_used(at[3], WHOLE);
    pool->source.decay.tick = 9;
    uint64_t block = get(2 * WHOLE);
    assert_int_equal(fake->orders, 1);
    assert_int_equal(fake->waits, 0);
    return block;
}

/* The work that may still use it goes on at its old addresses. */
static void what_has_not_finished_moves_at_once(void **state) {
    (void)state;
    uint64_t at[6], pages[6], block = move_behind_a_barrier(at, pages);
    assert_int_equal(fake->unmaps, 0);
    assert_int_equal(fake->reserved, 6 * WHOLE);
    for (unsigned i = 0; i < 2; i++) {
        const struct segment *segment = segment_at(block + i * WHOLE);
        assert_true(segment->handle == pages[1] || segment->handle == pages[3]);
        assert_true(segment->stamp > pool->source.epochs.finished);
        assert_int_equal(segment->since, 9);
        assert_null(segment_at(at[1 + 2 * i]));
        fake_physical(fake, at[1 + 2 * i]); /* mapped still */
    }
    assert_int_equal(pool->source.large.stale_mappings.count, 2);
    struct pool_block found;
    assert_int_equal(pool_find(at[1], &found), -EINVAL); /* what the program has freed */
    check();
    assert_int_equal(atomic_load(&pool->source.remap.unmapping_bytes), 0);
}

/* Nothing is mapped there before. */
static void and_is_unmapped_when_it_has(void **state) {
    (void)state;
    uint64_t at[6], pages[6], block = move_behind_a_barrier(at, pages);
    uint64_t other = get(WHOLE); /* the hole would do */
    assert_int_equal(other, block + 2 * WHOLE);
    assert_int_equal(fake->unmaps, 0);
    finish_all();
    assert_int_equal(get_mapped(WHOLE), at[1]);
    assert_int_equal(fake->unmaps, 2 * WHOLE / PAGE);
    assert_int_equal(pool->source.large.stale_mappings.count, 0);
}

/* It is the driver's only when nothing is mapped there any more. */
static void what_moved_goes_back_whole(void **state) {
    (void)state;
    uint64_t at[6], pages[6], block = move_behind_a_barrier(at, pages);
    fake_reach(fake, block, 2 * WHOLE, 0, fake_submit(fake, 0));
    drop(block);
    pool_trim(pool, false); /* nothing has finished */
    assert_int_equal(fake->reserved, 6 * WHOLE);
    finish_all();
    assert_int_equal(pool_trim(pool, true), 0);
    assert_int_equal(fake->reserved, 4 * WHOLE);
    assert_int_equal(pool->source.large.stale_mappings.count, 0);
    assert_int_equal(fake->unmaps, 4 * WHOLE / PAGE);
}

static struct backend_ops ending;
static const struct backend_ops *before;

static int unmap_while_work_ends(struct backend *backend, uint64_t address, unsigned count,
                                 bool left) {
    finish_all();
    return before->unmap(backend, address, count, left);
}

/* So does what ends while something else goes back. */
static void what_moved_goes_back_whole_in_one_go(void **state) {
    (void)state;
    uint64_t at[6], pages[6];
    start(4 * GIB, POOL_BARRIER, 6 * WHOLE);
    get_whole(at, pages, 6, 1);
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

static int finish_while_a_segment_goes(struct backend *backend, uint64_t address, unsigned count,
                                       bool left) {
    if (!left) {
        finish_all();
    }
    return before->unmap(backend, address, count, left);
}

/* The work at the old addresses ends while a segment goes back: they are unmapped after it, not the
 * next time. */
static void what_moved_goes_back_when_its_work_ends_during_a_release(void **state) {
    (void)state;
    uint64_t at[6], pages[6];
    move_behind_a_barrier(at, pages);
    drop(at[0]);
    lock_acquire(&pool->source.lock);
    assert_true(
        sync_barrier_or_wait(&pool->source, epochs_latest_on_time(&pool->source.epochs), false));
    pending_release_safe(&pool->source);
    segment_at(at[0])->stamp = 0; /* as if it had finished before the others */
    lock_release(&pool->source.lock);
    before = fake->backend.ops;
    ending = *before;
    ending.unmap = finish_while_a_segment_goes;
    fake->backend.ops = &ending;
    assert_int_equal(pool->source.large.stale_mappings.count, 2);
    assert_int_equal(pool_give_back(pool, WHOLE, false), 0);
    fake->backend.ops = before;
    assert_int_equal(fake->reserved, 5 * WHOLE);
    assert_int_equal(pool->source.large.stale_mappings.count, 0);
}

/* Refused once, it is asked for the next time; with the context it goes. */
static void what_cannot_be_unmapped_stays_an_alias(void **state) {
    (void)state;
    uint64_t at[6], pages[6];
    move_behind_a_barrier(at, pages);
    finish_all();
    fake->unmap_code = -EIO;
    pool_trim(pool, true);
    fake->unmap_code = 0;
    assert_int_equal(pool->source.large.stale_mappings.count, 2);
    check();
    pool_trim(pool, true);
    assert_int_equal(pool->source.large.stale_mappings.count, 0);
    assert_int_equal(stop(NULL), 0);
    move_behind_a_barrier(at, pages);
    fake_finish_all(fake);
    pool_forget(pool);
    assert_int_equal(fake->reserved, 0);
    assert_int_equal(pool->source.large.stale_mappings.count, 0);
}

/* Nor what others reach, whose work no barrier holds back. */
static void what_others_reach_moves_nowhere(void **state) {
    (void)state;
    uint64_t at[6], pages[6];
    start(4 * GIB, POOL_BARRIER, 6 * WHOLE);
    get_whole(at, pages, 6, 0);
    for (unsigned i = 1; i <= 3; i += 2) {
        assert_int_equal(pool_mark_externally_visible(at[i]), 0);
        drop_used(at[i], WHOLE);
    }
    get(2 * WHOLE);
    assert_int_equal(pool->source.large.stale_mappings.count, 0);
}

/* Where there is no room for what would be left nothing moves. */
static void as_far_as_aliases_can_be_kept(void **state) {
    (void)state;
    uint64_t at[6], pages[6];
    start(4 * GIB, POOL_BARRIER, 6 * WHOLE);
    get_whole(at, pages, 6, 0);
    struct stale_mappings *stale_mappings = &pool->source.large.stale_mappings;
    for (unsigned i = 0; i < STALE_MOST; i++) { /* far away */
        stale_add(stale_mappings,
                  &(struct stale_mapping){UINT64_MAX / 2 + 1 + i * PAGE, PAGE, UINT64_MAX});
    }
    drop_used(at[1], WHOLE), drop_used(at[3], WHOLE);
    get(2 * WHOLE);
    assert_true(stale_is_full(stale_mappings));
    assert_true(fake->waits > 0);
    assert_int_equal(fake->reserved, 6 * WHOLE);
    finish_all();
    for (unsigned i = 0; i < STALE_MOST; i++) {
        stale_remove(stale_mappings, UINT64_MAX / 2 + 1 + i * PAGE);
    }
    assert_int_equal(stale_mappings->count, 0);
}

static uint64_t first_to_move(uint64_t from) {
    const struct segment *segment = idle_movable(&pool->source.large, VMM_HANDLE, from);
    return segment ? segment->base : 0;
}

/* So that holes do not become more; among equals what has not been used for the longest. */
static void what_lies_beside_a_hole_moves_first(void **state) {
    (void)state;
    uint64_t at[8];
    start(4 * GIB, POOL_BARRIER, RELAXED);
    for (unsigned i = 0; i < 8; i++) {
        at[i] = get_mapped(WHOLE);
        assert_int_equal(at[i], at[0] + i * WHOLE);
    }
    finish_all();
    drop(at[4]);
    finish_all();
    assert_int_equal(pool_trim(pool, true), 0);
    assert_null(segment_at(at[4]));
    drop(at[1]);
    finish_all();
    assert_int_equal(first_to_move(0), at[1]);
    drop(at[3]);
    finish_all();
    assert_int_equal(first_to_move(0), at[3]);
    drop(at[5]);
    finish_all();
    assert_int_equal(first_to_move(0), at[3]);
    assert_int_equal(first_to_move(segment_at(at[3])->stamp + 1), at[5]);
    assert_int_equal(first_to_move(segment_at(at[5])->stamp + 1), 0);
    drop(at[0]);
    finish_all();
    assert_int_equal(first_to_move(0), at[3]);
    assert_int_equal(first_to_move(segment_at(at[3])->stamp + 1), at[5]);
    assert_int_equal(first_to_move(segment_at(at[5])->stamp + 1), at[0]);
}

/* What more than TRANSIT_MOST would have to move for is waited for. */
static void no_more_is_ready_than_can_move_at_once(void **state) {
    (void)state;
    enum { COUNT = TRANSIT_MOST + 72 };
    static uint64_t at[2 * COUNT];
    start(8 * GIB, POOL_BARRIER, 2 * COUNT * PART);
    for (unsigned i = 0; i < 2 * COUNT; i++) {
        at[i] = get(PART);
    }
    finish_all();
    for (unsigned i = 0; i < 2 * COUNT; i += 2) {
        drop_used(at[i], PART);
    }
    get((COUNT - 20) * PART);
    assert_true(fake->waits > 0);
    assert_in_range(fake->reserved, 0, 2 * COUNT * PART + WHOLE);
}

/* The driver's calls, as the books have them: what was moved and then found no place went to the driver as well. */
static void expect_as_many_calls_as_segments(void) {
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
static unsigned looked_for;
static int look_code;

static int probe_handles(struct backend *backend, unsigned count) {
    (void)backend;
    looked_for = looked_for ? looked_for : count;
    return look_code;
}

static uint64_t now_ns, map_takes_ns, look_takes_ns;

static uint64_t clock_of_ours(struct backend *backend) {
    (void)backend;
    return now_ns += look_takes_ns;
}

static int map_for_a_while(struct backend *backend, uint64_t address, unsigned count,
                           unsigned length, const uint64_t *pages) {
    now_ns += map_takes_ns;
    map_takes_ns = 0; /* the next ones nothing */
    return unwatched->map(backend, address, count, length, pages);
}

static void watch(void) {
    unwatched = fake->backend.ops;
    watched = *unwatched;
    watched.probe_handles = probe_handles;
    watched.clock = clock_of_ours;
    watched.map = map_for_a_while;
    fake->backend.ops = &watched;
    looked_for = 0;
    look_code = 0;
    now_ns = pool->source.started_ns;
    map_takes_ns = look_takes_ns = 0;
}

/* The rest is mapped from elsewhere; where the driver has not as much, that is the driver's. One segment it may refuse as it likes. */
static void no_more_is_looked_for_than_is_lacking(void **state) {
    (void)state;
    for (unsigned lacking = 1; lacking <= 2; lacking++) {
        for (int code = 0; code >= -ENOMEM; code -= ENOMEM) {
            uint64_t at[7], pages[7], block;
            start(64 * WHOLE, POOL_BARRIER, (7 + lacking) * WHOLE);
            get_whole(at, pages, 7, 5);
            watch();
            look_code = code;
            int r = pool_alloc(pool, (2 + lacking) * WHOLE, &block);
            bool refused = code && lacking > 1;
            assert_int_equal(r, refused ? code : 0);
            assert_int_equal(looked_for, lacking > 1 ? lacking * WHOLE / PAGE : 0);
            assert_int_equal(fake->reserved, (refused ? 5 : 7 + lacking) * WHOLE);
            expect_as_many_calls_as_segments();
            assert_int_equal(stop(NULL), 0);
        }
    }
}

/* Beside what is free at the end half of one is lacking, and one of that length can go. */
static void short_segments_are_mapped_where_they_are_needed(void **state) {
    (void)state;
    start(4 * GIB, POOL_BARRIER, BLOCKS * EACH);
    for (unsigned i = 0; i < BLOCKS; i++) {
        blocks[i] = get_mapped(EACH);
    }
    uint64_t page = segment_at(blocks[A])->handle;
    finish_all();
    make_free(A), make_free(E);
    assert_int_equal(get_mapped(2 * EACH), blocks[E]);
    assert_int_equal(segment_at(blocks[E] + EACH)->handle, page);
    assert_int_equal(pool->source.counters.driver_frees, 0);
    assert_int_equal(fake->reserves, BLOCKS);
}

/* Two segments can go, and three are needed. */
static void what_was_moved_in_vain_is_counted(void **state) {
    (void)state;
    enum { DOES, MAPS_NOT, HAS_NO_PLACE, UNMAPS_NOT, MEMORY, LIMIT, CASES };
    static const int answers[] = {0, -ERANGE, -ENOMEM, 0, -ENOMEM, -EDQUOT};
    for (unsigned what = DOES; what < CASES; what++) {
        uint64_t at[5], pages[5], block;
        start(64 * WHOLE, POOL_BARRIER, 6 * WHOLE);
        get_whole(at, pages, 5, 5);
        fake->map_code = what == MAPS_NOT ? -EIO : what == HAS_NO_PLACE ? -ENOMEM : 0;
        fake->unmap_code = what == UNMAPS_NOT ? -EIO : 0;
        fake->memory = what == MEMORY ? 5 * WHOLE : fake->memory;
        fake->limit = what == LIMIT ? 5 * WHOLE : 0;
        assert_int_equal(pool_alloc(pool, 3 * WHOLE, &block), answers[what]);
        fake->map_code = fake->unmap_code = 0;
        expect_as_many_calls_as_segments();
        assert_int_equal(stop(NULL), 0);
    }
}

/* Though its work has not finished: it is idle memory still, whether it has got there or not. */
static void what_moved_for_a_growth_that_is_refused_is_not_lost(void **state) {
    (void)state;
    enum { MAPS_NOT, HAS_NO_PAGES, IS_ASKED, CASES };
    for (unsigned what = MAPS_NOT; what < CASES; what++) {
        uint64_t at[6], pages[6], block;
        start(64 * WHOLE, POOL_BARRIER, 6 * WHOLE);
        get_whole(at, pages, 6, 0);
        drop_used(at[1], WHOLE), drop_used(at[3], WHOLE);
        watch();
        look_takes_ns = 1000000000; /* what does not finish is not waited for in earnest */
        look_code = what == IS_ASKED ? -ENOMEM : 0;
        fake->map_code = what == MAPS_NOT ? -EIO : 0;
        fake->memory = what == HAS_NO_PAGES ? 6 * WHOLE : fake->memory;
        fake->wait_code = -EBUSY;
        assert_int_equal(pool_alloc(pool, 5 * WHOLE, &block), what == MAPS_NOT ? -ERANGE : -ENOMEM);
        fake->map_code = fake->wait_code = look_code = 0;
        assert_int_equal(fake->reserved, 6 * WHOLE);
        assert_int_equal(pool->source.large.idle_bytes, 2 * WHOLE);
        expect_as_many_calls_as_segments();
        finish_all();
        get_mapped(2 * WHOLE);
        assert_int_equal(fake->reserved, 6 * WHOLE);
        fake->backend.ops = unwatched;
        assert_int_equal(stop(NULL), 0);
    }
}

static const struct backend_ops *mapping_before;

static int map_no_short_ones(struct backend *backend, uint64_t address, unsigned count,
                             unsigned length, const uint64_t *pages) {
    return length == 2 ? -EIO : mapping_before->map(backend, address, count, length, pages);
}

/* live 8 | 4 | hole 24 | 16 | live 8 | 16 | live 8: of 16 and 4 MiB that move into the hole the second is not mapped. */
static void what_goes_back_in_front_of_what_has_come(void **state) {
    (void)state;
    static const uint64_t parts[] = {8, 4, 24, 16, 8, 16, 8};
    uint64_t at[7], block;
    struct backend_ops failing;
    start(4 * GIB, POOL_BARRIER, 60 * MIB);
    for (unsigned i = 0; i < 7; i++) {
        at[i] = get_mapped(parts[i] * MIB);
        assert_int_equal(at[i], i ? at[i - 1] + parts[i - 1] * MIB : at[0]);
    }
    finish_all();
    drop(at[2]);
    finish_all();
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
    expect_as_many_calls_as_segments();
}

/* Half as long: so more of what is free can go. */
static void segments_are_shorter_once_they_have_been_pinned(void **state) {
    (void)state;
    for (unsigned pinned = 0; pinned < 2; pinned++) {
        start(4 * GIB, POOL_BARRIER, 64 * MIB);
        drop(get_mapped(4 * WHOLE));
        finish_all();
        uint64_t at[8];
        for (unsigned i = 0; i < 8; i++) {
            at[i] = get_mapped(8 * MIB);
        }
        finish_all();
        for (unsigned i = 0; i < 8;
             i += pinned ? 2 : 4) { /* 32 MiB that nothing can be made of, or 16 */
            drop(at[i]);
        }
        finish_all();
        uint64_t first = get_mapped(24 * MIB);
        assert_int_equal(segment_at(first)->bytes, pinned ? WHOLE / 2 : WHOLE);
        assert_int_equal(segment_at(get_mapped(20 * MIB))->bytes, pinned ? WHOLE / 2 : WHOLE);
        assert_int_equal(stop(NULL), 0);
    }
}

/* Of 1024, whatever the growth. */
static void a_large_growth_comes_in_longer_segments(void **state) {
    (void)state;
    for (unsigned more = 0; more < 2; more++) {
        start(64 * GIB, POOL_BARRIER, RELAXED);
        pool->source.remap.size_shift = 2;
        assert_int_equal(segment_at(get(4 * GIB + more))->bytes, 4 * MIB + more * 2 * MIB);
        assert_int_equal(stop(NULL), 0);
    }
}

/* 2 GiB that can go, and a request for three quarters of them that fits nowhere; 4 GiB were live at most. */
static uint64_t ask_for_another_place(void) {
    uint64_t at[4];
    for (unsigned i = 0; i < 4; i++) {
        at[i] = get_mapped(GIB);
    }
    finish_all();
    drop(at[0]), drop(at[2]);
    finish_all();
    lock_acquire(&pool->source.lock);
    peaks_update_all(pool);
    lock_release(&pool->source.lock);
    return at[3];
}

#define PEAK (4 * GIB)
#define SECOND ((uint64_t)1000000000)

static void the_goal_is_raised_where_mapping_takes_too_long(void **state) {
    (void)state;
    const uint64_t share = 3600 * SECOND / REMAP_TIME_SHARE;
    const uint64_t much = 3600 * SECOND / REMAP_TIME_MUCH_SHARE;
    static const struct {
        unsigned parts, then;
        bool is_much;
        uint64_t ahead;
        bool risen, set;
    } cases[] = {
        {0, 0, false, 0, false, false},
        {0, 0, false, 1, false, false},
        {0, 1, false, 2, false, false},
        {0, 0, false, 2, true, false}, /* the peak has risen since */
        {0, 0, false, 2, false, true}, /* the program has said how much it may be */
        {1, 1, false, 2, false, false},
        {1, 1, true, 1, false, false},
        {1, 2, true, 2, false, false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        start(64 * GIB, POOL_BARRIER, cases[i].set ? PEAK + PEAK / VMM_SLACK : 0);
        ask_for_another_place();
        pool->source.remap.slack = PEAK / REMAP_SLACK_STEP * cases[i].parts;
        pool->source.remap.slack_steps = cases[i].parts;
        lock_acquire(&pool->source.lock);
        peaks_update_all(pool);
        lock_release(&pool->source.lock);
        uint64_t goal = pool->source.goal, then = PEAK / REMAP_SLACK_STEP * cases[i].then;
        uint64_t more = then - pool->source.remap.slack;
        assert_in_range(goal, PEAK + PEAK / VMM_SLACK + then - more - MIB,
                        PEAK + PEAK / VMM_SLACK + then - more + MIB);
        pool->source.remap.since_ns = backend_clock(pool->source.backend) - 3600 * SECOND;
        uint64_t most = cases[i].parts == 0 ? REMAP_TIME_MOST_NS : REMAP_TIME_AGAIN_NS;
        pool->source.remap.remap_ns =
            (cases[i].is_much ? much : share) + cases[i].ahead * most * 3 / 4;
        pool->source.remap.peak = cases[i].risen ? PEAK - PEAK / 32 : PEAK;
        uint64_t block = get_mapped(3 * GIB / 2);
        assert_in_range(fake->reserved, goal + more - WHOLE, goal + more + MIB);
        assert_int_equal(pool->source.remap.slack, then);
        assert_int_equal(pool->source.remap.slack_steps, cases[i].then);
        assert_in_range(pool->source.goal, goal + more - MIB, goal + more + MIB);
        assert_in_range(pool->source.remap.peak, PEAK, PEAK + MIB);
        for (unsigned round = 0; round < 3; round++) { /* but by no more than that */
            finish_all();
            drop(block);
            finish_all();
            block = get_mapped((3 + round % 2) * GIB / 2);
        }
        assert_int_equal(pool->source.remap.slack, then);
        assert_true(fake->reserved <= goal + more + MIB);
        assert_int_equal(stop(NULL), 0);
    }
}

/* Though the peak has not risen for long. */
static void take_too_long(void) {
    pool->source.remap.remap_ns = pool->source.remap.peak = UINT64_MAX / 2;
    pool->source.remap.slack_steps = 3; /* one comes on top */
}

/* Not by a part of what was live before that was reset. */
static void the_goal_is_raised_by_a_part_of_the_peak_that_counts(void **state) {
    (void)state;
    start(64 * GIB, POOL_BARRIER, 0);
    uint64_t live = ask_for_another_place();
    take_too_long();
    get_mapped(3 * GIB / 2);
    assert_int_equal(pool->source.remap.slack, PEAK / 16);
    finish_all();
    pool_reset_peaks(pool);
    uint64_t peak = counter_get(&pool->source.counters.allocated.peak);
    assert_int_equal(peak, 7 * GIB / 2);
    assert_int_equal(pool->source.goal, peak + peak / VMM_SLACK + peak / 16);
    drop(live);
    finish_all();
    pool_reset_peaks(pool);
    peak = counter_get(&pool->source.counters.allocated.peak);
    assert_int_equal(peak, 5 * GIB / 2);
    assert_int_equal(pool->source.goal, peak + peak / VMM_SLACK + peak / 16);
    assert_true(pool->source.remap.peak >= PEAK);
    get_mapped(3 * GIB);
    assert_int_equal(pool->source.remap.slack, PEAK / 16);
    assert_in_range(pool->source.remap.peak, 5 * GIB / 2, PEAK - 1);
}

/* What the growth adds to is needed itself, and what is not unmapped would not be if it were shorter. */
static void not_for_what_is_free_and_not_pinned(void **state) {
    (void)state;
    for (unsigned refused = 0; refused < 2; refused++) {
        start(4 * GIB, POOL_BARRIER, 4 * WHOLE);
        uint64_t first = get_mapped(3 * WHOLE / 2);
        get_mapped(WHOLE);
        uint64_t last = get_mapped(3 * WHOLE / 2);
        finish_all();
        drop(last);
        finish_all();
        if (refused) { /* what others reach cannot move instead */
            assert_int_equal(pool_mark_externally_visible(first), 0);
            drop(first);
            finish_all();
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

/* As much is live as was at most. */
static void get_32(uint64_t *at, uint64_t memory) {
    start(memory, POOL_BARRIER, 0);
    for (unsigned i = 0; i < 32; i++) {
        at[i] = get_mapped(PEAK / 32);
    }
    finish_all();
    lock_acquire(&pool->source.lock);
    peaks_update_all(pool);
    lock_release(&pool->source.lock);
}

/* What two of them had, and are no neighbours. */
static void get_for_two(const uint64_t *at, uint64_t bytes) {
    drop(at[0]), drop(at[2]);
    finish_all();
    get_mapped(bytes);
    finish_all();
}

/* And by no more than is lacking; but not above what the driver has refused. */
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

static void there_are_no_more_parts_than_that(void **state) {
    (void)state;
    uint64_t at[32];
    get_32(at, 64 * GIB);
    take_too_long();
    pool->source.remap.slack_steps = REMAP_SLACK_STEPS;
    get_for_two(at, 200 * MIB);
    assert_int_equal(pool->source.remap.slack_steps, REMAP_SLACK_STEPS);
    assert_int_equal(pool->source.remap.slack, PEAK + 200 * MIB - (PEAK + PEAK / VMM_SLACK));
}

/* Nor above what the device has, of which none is asked for in vain. */
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

/* What threads may cache is part of the slack; and what it is beyond that, of a small program alone. */
static void caches_raise_the_budget_of_a_small_program(void **state) {
    (void)state;
    for (uint64_t peak = GIB; peak <= 16 * GIB; peak *= 4) {
        uint64_t slack = peak / VMM_SLACK < BUDGET_FLOOR ? BUDGET_FLOOR : peak / VMM_SLACK;
        start(64 * GIB, POOL_BARRIER, 0);
        counter_set(&pool->source.counters.allocated.peak, peak);
        pool->source.quotas += GIB;
        unsigned awake = pool->source.active_count;
        for (unsigned caches = 2; caches <= 8; caches++) {
            uint64_t most = (caches < 4 ? caches : 4) * 80 * MIB;
            pool->source.active_count = caches;
            peaks_update_all(pool);
            assert_int_equal(pool->source.goal, peak + slack);
            assert_int_equal(pool->source.budget, peak + (slack < most ? most : slack));
        }
        pool->source.quotas -= GIB;
        pool->source.active_count = awake;
        assert_int_equal(stop(NULL), 0);
    }
}

/* One part in REMAP_TIME_SHARE, and REMAP_TIME_MOST_NS; or nothing. */
static void what_mapping_takes_adds_up(void **state) {
    (void)state;
    const uint64_t share = SECOND, each = REMAP_TIME_MOST_NS / 8 * 3;
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

/* An hour without it counts for nothing. */
static void what_mapping_took_is_counted(void **state) {
    (void)state;
    start(64 * GIB, POOL_BARRIER, 0);
    ask_for_another_place();
    pool->source.remap.since_ns -= 3600 * SECOND;
    pool->source.remap.peak = PEAK;
    get_mapped(3 * GIB / 2);
    assert_in_range(pool->source.remap.remap_ns, 1, 60 * SECOND);
}

/* Nor does it make up for what comes after it. */
static void what_mapping_takes_now_is_not_measured_by_the_time_before(void **state) {
    (void)state;
    uint64_t at[32];
    get_32(at, 64 * GIB);
    watch();
    pool->source.remap.peak = PEAK;
    now_ns += 3600 * SECOND;
    for (unsigned i = 0; i < 4; i++) {
        map_takes_ns = 2 * REMAP_TIME_MOST_NS;
        get_for_two(at + 4 * i, 250 * MIB);
        assert_int_equal(pool->source.remap.slack_steps, i);
    }
    fake->backend.ops = unwatched;
}

/* What it has not taken lately may come in a burst. */
static void what_mapping_has_not_taken_is_kept_for_a_while(void **state) {
    (void)state;
    uint64_t at[32];
    get_32(at, 64 * GIB);
    watch();
    pool->source.remap.peak = PEAK;
    pool->source.remap.slack_steps = 1;
    now_ns += 3600 * SECOND;
    for (unsigned i = 0; i < 5; i++) {
        map_takes_ns = REMAP_TIME_KEPT_NS / 10 * 4;
        get_for_two(at + 4 * i, 250 * MIB);
        assert_int_equal(pool->source.remap.slack_steps, i < 3 ? 1 : i - 1);
    }
    fake->backend.ops = unwatched;
}

static void what_was_needed_beside_a_lower_peak_is_not_more_beside_a_higher_one(void **state) {
    (void)state;
    start(64 * GIB, POOL_BARRIER, 0);
    ask_for_another_place();
    pool->source.remap.slack_steps = 10;
    pool->source.remap.peak = PEAK / 2;
    get_mapped(3 * GIB / 2);
    assert_int_equal(pool->source.remap.slack_steps, 5);
    assert_int_equal(pool->source.remap.peak, PEAK);
}

static void the_next_context_begins_anew(void **state) {
    (void)state;
    start(64 * GIB, POOL_BARRIER, 0);
    ask_for_another_place();
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
static void (*in_take)(void); /* called once, when pages are taken for the second time */
static unsigned takes;

static int create_handles(struct backend *backend, unsigned count, unsigned length,
                          uint64_t *pages) {
    void (*call)(void) = ++takes == 2 ? in_take : NULL;
    if (call) {
        in_take = NULL;
        call();
    }
    return fake_ops->create_handles(backend, count, length, pages);
}

static void hook(void (*call)(void)) {
    fake_ops = fake->backend.ops;
    hooked = *fake_ops;
    hooked.create_handles = create_handles;
    fake->backend.ops = &hooked;
    in_take = call;
    takes = 0;
}

static void what_the_driver_has_not_is_refused(void **state) {
    (void)state;
    uint64_t address;
    start(64 * MIB, POOL_BARRIER, RELAXED);
    get_mapped(40 * MIB);
    assert_int_equal(pool_alloc(pool, 25 * MIB, &address), -ENOMEM);
    assert_int_equal(fake->reserved, 40 * MIB);
    check();
    get_mapped(24 * MIB);
    assert_int_equal(stop(NULL), 0);
    start(64 * MIB, POOL_BARRIER, RELAXED);
    fake->limit = 50 * MIB;
    get_mapped(40 * MIB);
    assert_int_equal(pool_alloc(pool, 12 * MIB, &address), -EDQUOT);
    check();
    get_mapped(10 * MIB);
    assert_int_equal(fake->growing, 0);
}

/* What was made of 100 MiB, in segments of 16, goes back: others may have use for it. */
static void what_was_had_in_vain_goes_back(void **state) {
    (void)state;
    uint64_t address;
    start(GIB, POOL_BARRIER, RELAXED);
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

/* But not what was there before, which is as good. */
static void and_no_more_than_that(void **state) {
    (void)state;
    uint64_t address;
    start(4 * GIB, POOL_BARRIER, RELAXED);
    get_mapped(2 * MIB);
    uint64_t end = get_mapped(20 * MIB);
    drop(end);
    finish_all();
    fake->map_code = -EIO;
    assert_int_equal(pool_alloc(pool, 100 * MIB, &address), -ERANGE);
    assert_int_equal(fake->reserved, 22 * MIB);
    assert_int_equal(pool->source.large.free_count, 1); /* no longer held */
    fake->map_code = 0;
    assert_int_equal(get_mapped(20 * MIB), end);
    assert_int_equal(fake->reserved, 22 * MIB);
}

static void what_cannot_be_mapped_is_the_driver_s(void **state) {
    (void)state;
    uint64_t address;
    start(GIB, POOL_BARRIER, RELAXED);
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

static void what_the_driver_will_not_unmap_stays_as_it_was(void **state) {
    (void)state;
    start(4 * GIB, POOL_BARRIER, RELAXED);
    pool->source.decay.tick = 5;
    uint64_t block = get_in_parts(4);
    assert_int_equal(pool_mark_externally_visible(block), 0);
    finish_all();
    drop_used(block, 4 * PART);
    finish_all();
    uint64_t stamp = segment_at(block)->stamp, pages[4];
    for (unsigned i = 0; i < 4; i++) {
        pages[i] = segment_at(block + i * PART)->handle;
    }
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
            assert_int_equal(s->handle, pages[i]);
            assert_int_equal(s->stamp, stamp);
            assert_int_equal(s->since, 5);
            assert_true(s->externally_visible);
        }
        check();
    }
    fake->unmap_code = 0;
    assert_int_equal(get_mapped(4 * PART), block);
    finish_all();
    drop(block);
    finish_all();
    fake->unmap_code = -EIO; /* all but the first */
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

/* Its addresses stay the context's. */
static void what_is_not_unmapped_at_the_end_keeps_its_addresses(void **state) {
    (void)state;
    start(GIB, POOL_BARRIER, RELAXED);
    get_mapped(8 * MIB);
    fake_finish_all(fake);
    fake->unmap_code = -EIO;
    pool_forget(pool); /* the fake would find something mapped there */
    assert_int_equal(fake->reserved, 8 * MIB);
    assert_true(fake->addresses > 0);
    fake->unmap_code = 0;
    fake->reserved = fake->addresses = 0;
    get_mapped(8 * MIB); /* elsewhere */
}

/* ---- meanwhile ---- */

static uint64_t stolen;

static void take_what_is_there(void) {
    assert_int_equal(pool_alloc(pool, 90 * MIB, &stolen), 0);
}

static void free_it(void) {
    drop(stolen);
    finish_all();
}

static void *take_in_a_thread(void *unused) {
    take_what_is_there();
    return unused;
}

static pthread_t other_thread;

static void let_another_one_ask(void) {
    lock_acquire(&pool->source.lock);
    uint64_t largest = arena_largest_free(&pool->source.large),
             idle = pool->source.large.idle_bytes;
    lock_release(&pool->source.lock);
    assert_int_equal(largest, 0); /* 96 MiB are there */
    assert_int_equal(idle, 0);
    assert_int_equal(pthread_create(&other_thread, NULL, take_in_a_thread, NULL), 0);
}

/* In two calls: what the first one brought is not there for others. */
static void who_grows_gets_what_it_has_brought(void **state) {
    (void)state;
    start(4 * GIB, POOL_BARRIER, RELAXED);
    hook(let_another_one_ask);
    uint64_t block = get_mapped(100 * MIB);
    pthread_join(other_thread, NULL);
    assert_int_equal(fake->reserved, 190 * MIB);
    assert_int_equal(stolen, block + 100 * MIB);
    check();
}

/* Whoever waits for the mapper meanwhile finds what another one has brought, or freed. */
static void what_others_have_brought_will_do(void **state) {
    (void)state;
    start(4 * GIB, POOL_BARRIER, RELAXED);
    uint64_t block = get_mapped(90 * MIB);
    finish_all();
    lock_acquire(&pool->source.remap.lock);
    assert_int_equal(pthread_create(&other_thread, NULL, take_in_a_thread, NULL), 0);
    for (bool waits = false; !waits; sched_yield()) {
        lock_acquire(&pool->source.lock);
        waits = pool->source.growing.threads > 0;
        lock_release(&pool->source.lock);
    }
    drop(block);
    finish_all();
    lock_release(&pool->source.remap.lock);
    pthread_join(other_thread, NULL);
    assert_int_equal(stolen, block);
    assert_int_equal(fake->reserved, 90 * MIB);
}

/* While addresses are asked for, and then nothing is lacking. */
static void what_is_freed_meanwhile_will_do(void **state) {
    (void)state;
    start(4 * GIB, POOL_BARRIER, RELAXED);
    fake->next = fake->base + ((uint64_t)64 << 30) - 64 * MIB;
    stolen = get_mapped(64 * MIB);
    finish_all();
    fake->next = fake->base;
    fake->meanwhile = free_it;
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

/* Under way, it is waited for; and nothing is left behind. */
static void the_context_ends_while_the_pool_grows(void **state) {
    (void)state;
    start(4 * GIB, POOL_BARRIER, RELAXED);
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

static void fewer_addresses_are_asked_for_where_they_are_refused(void **state) {
    (void)state;
    uint64_t address;
    start(GIB, POOL_BARRIER, RELAXED);
    fake->next = fake->base + ((uint64_t)64 << 30) - 38 * MIB;
    uint64_t first = get_mapped(20 * MIB);
    assert_int_equal(fake->addresses, 32 * MIB);
    assert_int_equal(pool_alloc(pool, 20 * MIB, &address), -ERANGE);
    assert_int_equal(fake->addresses, 32 * MIB);
    assert_int_equal(get_mapped(12 * MIB), first + 20 * MIB);
    check();
    assert_int_equal(get_mapped(5 * MIB), first + 32 * MIB); /* whole pages of what is needed */
    assert_int_equal(fake->addresses, 38 * MIB);
}

/* By address, whichever came first; and where one begins at the other's end memory goes on. */
static void lines_side_by_side_are_one(void **state) {
    (void)state;
    start(GIB, POOL_BARRIER, RELAXED);
    fake->next = fake->base + ((uint64_t)64 << 30) - 120 * MIB;
    uint64_t one = get_mapped(20 * MIB), other = get_mapped(50 * MIB);
    assert_int_equal(other, one + 64 * MIB);
    assert_int_equal(pool->source.large.va_ranges->base, one);
    assert_int_equal(pool->source.large.va_ranges->next->base, other);
    assert_int_equal(get_mapped(44 * MIB), one + 20 * MIB);
    finish_all();
    drop(other), drop(one), drop(one + 20 * MIB);
    finish_all();
    assert_int_equal(pool->source.large.free_count, 1);
    assert_int_equal(get_mapped(114 * MIB), one);
    assert_int_equal(fake->reserved, 114 * MIB);
}

static void another_line_is_begun_where_one_is_full(void **state) {
    (void)state;
    start(GIB, POOL_BARRIER, RELAXED);
    fake->next = fake->base + ((uint64_t)64 << 30) - 40 * MIB;
    uint64_t high = get_mapped(20 * MIB);
    fake->next = fake->base;
    uint64_t low = get_mapped(100 * MIB);
    assert_int_equal(low, fake->base);
    assert_int_equal(pool->source.large.va_ranges->base, fake->base);
    assert_int_equal(pool->source.large.va_ranges->next->base, high);
    assert_int_equal(pool->source.large.segments->base, low);
    assert_int_equal(fake->addresses, 4 * GIB + 32 * MIB);
    finish_all();
    drop(high);
    finish_all();
    assert_int_equal(get_mapped(24 * MIB), high);           /* the least new memory */
    assert_int_equal(get_mapped(8 * MIB), low + 100 * MIB); /* the lowest place */
    assert_int_equal(get_mapped(9 * MIB), low + 108 * MIB);
    assert_int_equal(fake->reserved, (24 + 100 + 8 + 10) * MIB);
    fake->next = fake->base + 8 * GIB; /* so that all are given back in order */
}

/* ---- long segments ---- */

/* What a GiB comes in: pieces of an eighth, and a short one at its end. */
#define LONG (128 * MIB)
#define SEGMENTS (VMM_HANDLES_FEW + 1)

static void a_large_growth_below_the_budget_takes_few_segments(void **state) {
    (void)state;
    start(64 * GIB, POOL_BARRIER, RELAXED);
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

/* All blocks lie at the end of the last page of a large one that goes. */
static void who_begins_behind_a_large_block_keeps_a_short_segment(void **state) {
    (void)state;
    start(64 * GIB, POOL_BARRIER, RELAXED);
    uint64_t at = get_mapped(GIB - 3 * MIB / 2), next = get_mapped(3 * MIB);
    assert_int_equal(next, at + GIB - 3 * MIB / 2);
    finish_all();
    drop(at);
    finish_all();
    pool_trim(pool, true);
    assert_int_equal(fake->reserved, VMM_HANDLE + PAGE);
}

static void beyond_the_budget_segments_are_short(void **state) {
    (void)state;
    start(64 * GIB, POOL_BARRIER, PAGE);
    get_mapped(GIB);
    assert_int_equal(pool->source.large.segment_count, GIB / VMM_HANDLE);
}

static uint64_t free_gib(void) {
    start(64 * GIB, POOL_BARRIER, RELAXED);
    uint64_t at = get_mapped(GIB);
    drop_used(at, GIB);
    return at;
}

/* All of it stays: what else it will be cut for is not known. */
static void a_long_segment_is_split_for_a_block_in_a_part_of_it(void **state) {
    (void)state;
    uint64_t at = free_gib();
    finish_all();
    assert_int_equal(get_mapped(LONG), at); /* all of one */
    assert_int_equal(pool->source.large.segment_count, SEGMENTS);
    uint64_t block = get_mapped(LONG + 20 * MIB); /* all of the next, and a part of that behind */
    assert_int_equal(block, at + LONG);
    assert_int_equal(segment_at(block)->bytes, LONG);
    assert_int_equal(segment_at(block + LONG)->bytes, VMM_HANDLE);
    assert_int_equal(pool->source.large.segment_count, SEGMENTS - 1 + LONG / VMM_HANDLE);
    assert_int_equal(get_mapped(20 * MIB), block + LONG + 20 * MIB);
    assert_int_equal(pool->source.large.segment_count, SEGMENTS - 1 + LONG / VMM_HANDLE);
    assert_int_equal(fake->reserved, GIB);
    assert_int_equal(pool->source.remap.held_bytes, 0);
    finish_all();
    drop(block);
    finish_all();
    pool_trim(pool, true);
    assert_int_equal(fake->reserved, LONG + 2 * VMM_HANDLE);
}

/* Also one that nobody has taken out of what is pending yet. */
static void what_has_become_usable_is_split_as_well(void **state) {
    (void)state;
    uint64_t at = free_gib(), ticket = pool_sync_begin(pool);
    fake_finish_all(fake);
    pool_sync_end(pool, ticket);
    assert_int_equal(get_mapped(20 * MIB), at);
    assert_int_equal(segment_at(at)->bytes, VMM_HANDLE);
}

/* What is new beyond the budget, and what a long one is split into; half as long once they have been pinned, and so on. */
static void segments_are_as_long_as_what_they_are_made_for_wants(void **state) {
    (void)state;
    static const uint64_t rows[][4] = {{4, 8, 4, 4}, {8, 8, 4, 4}, {9, 16, 8, 4}, {40, 16, 8, 4}};
    for (unsigned i = 0; i < sizeof rows / sizeof *rows; i++) {
        for (unsigned size_shift = 0; size_shift < 3; size_shift++) {
            uint64_t wanted = rows[i][1 + size_shift] * MIB, bytes = rows[i][0] * MIB;
            start(64 * GIB, POOL_BARRIER, PAGE);
            pool->source.remap.size_shift = size_shift;
            uint64_t at = get_mapped(bytes);
            assert_int_equal(segment_at(at)->bytes, min_u64(wanted, round_up(bytes, PAGE)));
            assert_int_equal(stop(NULL), 0);
            at = free_gib();
            finish_all();
            pool->source.remap.size_shift = size_shift;
            assert_int_equal(get_mapped(bytes), at);
            assert_int_equal(segment_at(at)->bytes, wanted);
            assert_int_equal(segment_at(at + LONG - 1)->bytes, wanted);
            assert_int_equal(stop(NULL), 0);
        }
    }
}

/* Of a long one of 512 MiB what such calls make at a time: nobody waits for more of them. */
static void no_more_is_split_at_a_time(void **state) {
    (void)state;
    const uint64_t some = MAP_BATCH * VMM_HANDLE_LEAST;
    start(64 * GIB, POOL_BARRIER, RELAXED);
    uint64_t at = get_mapped(4 * GIB);
    assert_int_equal(segment_at(at)->bytes, 512 * MIB);
    drop_used(at, 4 * GIB);
    finish_all();
    pool->source.remap.size_shift = 2;
    assert_int_equal(get_mapped(4 * MIB), at);
    assert_int_equal(segment_at(at + some - MIB)->bytes, VMM_HANDLE_LEAST);
    assert_int_equal(segment_at(at + some)->bytes, 512 * MIB - some - VMM_HANDLE);
    assert_int_equal(get_mapped(some - 4 * MIB), at + 4 * MIB);
    assert_int_equal(get_mapped(4 * MIB), at + some); /* which is split then */
    assert_int_equal(segment_at(at + some)->bytes, VMM_HANDLE_LEAST);
    assert_int_equal(fake->reserved, 4 * GIB);
}

/* For a page of small blocks, which cannot be in it. */
static void so_is_what_is_left_of_a_long_one(void **state) {
    (void)state;
    const uint64_t bytes = 18 * VMM_HANDLE; /* six long ones */
    start(64 * GIB, POOL_BARRIER, bytes + PAGE);
    uint64_t at = get_mapped(bytes + 512 * KIB);
    get_mapped(MIB + 512 * KIB); /* so that what is short stays */
    finish_all();
    drop(at);
    finish_all();
    assert_int_equal(segment_at(at)->bytes, 3 * VMM_HANDLE);
    get(MIB);
    assert_int_equal(fake->reserved, bytes + 2 * PAGE - VMM_HANDLE);
    assert_int_equal(segment_at(at)->bytes, VMM_HANDLE_SHORT);
}

/* It may not be unmapped under work that reaches it. */
static void it_is_not_split_before_its_work_has_finished(void **state) {
    (void)state;
    uint64_t at = free_gib();
    fake_inside_free(true);
    pool_stamp_in_free(pool);
    fake_inside_free(false);
    lock_acquire(&pool->source.lock);
    sync_barrier_or_wait(&pool->source, epochs_latest_on_time(&pool->source.epochs), false);
    lock_release(&pool->source.lock);
    unsigned unmaps = fake->unmaps;
    assert_int_equal(get(20 * MIB), at);
    lock_acquire(&pool->source.lock); /* nor where another thread has taken what had finished */
    assert_true(remap_split(&pool->source, &pool->source.large, LONG));
    lock_release(&pool->source.lock);
    assert_int_equal(fake->unmaps, unmaps);
    assert_int_equal(pool->source.large.segment_count, SEGMENTS);
}

/* Of the one of which a part has to go the rest stays. */
static void a_long_segment_goes_in_parts(void **state) {
    (void)state;
    uint64_t at[4], more = GIB + 100 * MIB;
    start(64 * GIB, POOL_BARRIER, 0);
    for (unsigned i = 0; i < 4; i++) {
        at[i] = get_mapped(GIB);
    }
    drop(at[1]);
    finish_all();
    lock_acquire(&pool->source.lock);
    pool->source.remap.slack = 64 * MIB;
    pool->source.remap.slack_steps = 1;
    peaks_update_all(pool);
    lock_release(&pool->source.lock);
    uint64_t budget = budget_with(&pool->source, more);
    assert_in_range(fake->reserved + more - budget, 6 * 128 * MIB + 1, 7 * 128 * MIB - 17 * MIB);
    get_mapped(more);
    assert_in_range(fake->reserved, budget - VMM_HANDLE + 1, budget);
    assert_int_equal(segment_at(at[1])->bytes,
                     LONG); /* its short end has moved, the others went from there */
    assert_int_equal(segment_at(at[1] + LONG)->bytes, VMM_HANDLE);
    assert_int_equal(counter_get(&pool->source.counters.driver_frees), 7);
    assert_int_equal(pool->source.remap.held_bytes, 0);
}

static void where_the_driver_has_no_more_what_was_split_is_gone(void **state) {
    (void)state;
    uint64_t at = free_gib();
    finish_all();
    watch();
    fake->map_code = -ENOMEM;
    uint64_t block = get(20 * MIB);
    fake->map_code = 0;
    assert_true(block >= at);
    assert_int_equal(fake->reserved, GIB - 128 * MIB);
    fake->backend.ops = unwatched;
    check();
}

static void one_that_the_driver_keeps_is_used_as_it_is(void **state) {
    (void)state;
    uint64_t at = free_gib();
    finish_all();
    fake->unmap_code = -EBUSY;
    assert_int_equal(get_mapped(20 * MIB), at);
    fake->unmap_code = 0;
    assert_int_equal(pool->source.large.segment_count, SEGMENTS);
}

/* ---- reached from outside ---- */

static bool is_reached(uint64_t address) {
    return segment_at(address)->externally_visible;
}

static void all_segments_of_a_block_are_reached(void **state) {
    (void)state;
    start(4 * GIB, POOL_BARRIER, RELAXED);
    uint64_t base = PARTS(5);
    get_mapped(5 * MIB);
    uint64_t block = get_mapped(8 * MIB);
    assert_int_equal(block, base + 5 * MIB);
    assert_int_equal(pool_mark_externally_visible(block + 2 * MIB), 0);
    for (unsigned i = 0; i < 5; i++) {
        assert_int_equal(is_reached(base + i * PART), i > 0 && i < 4);
    }
}

/* Cut from what was exported, with all of it, its beginning or its end. */
static void nor_is_a_later_block_there_cached_or_handed_on_early(void **state) {
    (void)state;
    enum { ALL, BEGINNING, END, PLACES };
    for (unsigned place = 0; place < PLACES; place++) {
        start(64 * GIB, POOL_BARRIER, RELAXED);
        drop(get_mapped(100 * MIB));
        finish_all();
        let_hold(64 * MIB);
        struct segment *s = pool->source.large.segments, *marked = place == END ? s->next : s;
        uint64_t all = place == ALL ? s->bytes - 2 * MIB : s->bytes - 512 * KIB;
        get_mapped(all);
        marked->externally_visible = true;
        uint64_t block = get_mapped(MIB + 512 * KIB);
        finish_all();
        assert_int_equal(block, s->base + all);
        assert_int_equal(block + MIB + 512 * KIB > s->next->base, place != ALL);
        uint64_t held = cache_mine(pool)->bytes;
        drop_used(block, MIB + 512 * KIB);
        assert_int_equal(cache_mine(pool)->bytes, held);
        fake_inside_free(true);
        pool_stamp_in_free(pool);
        fake_inside_free(false);
        lock_acquire(&pool->source.lock);
        sync_barrier_or_wait(&pool->source, epochs_latest_on_time(&pool->source.epochs),
                             false); /* a barrier is not enough */
        pending_release_safe(&pool->source);
        lock_release(&pool->source.lock);
        assert_ptr_equal(pool->source.pending[REACH_EXTERNAL].head, page_map_start(block));
        finish_all();
        assert_null(pool->source.pending[REACH_EXTERNAL].head);
        assert_int_equal(get_mapped(MIB + 512 * KIB), block);
        assert_int_equal(stop(NULL), 0);
    }
}

/* ---- loans ---- */

static void named(const struct pool_exported *loan, uint64_t address) {
    for (unsigned i = 0; i < loan->count; i++) {
        assert_int_equal(fake_physical(fake, address + i * loan->length * PAGE),
                         fake->base + loan->handle[i] * PAGE);
    }
}

static void a_block_names_all_segments_it_lies_in(void **state) {
    (void)state;
    start(4 * GIB, POOL_BARRIER, RELAXED);
    struct pool_exported loan;
    static const uint64_t parts[] = {PART, PART, PART, PART, PART,    6 * MIB,
                                     PART, PART, PART, PART, 6 * MIB, PART};
    uint64_t base = free_in_parts(parts, 12);
    uint64_t in_front = get_mapped(3 * MIB), block = get_mapped(44 * MIB); /* not in the last */
    assert_int_equal(in_front, base);
    assert_int_equal(block, base + 3 * MIB);
    uint64_t id = pool_block_id(block);
    assert_int_equal(pool_export(block, id, 0, &loan), -ENOENT); /* not reached */
    assert_int_equal(pool_mark_externally_visible(block), 0);
    assert_int_equal(pool_export(block, id + 1, 0, &loan), -ENOENT);
    assert_int_equal(pool_export(block + 4096, id, 0, &loan), -ENOENT);
    /* where it begins, how many follow, how long each is, in pages */
    static const uint32_t rows[][3] = {{0, 5, 2},  {2, 4, 2},  {8, 1, 2}, {10, 1, 3},
                                       {13, 4, 2}, {19, 1, 2}, {21, 1, 3}};
    for (unsigned i = 0; i < sizeof rows / sizeof *rows; i++) {
        assert_int_equal(pool_export(block, id, rows[i][0], &loan), 0);
        assert_int_equal(loan.count, rows[i][1]);
        assert_int_equal(loan.length, rows[i][2]);
        assert_int_equal(loan.offset, 3 * MIB);
        assert_int_equal(loan.bytes, 44 * MIB);
        assert_int_equal(loan.pages, 24);
        assert_false(lock_try(&pool->source.remap.lock)); /* so nothing goes back */
        named(&loan, base + rows[i][0] * PAGE);
        pool_export_end(&loan);
    }
    static const uint32_t none[] = {1, 3, 9, 11, 12, 14, 22, 23, 24, 26, UINT32_MAX};
    for (unsigned i = 0; i < sizeof none / sizeof *none; i++) {
        assert_int_equal(pool_export(block, id, none[i], &loan), -EINVAL);
    }
    assert_true(lock_try(&pool->source.remap.lock));
    lock_release(&pool->source.remap.lock);
}

/* Not those behind it, though they are as long. */
static void and_only_those(void **state) {
    (void)state;
    start(4 * GIB, POOL_BARRIER, RELAXED);
    struct pool_exported loan;
    PARTS(4);
    uint64_t block = get_mapped(2 * PART), other = get_mapped(2 * PART);
    for (uint64_t at = block; at <= other; at += other - block) {
        assert_int_equal(pool_mark_externally_visible(at), 0);
        assert_int_equal(pool_export(at, pool_block_id(at), 0, &loan), 0);
        assert_int_equal(loan.count, 2);
        assert_int_equal(loan.pages, 4);
        named(&loan, at);
        pool_export_end(&loan);
        assert_int_equal(pool_export(at, pool_block_id(at), 4, &loan), -EINVAL);
    }
}

#define LINE(name) cmocka_unit_test_setup_teardown(name, with_pages, stop)

int main(void) {
    const struct CMUnitTest tests[] = {
        LINE(a_request_grows_by_what_it_lacks_at_the_end),
        LINE(what_fits_elsewhere_leaves_the_end_alone),
        LINE(a_longer_range_is_taken_before_the_end),
        LINE(a_hole_is_filled_from_its_left),
        LINE(a_hole_is_filled_from_its_right),
        LINE(from_the_side_that_lacks_less),
        LINE(a_hole_is_filled_wholly_with_what_is_free_on_both_sides),
        LINE(what_is_longer_than_that_goes_to_the_end),
        LINE(the_lowest_place_among_equals),
        LINE(where_the_least_is_lacking),
        LINE(in_front_of_all),
        LINE(a_block_over_several_segments_and_its_free),
        LINE(a_segment_inside_what_is_free_goes_back),
        LINE(over_the_budget_what_is_idle_goes_back_first),
        LINE(what_has_finished_is_not_waited_for),
        LINE(nor_is_what_lies_beside_the_place_taken_for_it),
        LINE(below_it_nothing_does),
        LINE(what_has_not_finished_is_waited_for_if_it_suffices),
        LINE(no_more_is_waited_for_than_a_growth_adds),
        LINE(what_lies_beside_the_place_does_not_count),
        LINE(what_cannot_be_waited_for_does_not_go),
        LINE(what_is_free_beside_the_place_stays),
        LINE(on_both_sides_of_it),
        LINE(but_not_on_a_side_that_is_not_needed),
        LINE(pages_of_small_blocks_go_back_for_large_ones),
        LINE(what_is_pending_is_put_in_order_ahead),
        LINE(what_goes_back_is_mapped_where_it_is_needed),
        LINE(whole_though_not_all_of_it_is_needed),
        LINE(what_has_not_finished_moves_at_once),
        LINE(and_is_unmapped_when_it_has),
        LINE(what_moved_goes_back_whole),
        LINE(what_moved_goes_back_whole_in_one_go),
        LINE(what_moved_goes_back_when_its_work_ends_during_a_release),
        LINE(what_cannot_be_unmapped_stays_an_alias),
        LINE(what_others_reach_moves_nowhere),
        LINE(as_far_as_aliases_can_be_kept),
        LINE(no_more_is_ready_than_can_move_at_once),
        LINE(what_lies_beside_a_hole_moves_first),
        LINE(what_moved_for_a_growth_that_is_refused_is_not_lost),
        LINE(what_was_moved_in_vain_is_counted),
        LINE(what_goes_back_in_front_of_what_has_come),
        LINE(short_segments_are_mapped_where_they_are_needed),
        LINE(no_more_is_looked_for_than_is_lacking),
        LINE(segments_are_shorter_once_they_have_been_pinned),
        LINE(a_large_growth_comes_in_longer_segments),
        LINE(not_for_what_is_free_and_not_pinned),
        LINE(the_goal_is_raised_where_mapping_takes_too_long),
        LINE(the_goal_is_not_raised_above_the_device),
        LINE(the_goal_is_raised_by_what_is_lacking),
        LINE(there_are_no_more_parts_than_that),
        LINE(the_goal_is_raised_by_a_part_of_the_peak_that_counts),
        LINE(what_mapping_took_is_counted),
        LINE(what_mapping_takes_now_is_not_measured_by_the_time_before),
        LINE(what_mapping_has_not_taken_is_kept_for_a_while),
        LINE(what_was_needed_beside_a_lower_peak_is_not_more_beside_a_higher_one),
        LINE(the_next_context_begins_anew),
        LINE(caches_raise_the_budget_of_a_small_program),
        LINE(what_mapping_takes_adds_up),
        LINE(what_the_driver_has_not_is_refused),
        LINE(what_was_had_in_vain_goes_back),
        LINE(and_no_more_than_that),
        LINE(what_cannot_be_mapped_is_the_driver_s),
        LINE(what_the_driver_will_not_unmap_stays_as_it_was),
        LINE(what_is_not_unmapped_at_the_end_keeps_its_addresses),
        LINE(who_grows_gets_what_it_has_brought),
        LINE(what_others_have_brought_will_do),
        LINE(what_is_freed_meanwhile_will_do),
        LINE(the_context_ends_while_the_pool_grows),
        LINE(fewer_addresses_are_asked_for_where_they_are_refused),
        LINE(lines_side_by_side_are_one),
        LINE(another_line_is_begun_where_one_is_full),
        LINE(a_large_growth_below_the_budget_takes_few_segments),
        LINE(who_begins_behind_a_large_block_keeps_a_short_segment),
        LINE(beyond_the_budget_segments_are_short),
        LINE(a_long_segment_is_split_for_a_block_in_a_part_of_it),
        LINE(what_has_become_usable_is_split_as_well),
        LINE(segments_are_as_long_as_what_they_are_made_for_wants),
        LINE(no_more_is_split_at_a_time),
        LINE(so_is_what_is_left_of_a_long_one),
        LINE(it_is_not_split_before_its_work_has_finished),
        LINE(a_long_segment_goes_in_parts),
        LINE(one_that_the_driver_keeps_is_used_as_it_is),
        LINE(where_the_driver_has_no_more_what_was_split_is_gone),
        LINE(all_segments_of_a_block_are_reached),
        LINE(nor_is_a_later_block_there_cached_or_handed_on_early),
        LINE(a_block_names_all_segments_it_lies_in),
        LINE(and_only_those),
    };
    return cmocka_run_group_tests_name("line", tests, NULL, NULL);
}
