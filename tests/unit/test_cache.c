/*
 * A thread's cache: the order of its lists, and that its owner and whoever seizes it are never
 * inside together.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "pool/internal.h"

#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

static struct cache cache;
static struct block blocks[64];

static int set_up(void **state) {
    (void)state;
    memset(&cache, 0, sizeof cache);
    memset(blocks, 0, sizeof blocks);
    cache_start();
    cache.biased = cache_can_bias();
    cache.wanted = !cache.biased;
    for (int i = 0; i < 64; i++) {
        blocks[i].life = (uint64_t)1 << LIFE_UNITS_SHIFT;
    }
    return 0;
}

/* ---- the lists ---- */

static void what_was_freed_first_goes_out_first_and_not_before_its_epoch(void **state) {
    (void)state;
    for (uint64_t i = 0; i < 8; i++) {
        blocks[i].stamp = 10 + i / 2;
        cache_push(&cache, &blocks[i]);
    }
    assert_int_equal(cache.bytes, 8 * 512);
    assert_null(cache_pop(&cache, 0, 9));
    for (uint64_t usable = 10; usable < 14; usable++) {
        assert_ptr_equal(cache_pop(&cache, 0, usable), &blocks[2 * (usable - 10)]);
        assert_ptr_equal(cache_pop(&cache, 0, usable), &blocks[2 * (usable - 10) + 1]);
        assert_null(cache_pop(&cache, 0, usable));
    }
    assert_int_equal(cache.bytes, 0);
    assert_int_equal(cache.bins[0].count, 0);
}

static void what_is_ready_goes_in_front(void **state) {
    (void)state;
    blocks[0].stamp = 5;
    cache_push(&cache, &blocks[0]);
    cache_push_ready(&cache, &blocks[1]);
    assert_ptr_equal(cache_pop(&cache, 0, 0), &blocks[1]);
    assert_null(cache_pop(&cache, 0, 4));
    cache_push_ready(&cache, &blocks[1]);
    assert_ptr_equal(cache_pop(&cache, 0, 5), &blocks[1]);
    assert_ptr_equal(cache_pop(&cache, 0, 5), &blocks[0]);
    cache_push_ready(&cache, &blocks[2]); /* into an empty list, whose end it is then */
    blocks[3].stamp = 6;
    cache_push(&cache, &blocks[3]);
    assert_ptr_equal(cache_pop(&cache, 0, 6), &blocks[2]);
    assert_ptr_equal(cache_pop(&cache, 0, 6), &blocks[3]);
}

static void the_oldest_are_taken_and_the_rest_stays_whole(void **state) {
    (void)state;
    assert_null(cache_take(&cache, 0, 3).first);
    for (uint64_t i = 0; i < 8; i++) {
        blocks[i].stamp = i;
        cache_push(&cache, &blocks[i]);
    }
    assert_null(cache_take(&cache, 0, 0).first);
    struct batch batch = cache_take(&cache, 0, 3);
    struct block *taken = batch.first;
    assert_int_equal(batch.count, 3);
    assert_ptr_equal(batch.last, &blocks[2]);
    for (int i = 0; i < 3; i++) {
        assert_ptr_equal(taken, &blocks[i]);
        taken = taken->next;
    }
    assert_null(taken);
    assert_int_equal(cache.bins[0].count, 5);
    assert_int_equal(cache.bytes, 5 * 512);
    cache_push(&cache, &blocks[8]);
    batch = cache_take(&cache, 0, 100);
    taken = batch.first;
    assert_int_equal(batch.count, 6);
    assert_ptr_equal(batch.last, &blocks[8]);
    for (int i = 3; i < 9; i++) {
        assert_ptr_equal(taken, &blocks[i]);
        taken = taken->next;
    }
    assert_int_equal(cache.bins[0].count, 0);
    assert_null(cache_pop(&cache, 0, 100));
    cache_push(&cache, &blocks[0]); /* and goes on */
    assert_ptr_equal(cache_pop(&cache, 0, 100), &blocks[0]);
}

/* ---- large blocks ---- */

#define MIB ((uint64_t)1 << 20)
#define SIXTEENTH (MIB / 16)

static struct range ranges[8];

static void park(struct range *range, uint64_t bytes, uint64_t stamp) {
    *range = (struct range){.bytes = bytes, .stamp = stamp};
    cache_push_range(&cache, range);
}

static void a_large_request_gets_what_is_somewhat_larger(void **state) {
    (void)state;
    cache_set_room(&cache, 16 * MIB);
    park(&ranges[0], MIB + SIXTEENTH, 1);
    park(&ranges[1], MIB + 3 * SIXTEENTH, 1);
    assert_null(cache_pop_range(&cache, MIB + SIXTEENTH + 512, 1));
    assert_ptr_equal(cache_pop_range(&cache, MIB + 512, 1), &ranges[0]);
    assert_null(cache_pop_range(&cache, MIB + 512, 1));
    assert_ptr_equal(cache_pop_range(&cache, MIB + 2 * SIXTEENTH, 1), &ranges[1]);
    assert_int_equal(cache.large_bytes, 0);
}

