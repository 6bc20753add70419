/* Extents: what a growing program gets in one piece, who gets it next, and when it goes for pages. */
#include "pool_bench.h"

#include "pool/address.h"
#include "pool/extent.h"

#define PAGE (2 * MIB)
#define WHOLE (DECAY_TICKS + 1) /* ticks, after which what was freed before them has aged */

static int with_pages(void **state) {
    (void)state;
    maps_pages = true;
    return 0;
}

static void finish_all(void) {
    uint64_t ticket = pool_sync_begin(pool);
    fake_finish_all(fake);
    pool_sync_end(pool, ticket);
}

/* Used by work that is still running when it is freed. */
static void drop_used(uint64_t address, uint64_t bytes) {
    fake_reach(fake, address, bytes, 0, fake_submit(fake, 0));
    drop(address);
}

static const struct window *window_at(uint64_t address) {
    const struct window *window = pool->layouts.windows;
    while (window && window->segment.base != address) {
        window = window->next_of_all;
    }
    assert_non_null(window);
    return window;
}

static uint32_t extent_at(uint64_t address) {
    return window_at(address)->extent_slots;
}

static void a_growing_program_asks_once_for_each_block(void **state) {
    (void)state;
    start(4 * GIB, POOL_BARRIER, RELAXED);
    uint64_t one = get(GIB), other = get(100 * MIB - 5);
    assert_int_equal(fake->reserves, 2);
    assert_int_equal(fake_books(pool).driver_allocs, 2);
    assert_int_equal(fake->reserved, GIB + 100 * MIB);
    assert_int_equal(extent_at(one), 512);
    assert_int_equal(extent_at(other), 50);
    check();
    uint64_t small = get(3 * PAGE); /* in pages: others have more use for them */
    assert_int_equal(extent_at(small), 0);
}

/* Beyond the budget, too, unless enough lies idle. */
static void it_does_so_beyond_its_budget(void **state) {
    (void)state;
    start(4 * GIB, POOL_BARRIER, TIGHT);
    uint64_t one = get(100 * MIB), other = get(300 * MIB);
    assert_int_equal(extent_at(one), 50);
    assert_int_equal(extent_at(other), 150);
    drop(one);
    finish_all();
    uint64_t third = get(600 * MIB);
    assert_int_equal(extent_at(third), 0); /* a sixth of it does */
    assert_int_equal(fake->reserved, 900 * MIB);
    check();
}

static void it_is_had_again_by_blocks_of_its_size_and_longer_ones(void **state) {
    (void)state;
    start(GIB, POOL_BARRIER, RELAXED);
    uint64_t block = get(65 * MIB); /* in a window of 36 slots, of which it has 33 */
    drop(block);
    assert_int_equal(get(66 * MIB), block);
    drop(block);
    assert_int_equal(fake->reserves, 1);
    assert_int_not_equal(get(64 * MIB), block);
    check();
    finish_all();
    assert_int_equal(get(72 * MIB), block); /* with three pages more */
    assert_int_equal(extent_at(block), 33);
    assert_int_equal(fake->reserved, (36 + 32) * PAGE);
    fake_reach(fake, block, 72 * MIB, 0, fake_submit(fake, 0)); /* all of it is mapped */
    check();
}

/* Another block wants the memory: it goes to the driver when its work has finished, and as much as is lacking comes. */
static void it_is_dissolved_for_memory_elsewhere(void **state) {
    (void)state;
    start(4 * GIB, POOL_BARRIER, 100 * MIB);
    uint64_t block = get(100 * MIB);
    drop(block);
    finish_all();
    fake->reserved_peak = 0;
    uint64_t other = get(60 * MIB);
    assert_int_equal(fake->reserved, 60 * MIB);
    assert_int_equal(fake->reserved_peak, 60 * MIB);
    assert_int_equal(extent_at(other), 0);
    assert_int_equal(extent_at(block), 0);
    check();
    uint64_t third = get(30 * MIB); /* below the peak only pages are made from now on */
    assert_int_equal(extent_at(third), 0);
    uint64_t fourth = get(80 * MIB); /* beyond it there is no budget to tell */
    assert_int_equal(fake->reserved, 170 * MIB);
    drop(other), drop(third), drop(fourth);
    finish_all();
    assert_int_equal(get(100 * MIB), block); /* of the fourth no more comes than is lacking */
    assert_int_equal(fake->reserved, 100 * MIB);
    check();
}

/* Else the fake finds it unmapped under work that reaches it. */
static void not_before_its_work_has_finished(void **state) {
    (void)state;
    start(160 * MIB, POOL_BARRIER, 100 * MIB);
    uint64_t block = get(100 * MIB);
    drop_used(block, 100 * MIB);
    unsigned waits = fake->waits;
    get(40 * MIB); /* near the budget that is waited for */
    assert_int_equal(extent_at(block), 0);
    assert_int_not_equal(fake->waits, waits);
    assert_int_equal(fake->reserved, 40 * MIB);
    check();
}

