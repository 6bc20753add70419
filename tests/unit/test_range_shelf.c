/*
 * Large blocks on their way from a thread that only frees to one that only allocates: they are handed
 * out when their work is past and not before, and what waits for a taker is bounded and given up
 * when memory is short.
 */
#include "handover.h"

static void what_one_thread_frees_another_gets(void **state) {
    (void)state;
    start(4 * GIB, POOL_BARRIER, RELAXED);
    keep_large_blocks();
    hand_over(11, 3 * MIB);
    assert_int_equal(waiting_shelf()->range_bytes, 30 * MIB);
    fake_finish_all(fake);
    uint64_t reserved = fake->reserved;
    assert_true(was_freed(get(3 * MIB)));
    check();
    assert_int_equal(waiting_shelf()->range_bytes, 0); /* all of it: this thread frees nothing */
    for (int i = 0; i < 9; i++) {
        assert_true(was_freed(get(3 * MIB)));
    }
    assert_int_equal(fake->reserved, reserved);
    check();
}

static void a_shelved_range_waits_for_its_work(void **state) {
    (void)state;
    start(4 * GIB, POOL_BARRIER, RELAXED);
    keep_large_blocks();
    hand_over(11, 3 * MIB);
    for (int i = 0; i < 4; i++) {
        assert_false(was_freed(get(3 * MIB)));
    }
    assert_int_equal(waiting_shelf()->range_bytes, 30 * MIB);
    check();
}

static void nor_is_a_batch_taken_along_before_its_own_is(void **state) {
    (void)state;
    start(4 * GIB, POOL_BARRIER, RELAXED);
    keep_large_blocks();
    hand_over(11, 3 * MIB);
    fake_finish_all(fake);
    waiting_shelf()->range_batches[2].stamp += 100; /* as if one of it had been freed much later */
    assert_true(was_freed(get(3 * MIB)));
    assert_int_equal(cache_mine(pool)->large_bytes, 9 * MIB);
    assert_int_equal(waiting_shelf()->range_bytes, 18 * MIB);
    check();
}

static void a_thread_that_frees_too_has_room_left_for_that(void **state) {
    (void)state;
    start(4 * GIB, POOL_BARRIER, RELAXED);
    keep_large_blocks();
    uint64_t own = get(6 * MIB);
    hand_over(11, 3 * MIB);
    drop(own);
    fake_finish_all(fake);
    assert_true(was_freed(get(3 * MIB)));
    const struct cache *cache = cache_mine(pool);
    assert_true(cache->large_bytes > 6 * MIB && cache->large_bytes <= 24 * MIB);
    assert_int_equal(cache->large_bytes + waiting_shelf()->range_bytes, 6 * MIB + 27 * MIB);
    assert_false(cache->large_freed); /* until the next free */
    check();
}

static void a_thread_without_room_takes_just_the_one(void **state) {
    (void)state;
    start(4 * GIB, POOL_BARRIER, RELAXED);
    keep_large_blocks();
    uint64_t own[3] = {get(8 * MIB), get(8 * MIB), get(8 * MIB)};
    hand_over_mixed(15, 3 * MIB, 2, MIB + 512 * KIB);
    for (int i = 0; i < 3; i++) {
        drop(own[i]);
    }
    fake_finish_all(fake);
    uint64_t waiting = waiting_shelf()->range_bytes;
    assert_true(was_freed(get(3 * MIB)));
    assert_int_equal(waiting_shelf()->range_bytes, waiting - 3 * MIB);
    check();
}

static void only_a_range_that_fits_is_taken(void **state) {
    (void)state;
    start(4 * GIB, POOL_BARRIER, RELAXED);
    keep_large_blocks();
    hand_over(11, 3 * MIB);
    fake_finish_all(fake);
    static const uint64_t others[] = {3 * MIB + 512, 2 * MIB, 6 * MIB, 9 * MIB};
    for (int i = 0; i < 4; i++) {
        get(others[i]);
        assert_int_equal(waiting_shelf()->range_bytes, 30 * MIB);
    }
    assert_true(was_freed(get(3 * MIB - 512)));
    assert_int_equal(stop(NULL), 0);
    start(4 * GIB, POOL_BARRIER, RELAXED);
    keep_large_blocks();
    hand_over_mixed(10, 3 * MIB, 2, 5 * MIB);
    fake_finish_all(fake);
    uint64_t waiting = waiting_shelf()->range_bytes;
    assert_true(waiting > 20 * MIB);
    get(3 * MIB + 512); /* one too small, the other too large */
    assert_int_equal(waiting_shelf()->range_bytes, waiting);
    check();
}