static void where_much_is_parked_it_gets_what_is_larger_still(void **state) {
    (void)state;
    cache_set_room(&cache, 16 * MIB);
    park(&ranges[0], MIB + 5 * SIXTEENTH, 1);
    park(&ranges[1], MIB + 6 * SIXTEENTH, 1);
    park(&ranges[2], 4 * MIB, 1);
    assert_null(cache_pop_range(&cache, MIB + 512, 1));
    park(&ranges[3], 4 * MIB, 1); /* more than half of what may be */
    assert_null(cache_pop_range(&cache, MIB + 512, 0));
    assert_ptr_equal(cache_pop_range(&cache, MIB + 512, 1), &ranges[0]);
    park(&ranges[0], 2 * MIB, 1);
    assert_null(cache_pop_range(&cache, MIB + 512, 1)); /* but not the second, nor twice as large */
    assert_int_equal(cache.large_bytes, 11 * MIB + 6 * SIXTEENTH);
}

/* Else a thread would wait for a stamp with which it finds nothing. */
static void the_stamp_that_is_waited_for_is_one_that_finds_a_range(void **state) {
    (void)state;
    cache_set_room(&cache, 16 * MIB);
    assert_int_equal(cache_range_stamp(&cache, MIB + 512), 0);
    park(&ranges[0], MIB + 2 * 512, 3);
    park(&ranges[1], MIB + 4 * 512, 6);
    park(&ranges[2], MIB + SIXTEENTH, 5);
    park(&ranges[3], MIB + 2 * SIXTEENTH, 4); /* too large */
    assert_int_equal(cache_range_stamp(&cache, MIB + 512), 3);
    assert_int_equal(cache_range_stamp(&cache, MIB + 3 * 512), 5);
    assert_null(cache_pop_range(&cache, MIB + 3 * 512, 4));
    assert_ptr_equal(cache_pop_range(&cache, MIB + 3 * 512, 5), &ranges[2]);
    assert_int_equal(cache_range_stamp(&cache, MIB + 3 * 512), 6);
    assert_ptr_equal(cache_pop_range(&cache, MIB + 3 * 512, 6), &ranges[1]);
    assert_ptr_equal(cache_pop_range(&cache, MIB + 512, 6), &ranges[0]);
}

/* ---- exclusion ---- */

/* Both sides change these two as if alone; together they lose changes. */
static uint64_t changes, mirror;
static atomic_bool ended;
static atomic_ulong torn;

static void change(uint64_t linger) {
    if (changes != mirror) {
        torn++;
    }
    changes++;
    atomic_signal_fence(memory_order_seq_cst);
    while (linger-- > 0) {
        cpu_relax();
    }
    mirror++;
}

static void *owner(void *argument) {
    uint64_t count = 0;
    (void)argument;
    while (!atomic_load_explicit(&ended, memory_order_relaxed)) {
        cache_enter(&cache);
        change(count % 32 ? 0 : 200);
        cache_leave(&cache);
        count++;
    }
    return (void *)(uintptr_t)count;
}

static void an_owner_and_a_seizer_are_never_inside_together(void **state) {
    (void)state;
    const char *text = getenv("POOL_TEST_OPS");
    uint64_t seizures = text ? strtoul(text, NULL, 10) / 10 : 100000;
    changes = mirror = 0;
    ended = false;
    torn = 0;
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, owner, NULL), 0);
    for (uint64_t i = 0; i < seizures; i++) {
        cache_seize(&cache);
        change(0);
        cache_return(&cache);
        if (i % 16 == 0) {
            sched_yield();
        }
    }
    ended = true;
    void *entered;
    pthread_join(thread, &entered);
    assert_int_equal(torn, 0);
    assert_int_equal(changes, seizures + (uintptr_t)entered);
    assert_int_equal(mirror, changes);
}

static void without_the_kernels_help_a_lock_takes_its_place(void **state) {
    cache.biased = false;
    cache.wanted = true;
    an_owner_and_a_seizer_are_never_inside_together(state);
}

static void an_owner_may_seize_its_own_cache(void **state) {
    (void)state;
    cache_seize(&cache);
    cache_return(&cache);
    cache_enter(&cache);
    cache_leave(&cache);
    cache_seize(&cache);
    cache_return(&cache);
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup(name, set_up)
    const struct CMUnitTest tests[] = {
        TEST(what_was_freed_first_goes_out_first_and_not_before_its_epoch),
        TEST(what_is_ready_goes_in_front),
        TEST(the_oldest_are_taken_and_the_rest_stays_whole),
        TEST(a_large_request_gets_what_is_somewhat_larger),
        TEST(where_much_is_parked_it_gets_what_is_larger_still),
        TEST(the_stamp_that_is_waited_for_is_one_that_finds_a_range),
        TEST(an_owner_and_a_seizer_are_never_inside_together),
        TEST(without_the_kernels_help_a_lock_takes_its_place),
        TEST(an_owner_may_seize_its_own_cache),
    };
    return cmocka_run_group_tests_name("thread cache", tests, NULL, NULL);
}