/* Where nothing can be waited for it is passed by. */
static void until_then_nobody_finds_it(void **state) {
    (void)state;
    start(GIB, POOL_BARRIER, RELAXED);
    pool->config.decays = true;
    uint64_t block = get(100 * MIB);
    drop(block);
    finish_all();
    get(100); /* has the pool look */
    struct layouts *layouts = &pool->layouts;
    uint64_t stamp = window_at(block)->segment.stamp;
    bool waits = false;
    assert_null(extents_pick(layouts, stamp - 1));
    assert_null(extents_pick_older(layouts, stamp - 1));
    assert_int_equal(extents_count_finished(layouts, stamp - 1), 0);
    assert_ptr_equal(extents_pick(layouts, stamp), window_at(block));
    assert_int_equal(extents_count_finished(layouts, stamp), 50);
    assert_int_equal(extents_stamp(layouts, 1), stamp);
    layouts->tick += WHOLE;
    assert_null(extents_pick_aged(layouts, stamp - 1, &waits));
    assert_true(waits);
    assert_ptr_equal(extents_pick_aged(layouts, stamp, &waits), window_at(block));
}

static void above_the_peak_extents_are_made_again(void **state) {
    (void)state;
    start(4 * GIB, POOL_BARRIER, 400 * MIB);
    drop(get(100 * MIB));
    finish_all();
    uint64_t first = get(310 * MIB); /* over the budget without the first */
    assert_true(pool->layouts.dissolved);
    assert_int_equal(extent_at(first), 0);
    uint64_t second = get(50 * MIB), third = get(38 * MIB);
    assert_int_equal(extent_at(second) + extent_at(third), 19 + 25);
    check();
}

/* What has been idle for the longest goes first, be it an extent or pages. */
static void the_older_one_goes(void **state) {
    (void)state;
    for (unsigned extent_first = 0; extent_first < 2; extent_first++) {
        start(4 * GIB, POOL_BARRIER, 72 * MIB);
        uint64_t pages[10], block;
        for (unsigned i = 0; i < 10; i++) {
            pages[i] = get(3 * MIB);
        }
        block = get(32 * MIB);
        assert_int_equal(extent_at(block), 16);
        if (extent_first) {
            drop(block);
            finish_all();
        }
        for (unsigned i = 0; i < 10; i++) {
            drop(pages[i]);
            finish_all();
        }
        if (!extent_first) {
            drop(block);
            finish_all();
        }
        get(20 * MIB);
        assert_int_equal(extent_at(block), extent_first ? 0 : 16);
        check();
        assert_int_equal(stop(NULL), 0);
    }
}

static void what_something_outside_reaches_goes_whole_to_the_driver(void **state) {
    (void)state;
    start(4 * GIB, POOL_BARRIER, 100 * MIB);
    uint64_t block = get(65 * MIB);
    assert_int_equal(pool_mark_reached_from_outside(block), 0);
    struct pool_loan loan;
    assert_int_equal(pool_lend(block, pool_block_id(block), 0, &loan), 0);
    assert_int_equal(loan.count, 1);
    assert_int_equal(loan.length, 33);
    assert_int_equal(loan.pages, 33);
    pool_lend_end(&loan);
    assert_int_equal(pool_lend(block, pool_block_id(block), 1, &loan), -EINVAL);
    drop(block);
    finish_all();
    check();
    get(90 * MIB); /* not in its memory */
    assert_int_equal(extent_at(block), 33);
    assert_int_equal(get(40 * MIB), block); /* which is handed out there */
    assert_int_equal(pool_mark_reached_from_outside(block), 0);
    assert_int_equal(pool_lend(block, pool_block_id(block), 0, &loan), 0);
    assert_int_equal(loan.pages, 33); /* nobody can map a part */
    pool_lend_end(&loan);
    drop(block);
    finish_all();
    check();
    assert_int_equal(pool_trim(pool, true), 0);
    assert_int_equal(fake->reserved, 90 * MIB);
    assert_int_equal(extent_at(block), 0);
    check();
}

/* Longer than its extent: the pages go first, the extent last. */
static void kept_with_pages_behind_it(void **state) {
    (void)state;
    start(4 * GIB, POOL_BARRIER, RELAXED);
    uint64_t block = get(65 * MIB);
    drop(block);
    finish_all();
    assert_int_equal(get(72 * MIB), block);
    assert_int_equal(pool_mark_reached_from_outside(block), 0);
    struct pool_loan loan;
    assert_int_equal(pool_lend(block, pool_block_id(block), 33, &loan), 0);
    assert_int_equal(loan.count, 3);
    assert_int_equal(loan.length, 1);
    pool_lend_end(&loan);
    drop(block);
    finish_all();
    check();
    assert_int_equal(pool_trim(pool, true), 0);
    assert_int_equal(fake->reserved, 0);
    check();
    assert_int_equal(get(72 * MIB) % PAGE, 0);
}

