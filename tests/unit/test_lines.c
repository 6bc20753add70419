/*
 * Tests how sentences break into lines. A sentence that does not fit is left out as a whole.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "report/lines.h"

static struct lines lines;

static void a_sentence_breaks_at_a_clause(void **state) {
    (void)state;
    lines_init(&lines, 3, 16);
    lines_start(&lines, "one");
    lines_clause(&lines, "two %d", 2);
    lines_clause(&lines, "three");
    assert_int_equal(lines.count, 2);
    assert_string_equal(lines.text[0], "one, two 2,");
    assert_string_equal(lines.text[1], "  three");
}

static void a_sentence_that_does_not_fit_is_left_out_as_a_whole(void **state) {
    (void)state;
    lines_init(&lines, 3, 16);
    lines_start(&lines, "first");
    lines_start(&lines, "second");
    lines_clause(&lines, "of some");
    lines_clause(&lines, "length here");
    lines_clause(&lines, "is too long");
    lines_clause(&lines, "no");
    assert_int_equal(lines.count, 1);
    lines_start(&lines, "third");
    lines_start(&lines, "fourth");
    lines_start(&lines, "fifth");
    lines_clause(&lines, "x");
    assert_int_equal(lines.count, 3);
    assert_string_equal(lines.text[0], "first");
    assert_string_equal(lines.text[1], "third");
    assert_string_equal(lines.text[2], "fourth");
}

static void a_list_may_end_early(void **state) {
    (void)state;
    lines_init(&lines, 1, 34);
    lines_start(&lines, "list:");
    assert_true(lines_item(&lines, "1 x %s", SIZE(2048)));
    assert_true(lines_item(&lines, "2 x %s", SIZE(1024)));
    assert_false(lines_item(&lines, "3 x %s", SIZE(1024)));
    assert_int_equal(lines.count, 1);
    assert_string_equal(lines.text[0], "list: 1 x 2.00 KiB, 2 x 1.00 KiB");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_sentence_breaks_at_a_clause),
        cmocka_unit_test(a_sentence_that_does_not_fit_is_left_out_as_a_whole),
        cmocka_unit_test(a_list_may_end_early),
    };
    return cmocka_run_group_tests_name("lines", tests, NULL, NULL);
}
