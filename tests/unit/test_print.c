/*
 * The formatter: what it prints, and that it stays within its buffer.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "base/print.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/** Returns the text that a call prints: TEXT(print_u64(&out, 7)). */
#define TEXT(call)                                                                                 \
    ({                                                                                             \
        static char buffer[4096];                                                                  \
        struct print out;                                                                          \
        print_init(&out, -1, buffer, sizeof buffer);                                               \
        call;                                                                                      \
        print_end(&out);                                                                           \
    })

static void numbers_print_in_full(void **state) {
    (void)state;
    assert_string_equal(TEXT(print_u64(&out, 0)), "0");
    assert_string_equal(TEXT(print_u64(&out, UINT64_MAX)), "18446744073709551615");
    assert_string_equal(TEXT(print_i64(&out, INT64_MIN)), "-9223372036854775808");
    assert_string_equal(TEXT(print_hex(&out, 0xdeadbeef)), "deadbeef");
}

static void sizes_round_and_change_unit_after_rounding(void **state) {
    (void)state;
    assert_string_equal(TEXT(print_size(&out, 0)), "0 B");
    assert_string_equal(TEXT(print_size(&out, 1023)), "1023 B");
    assert_string_equal(TEXT(print_size(&out, 1024)), "1.00 KiB");
    assert_string_equal(TEXT(print_size(&out, 3ull << 29)), "1.50 GiB");
    assert_string_equal(TEXT(print_size(&out, (1ull << 20) - 1)), "1.00 MiB");
    assert_string_equal(TEXT(print_size(&out, 1047552)), "1023.0 KiB");
    assert_string_equal(TEXT(print_size(&out, (1000ull << 20) - (1 << 20) / 100)), "999.99 MiB");
    assert_string_equal(TEXT(print_size(&out, (1000ull << 20) - 1)), "1000.0 MiB");
    assert_string_equal(TEXT(print_size(&out, (1024ull << 20) - (1 << 20) / 10)), "1023.9 MiB");
    assert_string_equal(TEXT(print_size(&out, (1024ull << 20) - (1 << 20) / 25)), "1.00 GiB");
    assert_string_equal(TEXT(print_size(&out, 150117580800)), "139.81 GiB");
    assert_string_equal(TEXT(print_size(&out, UINT64_MAX)), "16.00 EiB");
}

static void values_for_people_fit_in_10_columns(void **state) {
    (void)state;
    for (int bit = 0; bit < 64; bit++) {
        for (int step = -1; step <= 1; step++) {
            uint64_t value = (1ull << bit) + (uint64_t)step;
            assert_true(strlen(TEXT(print_size(&out, value))) <= 10);
            assert_true(strlen(TEXT(print_count(&out, value))) <= 10);
        }
    }
    assert_string_equal(TEXT(print_count(&out, 9999999999)), "9999999999");
    assert_string_equal(TEXT(print_count(&out, 10000000000)), "10.00 G");
    assert_string_equal(TEXT(print_count(&out, 999999999999)), "1.00 T");
    assert_string_equal(TEXT(print_count(&out, UINT64_MAX)), "18.45 E");
}

static void decimals_are_fixed_and_always_a_number(void **state) {
    (void)state;
    assert_string_equal(TEXT(print_double(&out, 0.0, 2)), "0.00");
    assert_string_equal(TEXT(print_double(&out, 1.999, 2)), "2.00");
    assert_string_equal(TEXT(print_double(&out, 0.05, 1)), "0.1");
    assert_string_equal(TEXT(print_double(&out, -1.5, 3)), "-1.500");
    assert_string_equal(TEXT(print_double(&out, -0.0001, 2)), "0.00");
    assert_string_equal(TEXT(print_double(&out, 12.75, 0)), "13");
    assert_string_equal(TEXT(print_double(&out, 0.0 / 0.0, 2)), "0.00");
    assert_string_equal(TEXT(print_double(&out, 1e300, 0)), "18446744073709549568");
    assert_string_equal(TEXT(print_seconds(&out, 1234567899, 3)), "1.234");
    assert_string_equal(TEXT(print_seconds(&out, 1234567899, 9)), "1.234567899");
    assert_string_equal(TEXT(print_seconds(&out, 5, 0)), "0");
}

