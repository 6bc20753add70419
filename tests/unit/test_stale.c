/* Tests the table of stale mappings: sorted, found by any address, removed by base address. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "heap/va_range.h"

#define PAGE ((uint64_t)2 << 20)

static struct stale_mappings stale_mappings;

static void add(uint64_t page, uint64_t pages, uint64_t stamp) {
    stale_add(&stale_mappings, &(struct stale_mapping){page * PAGE, pages * PAGE, stamp});
}

static void the_first_mapping_behind_an_address_is_found(void **state) {
    (void)state;
    stale_mappings.count = 0;
    assert_null(stale_behind(&stale_mappings, 0));
    add(40, 8, 1);
    add(10, 2, 1);
    add(20, 4, 1);
    assert_int_equal(stale_behind(&stale_mappings, 0)->base, 10 * PAGE);
    assert_int_equal(stale_behind(&stale_mappings, 12 * PAGE - 1)->base, 10 * PAGE);
    assert_int_equal(stale_behind(&stale_mappings, 12 * PAGE)->base, 20 * PAGE);
    assert_int_equal(stale_behind(&stale_mappings, 30 * PAGE)->base, 40 * PAGE);
    assert_null(stale_behind(&stale_mappings, 48 * PAGE));
}

static void the_mapping_that_begins_at_an_address_is_removed(void **state) {
    (void)state;
    stale_mappings.count = 0;
    add(10, 1, 7);
    add(20, 1, 9);
    add(30, 1, 8);
    stale_remove(&stale_mappings, 20 * PAGE);
    stale_remove(&stale_mappings, 25 * PAGE); /* no mapping begins there */
    assert_int_equal(stale_mappings.count, 2);
    assert_int_equal(stale_behind(&stale_mappings, 11 * PAGE)->base, 30 * PAGE);
}

static void the_table_holds_its_capacity_in_order(void **state) {
    (void)state;
    stale_mappings.count = 0;
    for (uint64_t i = 0; i < STALE_MOST; i++) {
        assert_false(stale_is_full(&stale_mappings));
        add(i * 193 % STALE_MOST * 2, 1, i % 3);
    }
    assert_true(stale_is_full(&stale_mappings));
    for (uint64_t i = 0; i < STALE_MOST; i++)
        assert_int_equal(stale_mappings.at[i].base, 2 * i * PAGE);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_first_mapping_behind_an_address_is_found),
        cmocka_unit_test(the_mapping_that_begins_at_an_address_is_removed),
        cmocka_unit_test(the_table_holds_its_capacity_in_order),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