static void ranges_on_a_shelf_are_bounded(void **state) {
    (void)state;
    start(4 * GIB, POOL_BARRIER, RELAXED);
    keep_large_blocks();
    for (int i = 0; i < 3; i++) {
        hand_over(32, 2 * MIB - i * 64 * KIB);
        assert_true(waiting_shelf()->range_bytes <= 32 * MIB);
    }
    assert_true(waiting_shelf()->range_bytes > 16 * MIB);
}

static void a_thread_alone_has_no_range_shelf(void **state) {
    (void)state;
    start(4 * GIB, POOL_BARRIER, RELAXED);
    keep_large_blocks();
    count = 32;
    for (unsigned i = 0; i < count; i++) {
        blocks[i] = get(3 * MIB);
    }
    for (unsigned i = 0; i < count; i++) {
        drop(blocks[i]);
    }
    assert_int_equal(waiting_shelf()->range_bytes, 0);
    check();
}

static void shelved_ranges_are_given_up_ahead_of_growing(void **state) {
    (void)state;
    start(4 * GIB, POOL_BARRIER, TIGHT);
    keep_large_blocks();
    hand_over(11, 3 * MIB);
    assert_true(waiting_shelf()->range_bytes > 0);
    fake_finish_all(fake);
    uint64_t reserved = fake->reserved;
    for (int i = 0; i < 20; i++) {
        get(MIB + 512 * KIB); /* half of one of those: none fits */
    }
    assert_int_equal(fake->reserved, reserved);
    assert_int_equal(waiting_shelf()->range_bytes, 0);
    check();
}

static void shelved_ranges_are_given_up_when_the_device_is_full(void **state) {
    (void)state;
    start(64 * MIB, POOL_BARRIER, RELAXED);
    keep_large_blocks();
    hand_over(12, 4 * MIB);
    assert_true(waiting_shelf()->range_bytes > 0);
    fake_finish_all(fake);
    for (int i = 0; i < 60; i++) {
        get(MIB); /* small ones, which live elsewhere */
    }
    assert_int_equal(waiting_shelf()->range_bytes, 0);
    check();
}

static void shelved_ranges_are_forgotten_with_the_context(void **state) {
    (void)state;
    start(4 * GIB, POOL_BARRIER, RELAXED);
    keep_large_blocks();
    hand_over(11, 3 * MIB);
    pool_forget(pool);
    check();
    assert_int_equal(waiting_shelf()->range_bytes, 0);
    fake_finish_all(fake);
    assert_false(was_freed(get(3 * MIB)));
    check();
}

static void ranges_shelved_for_an_ended_thread_go_to_the_arena(void **state) {
    (void)state;
    start(4 * GIB, POOL_BARRIER, RELAXED);
    keep_large_blocks();
    if (!cache_can_bias()) {
        skip();
    }
    pthread_t other = let_another_ask(11, 3 * MIB);
    let_another_free(0, 11);
    assert_int_equal(bytes_on_shelves(), 30 * MIB);
    assert_int_equal(pool->common->shelf.range_bytes, 0);
    let_it_end(other);
    assert_int_equal(bytes_on_shelves(), 0);
    check();
}

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(what_one_thread_frees_another_gets),
        TEST(a_shelved_range_waits_for_its_work),
        TEST(nor_is_a_batch_taken_along_before_its_own_is),
        TEST(a_thread_that_frees_too_has_room_left_for_that),
        TEST(a_thread_without_room_takes_just_the_one),
        TEST(only_a_range_that_fits_is_taken),
        TEST(ranges_on_a_shelf_are_bounded),
        TEST(a_thread_alone_has_no_range_shelf),
        TEST(shelved_ranges_are_given_up_ahead_of_growing),
        TEST(shelved_ranges_are_given_up_when_the_device_is_full),
        TEST(shelved_ranges_are_forgotten_with_the_context),
        TEST(ranges_shelved_for_an_ended_thread_go_to_the_arena),
    };
    return cmocka_run_group_tests_name("shelf of large blocks", tests, NULL, NULL);
}
