/* Recall: what it expects, and what it has forgotten. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "pool/recall.h"
#include "pool/tuning.h"

static struct recall recall;
static char windows[1 << 15];

static struct window *window(uint32_t number) {
    return (struct window *)(void *)&windows[number];
}

static int fresh(void **state) {
    (void)state;
    recall_start(&recall);
    assert_true(recall_prepare(&recall));
    recall_forget(&recall);
    return 0;
}

/* Requests of a program whose sizes do not repeat within so many. */
static uint32_t size_at(uint32_t i, uint32_t period) {
    return 2 + i % period * 7919 % 1009;
}

static void run(uint32_t from, uint32_t to, uint32_t period) {
    for (uint32_t i = from; i < to; i++) {
        recall_note(&recall, window(i % period), size_at(i, period));
    }
}

static void what_has_not_been_there_is_not_expected(void **state) {
    (void)state;
    for (uint32_t i = 0; i < 500; i++) {
        assert_null(recall_expects(&recall, size_at(i, 1000)));
        recall_note(&recall, window(i), size_at(i, 1000));
    }
}

static void a_request_gets_what_it_had_the_last_time(void **state) {
    (void)state;
    run(0, 300, 300);
    for (uint32_t i = 300; i < 900; i++) {
        struct window *expected = recall_expects(&recall, size_at(i, 300));
        assert_true(i < 300 + RECALL_ALIKE || expected == window(i % 300));
        recall_note(&recall, window(i % 300), size_at(i, 300));
    }
}

/* The same size at two places: what came before tells them apart. */
static void equal_requests_are_told_apart(void **state) {
    (void)state;
    for (uint32_t i = 0; i < 400; i++) {
        uint32_t size = i % 100 == 50 ? 12345 : size_at(i, 200);
        struct window *expected = recall_expects(&recall, size);
        assert_true(i < 200 + RECALL_ALIKE || expected == window(i % 200));
        recall_note(&recall, window(i % 200), size);
    }
}

static void a_program_that_goes_another_way_is_found_again(void **state) {
    (void)state;
    run(0, 600, 300);
    for (uint32_t i = 0; i < 10; i++) {
        recall_note(&recall, window(1000 + i), 5000 + i);
    }
    run(100, 100 + RECALL_ALIKE, 300);
    assert_ptr_equal(recall_expects(&recall, size_at(100 + RECALL_ALIKE, 300)),
                     window(100 + RECALL_ALIKE));
}

static void what_is_long_past_is_forgotten(void **state) {
    (void)state;
    uint64_t first = recall_note(&recall, window(0), 2);
    assert_true(recall_knows(&recall, first));
    assert_false(recall_knows(&recall, 0));
    run(0, RECALL / 2, 1000);
    assert_true(recall_knows(&recall, first));
    run(0, RECALL / 2, 1000);
    assert_false(recall_knows(&recall, first));
    for (uint32_t i = 0; i < 3 * RECALL; i++) { /* longer than it remembers: nothing is expected */
        recall_note(&recall, window(i % 32), 2 + i);
        assert_null(recall_expects(&recall, 3 + i));
    }
}

static void after_the_end_nothing_is_expected(void **state) {
    (void)state;
    run(0, 500, 100);
    assert_non_null(recall_expects(&recall, size_at(500, 100)));
    recall_forget(&recall);
    assert_null(recall_expects(&recall, size_at(500, 100)));
    assert_false(recall_knows(&recall, 400));
}

int main(void) {
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(what_has_not_been_there_is_not_expected, fresh),
        cmocka_unit_test_setup(a_request_gets_what_it_had_the_last_time, fresh),
        cmocka_unit_test_setup(equal_requests_are_told_apart, fresh),
        cmocka_unit_test_setup(a_program_that_goes_another_way_is_found_again, fresh),
        cmocka_unit_test_setup(what_is_long_past_is_forgotten, fresh),
        cmocka_unit_test_setup(after_the_end_nothing_is_expected, fresh),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