static void what_cannot_be_mapped_goes_back(void **state) {
    (void)state;
    start(GIB, POOL_BARRIER, RELAXED);
    uint64_t block = 0;
    fake->map_code = -EIO;
    assert_int_equal(pool_alloc(pool, 100 * MIB, &block), -ERANGE);
    assert_int_equal(fake->reserved, 0);
    check();
    fake->map_code = 0;
    block = get(100 * MIB);
    assert_int_equal(extent_at(block), 50);
    check();
}

/* Free or kept, it is where it was. */
static void what_the_driver_will_not_unmap_stays(void **state) {
    (void)state;
    start(4 * GIB, POOL_BARRIER, 200 * MIB);
    uint64_t block = get(100 * MIB), exported = get(80 * MIB);
    assert_int_equal(pool_mark_reached_from_outside(exported), 0);
    drop(block), drop(exported);
    finish_all();
    fake->unmap_code = -EIO;
    pool_trim(pool, true);
    assert_int_equal(fake->reserved, 180 * MIB);
    assert_int_equal(fake_books(pool).reserved.current, 180 * MIB);
    check();
    uint64_t other = get(60 * MIB);
    assert_int_equal(extent_at(block), 50);
    assert_int_equal(extent_at(exported), 40);
    assert_int_equal(get(100 * MIB), block);
    check();
    drop(block), drop(other);
    finish_all();
    fake->unmap_code = 0;
    assert_int_equal(pool_trim(pool, true), 0);
    assert_int_equal(fake->reserved, 0);
    check();
}

static void refused_in_one_piece_it_comes_in_pages(void **state) {
    (void)state;
    start(GIB, POOL_BARRIER, RELAXED);
    fake->refusals = 1;
    fake->refusal = -ENOMEM;
    uint64_t block = get(100 * MIB);
    assert_int_equal(extent_at(block), 0);
    assert_int_equal(fake->reserved, 100 * MIB);
    check();
}

static void it_ages_as_pages_do(void **state) {
    (void)state;
    start(GIB, POOL_BARRIER, RELAXED);
    pool->config.decays = true;
    uint64_t live = get(40 * MIB);
    drop(get(100 * MIB));
    finish_all();
    for (unsigned i = 0; i < WHOLE; i++) {
        assert_int_equal(fake->reserved, 140 * MIB);
        pool_tick(pool);
        while (pool_decay(pool)) {
        }
    }
    assert_int_equal(fake->reserved, 40 * MIB);
    assert_false(pool->layouts.dissolved);
    check();
    uint64_t again = get(100 * MIB); /* nobody wanted it elsewhere: in one piece */
    assert_int_equal(extent_at(again), 50);
    assert_int_equal(extent_at(live), 20);
    drop_used(again, 100 * MIB);
    for (unsigned i = 0; i < 2 * WHOLE; i++) {
        pool_tick(pool);
        while (pool_decay(pool)) {
        }
    }
    assert_int_equal(fake->reserved, 140 * MIB); /* its work runs */
    fake_finish_one(fake, 0);
    for (unsigned i = 0; i < 2 * WHOLE; i++) {
        pool_tick(pool);
        while (pool_decay(pool)) {
        }
    }
    assert_int_equal(fake->reserved, 40 * MIB);
    check();
}

/* Frozen, an extent keeps its window like any page, and goes to the driver where memory is short. */
static void frozen_it_is_had_where_it_lies(void **state) {
    (void)state;
    start(4 * GIB, POOL_BARRIER, 100 * MIB);
    uint64_t block = get(100 * MIB);
    drop(block);
    finish_all();
    fake->frozen = true;
    assert_int_equal(get(100 * MIB), block);
    drop(block);
    finish_all();
    uint64_t other = get(60 * MIB);
    assert_int_not_equal(other, block);
    assert_true(fake->reserved <= 160 * MIB);
    check();
}

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(a_growing_program_asks_once_for_each_block),
        TEST(it_does_so_beyond_its_budget),
        TEST(it_is_had_again_by_blocks_of_its_size_and_longer_ones),
        TEST(it_is_dissolved_for_memory_elsewhere),
        TEST(not_before_its_work_has_finished),
        TEST(until_then_nobody_finds_it),
        TEST(above_the_peak_extents_are_made_again),
        TEST(the_older_one_goes),
        TEST(what_something_outside_reaches_goes_whole_to_the_driver),
        TEST(kept_with_pages_behind_it),
        TEST(what_cannot_be_mapped_goes_back),
        TEST(what_the_driver_will_not_unmap_stays),
        TEST(refused_in_one_piece_it_comes_in_pages),
        TEST(it_ages_as_pages_do),
        TEST(frozen_it_is_had_where_it_lies),
    };
    return cmocka_run_group_tests(tests, with_pages, NULL);
}