static void a_hundred_per_cent_means_all(void **state) {
    (void)state;
    assert_string_equal(TEXT(print_percent(&out, 999999, 1000000)), "99.99%");
    assert_string_equal(TEXT(print_percent(&out, 7, 7)), "100.00%");
    assert_string_equal(TEXT(print_percent(&out, 0, 0)), "0.00%");
    assert_string_equal(TEXT(print_percent(&out, UINT64_MAX, UINT64_MAX)), "100.00%");
}

static void cells_pad_and_cut(void **state) {
    (void)state;
    assert_string_equal(TEXT(print_cell(&out, "ab", 4, PRINT_LEFT)), "ab  ");
    assert_string_equal(TEXT(print_cell(&out, "ab", 4, PRINT_RIGHT)), "  ab");
    assert_string_equal(TEXT(print_cell(&out, "abcdef", 4, PRINT_RIGHT)), "abcd");
    assert_string_equal(TEXT(print_cell(&out, "\x1b[m\xc3\xb6", 6, PRINT_LEFT)), "?[m?  ");
}

static void untrusted_text_stays_on_its_line_and_in_its_columns(void **state) {
    (void)state;
    assert_string_equal(TEXT(print_plain(&out, "a\nb\x1b[1m", 20)), "a?b?[1m");
    assert_string_equal(TEXT(print_plain(&out,
                                         "gr\xc3\xb6\xc3\x9f"
                                         "e",
                                         5)),
                        "gr??e");
    assert_string_equal(TEXT(print_plain(&out, "abcdefgh", 6)), "abc...");
    assert_string_equal(TEXT(print_plain(&out, "abcdefgh", 2)), "..");
    assert_string_equal(TEXT(print_escaped(&out, "a\"b\\\n\xff", 40)), "a\\\"b\\\\\\x0a\\xff");
    assert_string_equal(TEXT(print_escaped(&out, "abcdef", 4)), "abcd...");
    assert_string_equal(TEXT(print_escaped(&out, "abcd", 4)), "abcd");
}

static void untrusted_text_keeps_letters_and_no_terminal_commands(void **state) {
    (void)state;
    assert_string_equal(TEXT(print_untrusted(&out, "gr\xc3\xb6\xc3\x9f"
                                                   "e \xe6\xbc\xa2 \xf0\x9f\x98\x80")),
                        "gr\xc3\xb6\xc3\x9f"
                        "e \xe6\xbc\xa2 \xf0\x9f\x98\x80");
    assert_string_equal(TEXT(print_untrusted(&out, "\x1b]0;a\x07\x1b[2J\r\n\t\x7f")),
                        "?]0;a??[2J????");
    assert_string_equal(TEXT(print_untrusted(&out, "a\xc2\x9b"
                                                   "31m\x9b\xff\xe2\x82")),
                        "a?31m????");
    assert_string_equal(
        TEXT(print_untrusted(&out, "\u061c\u200e\u2028\u202e\u2066\u2069|\u202f\u2065")),
        "??????|\u202f\u2065");
}

static void json_strings_are_valid_whatever_the_bytes(void **state) {
    (void)state;
    assert_string_equal(TEXT(print_json_string(&out, NULL)), "null");
    assert_string_equal(TEXT(print_json_string(&out, "a\"\\\t\x7f")),
                        "\"a\\\"\\\\\\u0009\\u007f\"");
    assert_string_equal(TEXT(print_json_string(&out, "\xc2\x9b\u061c\u202e")),
                        "\"\\u009b\\u061c\\u202e\"");
    assert_string_equal(TEXT(print_json_string(&out, "\xe2\x82\xac \xf0\x9f\x98\x80")),
                        "\"\xe2\x82\xac \xf0\x9f\x98\x80\"");
    assert_string_equal(TEXT(print_json_string(&out, "\xc0\xaf")),
                        "\"\\ufffd\\ufffd\""); /* overlong */
    assert_string_equal(TEXT(print_json_string(&out, "\xed\xa0\x80")),
                        "\"\\ufffd\\ufffd\\ufffd\""); /* a surrogate */
    assert_string_equal(TEXT(print_json_string(&out, "x\xe2\x82")), "\"x\\ufffd\\ufffd\"");
    assert_string_equal(TEXT(print_json_string(&out, "\xc2\x80 \xc2\x9f \xc2\xa0")),
                        "\"\\u0080 \\u009f \xc2\xa0\"");
    assert_string_equal(TEXT(print_json_string(&out, "\xf4\x90\x80\x80")),
                        "\"\\ufffd\\ufffd\\ufffd\\ufffd\"");
}

