/*
 * Tests the page map: an address leads to the entry of its page, and to no other entry.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "heap/page_map.h"

#include <errno.h>
#include <pthread.h>

#define LEAF_BYTES ((uint64_t)1 << (PAGE_SHIFT + PAGE_MAP_LEAF_BITS))
#define TOP ((uint64_t)1 << PAGE_MAP_ADDRESS_BITS)

static struct pool *const one = (struct pool *)0x1000, *const two = (struct pool *)0x2000;

static void an_address_that_was_not_entered_is_unknown(void **state) {
    (void)state;
    const uint64_t addresses[] = {0, 1, 0x7f0000000000, TOP - 1, TOP, TOP + 5, UINT64_MAX};
    for (size_t i = 0; i < sizeof addresses / sizeof *addresses; i++) {
        assert_true(page_map_get(addresses[i]) == 0);
        assert_null(page_map_pool(addresses[i]));
    }
}

static void addresses_beyond_the_map_are_refused(void **state) {
    (void)state;
    assert_int_equal(page_map_prepare(TOP, PAGE_BYTES), -ERANGE);
    assert_int_equal(page_map_prepare(TOP - PAGE_BYTES, 2 * PAGE_BYTES), -ERANGE);
    assert_int_equal(page_map_prepare(UINT64_MAX - PAGE_BYTES + 1, 2 * PAGE_BYTES), -ERANGE);
    assert_int_equal(page_map_prepare(0 - PAGE_BYTES, PAGE_BYTES), -ERANGE);
    assert_int_equal(page_map_prepare(TOP - PAGE_BYTES, PAGE_BYTES), 0);
}

static void only_pages_whose_first_byte_is_covered_are_set(void **state) {
    (void)state;
    uint64_t base = 5 * LEAF_BYTES;
    assert_int_equal(page_map_prepare(base, 8 * PAGE_BYTES), 0);
    page_map_set(base, 8 * PAGE_BYTES, 0x40);
    page_map_set(base + 512, PAGE_BYTES - 512, 0x80); /* contains no page's first byte */
    assert_int_equal(page_map_get(base), 0x40);
    page_map_set(base + 512, PAGE_BYTES, 0x80); /* contains the first byte of page 1 */
    assert_int_equal(page_map_get(base), 0x40);
    assert_int_equal(page_map_get(base + PAGE_BYTES), 0x80);
    assert_int_equal(page_map_get(base + 2 * PAGE_BYTES - 1), 0x80);
    assert_int_equal(page_map_get(base + 2 * PAGE_BYTES), 0x40);
    page_map_set(base, 8 * PAGE_BYTES, 0);
    assert_int_equal(page_map_get(base + PAGE_BYTES), 0);
}

static void a_range_may_cross_into_the_next_leaf(void **state) {
    (void)state;
    uint64_t base = 9 * LEAF_BYTES - PAGE_BYTES;
    assert_int_equal(page_map_prepare(base, 2 * PAGE_BYTES), 0);
    page_map_set(base, 2 * PAGE_BYTES, 0x40);
    page_map_set_owner(base, 2 * PAGE_BYTES, one);
    assert_int_equal(page_map_get(base), 0x40);
    assert_int_equal(page_map_get(base + PAGE_BYTES), 0x40);
    assert_int_equal(page_map_get(base + 2 * PAGE_BYTES), 0);
    assert_ptr_equal(page_map_pool(base + 2 * PAGE_BYTES - 1), one);
    assert_null(page_map_pool(base + 2 * PAGE_BYTES));
    assert_null(page_map_pool(base - 1));
}

static void a_slab_and_a_range_are_told_apart(void **state) {
    (void)state;
    struct slab *slab = (struct slab *)0x40000;
    struct range *range = (struct range *)0x50000;
    assert_ptr_equal(page_map_slab(page_map_of_slab(slab, false)), slab);
    assert_ptr_equal(page_map_slab(page_map_of_slab(slab, true)), slab);
    assert_true(page_map_is_plain_slab(page_map_of_slab(slab, false)));
    assert_false(page_map_is_plain_slab(page_map_of_slab(slab, true)));
    assert_false(page_map_is_plain_slab((page_map_entry)range));
    assert_null(page_map_slab((page_map_entry)range));
    assert_null(page_map_slab(0));
}

static void owners_are_kept_apart_from_entries(void **state) {
    (void)state;
    uint64_t base = 12 * LEAF_BYTES;
    assert_int_equal(page_map_prepare(base, 4 * PAGE_BYTES), 0);
    page_map_set_owner(base, 2 * PAGE_BYTES, one);
    page_map_set_owner(base + 2 * PAGE_BYTES, 2 * PAGE_BYTES, two);
    assert_ptr_equal(page_map_pool(base + 2 * PAGE_BYTES - 1), one);
    assert_ptr_equal(page_map_pool(base + 2 * PAGE_BYTES), two);
    assert_int_equal(page_map_get(base), 0);
    page_map_set_owner(base, 2 * PAGE_BYTES, NULL);
    assert_null(page_map_pool(base));
}