static void formats_take_every_width(void **state) {
    (void)state;
    assert_string_equal(
        TEXT(print_format(&out, "%d %u %ld %lu %lld %llu %zu %x %llx %c %s %%", -1, 2u, -3l, 4ul,
                          -5ll, 6ull, (size_t)7, 0xabu, 0xcdull, 'z', "s")),
        "-1 2 -3 4 -5 6 7 ab cd z s %");
    assert_string_equal(TEXT(print_format(&out, "%p", (void *)0x1234)), "0x1234");
    const char *volatile nothing = NULL; /* so that the compiler does not see it */
    assert_string_equal(TEXT(print_format(&out, "%s", nothing)), "(null)");
}

static void a_kept_text_never_leaves_its_buffer(void **state) {
    (void)state;
    char *buffer = malloc(8); /* the sanitizer watches its end */
    struct print out;
    print_init(&out, -1, buffer, 8);
    print_str(&out, "0123456789");
    assert_int_equal(out.error, -ENOSPC);
    assert_string_equal(print_end(&out), "0123456");
    free(buffer);
}

static void a_full_buffer_is_written_up_to_a_whole_line(void **state) {
    (void)state;
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    char buffer[8], got[16];
    struct print out;
    print_init(&out, ends[1], buffer, sizeof buffer);
    print_str(&out, "one\ntwo3\n");
    assert_int_equal(read(ends[0], got, sizeof got), 4);
    assert_memory_equal(got, "one\n", 4);
    assert_int_equal(print_flush(&out), 0);
    assert_int_equal(read(ends[0], got, sizeof got), 5);
    assert_memory_equal(got, "two3\n", 5);
    close(ends[0]);
    close(ends[1]);
}

static void errno_survives_and_the_first_error_stays(void **state) {
    (void)state;
    char buffer[4];
    struct print out;
    print_init(&out, 1000000, buffer, sizeof buffer);
    errno = EDOM;
    print_str(&out, "too long for the buffer");
    assert_int_equal(print_flush(&out), -EBADF);
    out.fd = open("/dev/full", O_WRONLY | O_CLOEXEC); /* another error than the first */
    assert_true(out.fd >= 0);
    print_str(&out, "too long for the buffer");
    assert_int_equal(print_flush(&out), -EBADF);
    close(out.fd);
    assert_int_equal(errno, EDOM);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(numbers_print_in_full),
        cmocka_unit_test(sizes_round_and_change_unit_after_rounding),
        cmocka_unit_test(values_for_people_fit_in_10_columns),
        cmocka_unit_test(decimals_are_fixed_and_always_a_number),
        cmocka_unit_test(a_hundred_per_cent_means_all),
        cmocka_unit_test(cells_pad_and_cut),
        cmocka_unit_test(untrusted_text_stays_on_its_line_and_in_its_columns),
        cmocka_unit_test(untrusted_text_keeps_letters_and_no_terminal_commands),
        cmocka_unit_test(json_strings_are_valid_whatever_the_bytes),
        cmocka_unit_test(formats_take_every_width),
        cmocka_unit_test(a_kept_text_never_leaves_its_buffer),
        cmocka_unit_test(a_full_buffer_is_written_up_to_a_whole_line),
        cmocka_unit_test(errno_survives_and_the_first_error_stays),
    };
    return cmocka_run_group_tests_name("print", tests, NULL, NULL);
}