static void one_page_of_a_long_range_is_found(void **state) {
    (void)state;
    const uint64_t base = 15 * LEAF_BYTES,
                   bytes = 4 * LEAF_BYTES; /* leaves 15 and 16 of the tree do not exist */
    const uint64_t pages[] = {2 * LEAF_BYTES, 3 * LEAF_BYTES - PAGE_BYTES, 3 * LEAF_BYTES,
                              4 * LEAF_BYTES - PAGE_BYTES};
    assert_int_equal(page_map_prepare(base + 2 * LEAF_BYTES, 2 * LEAF_BYTES), 0);
    assert_false(page_map_any(base, bytes));
    for (size_t i = 0; i < sizeof pages / sizeof *pages; i++) {
        uint64_t page = base + pages[i];
        page_map_set(page, PAGE_BYTES, 0x40);
        assert_true(page_map_any(base, bytes));
        assert_true(page_map_any(page + PAGE_BYTES - 1, 1));
        assert_false(page_map_any(base, page - base));
        assert_false(page_map_any(page + PAGE_BYTES, base + bytes - page));
        page_map_set(page, PAGE_BYTES, 0);
        assert_false(page_map_any(base, bytes));
        page_map_set_owner(page, PAGE_BYTES, one);
        assert_true(page_map_any(base, bytes));
        page_map_set_owner(page, PAGE_BYTES, NULL);
    }
    assert_false(page_map_any(TOP, 2 * PAGE_BYTES));
    assert_false(page_map_any(TOP - PAGE_BYTES, 2 * PAGE_BYTES));
}

/*
 * Pools of several contexts may make the same leaf at once. The slower thread discards its leaf, so
 * no entry may be in it.
 */
#define THREADS 8
static pthread_barrier_t together;

static void *prepare_and_enter(void *argument) {
    uintptr_t me = (uintptr_t)argument;
    for (uint64_t leaf = 100; leaf < 164; leaf++) {
        uint64_t page = leaf * LEAF_BYTES + me * PAGE_BYTES;
        pthread_barrier_wait(&together);
        if (page_map_prepare(page, PAGE_BYTES) != 0)
            return (void *)1;
        page_map_set(page, PAGE_BYTES, (me + 1) << 4);
    }
    return NULL;
}

static void threads_that_prepare_one_leaf_lose_nothing(void **state) {
    (void)state;
    pthread_t threads[THREADS];
    pthread_barrier_init(&together, NULL, THREADS);
    for (uintptr_t i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, prepare_and_enter, (void *)i), 0);
    for (unsigned i = 0; i < THREADS; i++) {
        void *result;
        pthread_join(threads[i], &result);
        assert_null(result);
    }
    for (uint64_t leaf = 100; leaf < 164; leaf++)
        for (uint64_t i = 0; i < THREADS; i++)
            assert_int_equal(page_map_get(leaf * LEAF_BYTES + i * PAGE_BYTES), (i + 1) << 4);
    pthread_barrier_destroy(&together);
}

/* The driver gives addresses to another pool while the first pool is being forgotten. */
#define GIVEN_PAGES ((uint64_t)512)
#define GIVEN_BASE (31 * LEAF_BYTES)
static struct range *const old_start = (struct range *)0x600, *const new_start =
                                                                  (struct range *)0x700;
static unsigned stale;

static void *enter_cleared_pages(void *unused) {
    for (uint64_t a = GIVEN_BASE; a < GIVEN_BASE + GIVEN_PAGES * PAGE_BYTES; a += PAGE_BYTES) {
        while (page_map_pool(a) || page_map_get(a)) { /* as context_address_given() does */
        }
        stale += page_map_start(a) != NULL || page_map_start(a + PAGE_BYTES / 2) != NULL;
        page_map_set_owner(a, PAGE_BYTES, two);
        page_map_set(a, PAGE_BYTES, 0x80);
        page_map_set_start(a, new_start);
    }
    return unused;
}

static void a_cleared_page_can_belong_to_another_pool_at_once(void **state) {
    (void)state;
    unsigned lost = 0;
    assert_int_equal(page_map_prepare(GIVEN_BASE, GIVEN_PAGES * PAGE_BYTES), 0);
    for (unsigned round = 0; round < 200; round++) {
        pthread_t thread;
        page_map_set_owner(GIVEN_BASE, GIVEN_PAGES * PAGE_BYTES, one);
        page_map_set(GIVEN_BASE, GIVEN_PAGES * PAGE_BYTES, 0x40);
        for (uint64_t i = 0; i < 2 * GIVEN_PAGES; i++)
            page_map_set_start(GIVEN_BASE + i * PAGE_BYTES / 2, old_start);
        pthread_create(&thread, NULL, enter_cleared_pages, NULL);
        page_map_remove(GIVEN_BASE, GIVEN_PAGES * PAGE_BYTES, one);
        pthread_join(thread, NULL);
        for (uint64_t i = 0; i < GIVEN_PAGES; i++) {
            uint64_t a = GIVEN_BASE + i * PAGE_BYTES;
            lost += page_map_get(a) != 0x80 || page_map_pool(a) != two ||
                    page_map_start(a) != new_start;
        }
    }
    assert_int_equal(stale, 0);
    assert_int_equal(lost, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_address_that_was_not_entered_is_unknown),
        cmocka_unit_test(addresses_beyond_the_map_are_refused),
        cmocka_unit_test(only_pages_whose_first_byte_is_covered_are_set),
        cmocka_unit_test(a_range_may_cross_into_the_next_leaf),
        cmocka_unit_test(a_slab_and_a_range_are_told_apart),
        cmocka_unit_test(owners_are_kept_apart_from_entries),
        cmocka_unit_test(one_page_of_a_long_range_is_found),
        cmocka_unit_test(threads_that_prepare_one_leaf_lose_nothing),
        cmocka_unit_test(a_cleared_page_can_belong_to_another_pool_at_once),
    };
    return cmocka_run_group_tests_name("page map", tests, NULL, NULL);
}
