/*
 * Tests the syntax of values: the texts of numbers, sizes, shares, switches, signals and file
 * patterns, their meanings, and the texts that are refused.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "options/value.h"

#include <signal.h>
#include <string.h>

#define COUNT(list) (sizeof(list) / sizeof *(list))

/** Returns whether the whole text is a size. */
static bool size(const char *text, uint64_t *bytes) {
    return value_take_size(&text, bytes) && *text == '\0';
}

static bool share(const char *text, double *value) {
    return value_take_share(&text, value) && *text == '\0';
}

static void a_distance_counts_added_removed_and_changed_characters(void **state) {
    (void)state;
    static const struct {
        const char *a, *b;
        size_t distance;
    } pairs[] = {{"run", "run", 0},  {"rnu", "run", 2}, {"rn", "run", 1},
                 {"runs", "run", 1}, {"", "run", 3},    {"top", "", 3}};
    for (size_t i = 0; i < COUNT(pairs); i++)
        assert_int_equal(value_distance(pairs[i].a, strlen(pairs[i].a), pairs[i].b),
                         pairs[i].distance);
    char long_word[2 * VALUE_WORD + 1] = "";
    memset(long_word, 'a', sizeof long_word - 1);
    assert_int_equal(value_distance("", 0, long_word), VALUE_WORD);
}

static void a_size_takes_units_in_any_case_and_decimals(void **state) {
    (void)state;
    static const struct {
        const char *text;
        uint64_t bytes;
    } sizes[] = {
        {"1", 1},
        {"512B", 512},
        {"512b", 512},
        {"1K", 1024},
        {"1kb", 1024},
        {"1KiB", 1024},
        {"1kIb", 1024},
        {"3m", 3 << 20},
        {"1Gi", 1 << 30},
        {"1gb", 1 << 30},
        {".5g", 1 << 29},
        {"1.5G", 3ull << 29},
        {"0.5KiB", 512},
        {"2TiB", 2ull << 40},
        {"16777215T", 16777215ull << 40},
        {"18446744073709551615", UINT64_MAX},
    };
    for (size_t i = 0; i < COUNT(sizes); i++) {
        uint64_t bytes = 0;
        if (!size(sizes[i].text, &bytes) || bytes != sizes[i].bytes)
            fail_msg("%s is %lu bytes, not %lu", sizes[i].text, bytes, sizes[i].bytes);
    }
}

static void other_texts_than_sizes_are_refused(void **state) {
    (void)state;
    static const char *const texts[] = {
        "",
        "0",
        "0G",
        "-1",
        "+1",
        "8GG",
        "8iB",
        "8GiBi",
        "8 G",
        " 8G",
        "G",
        ".",
        ".G",
        "1.",
        "1.G",
        "1.5",
        ".5",
        "1.5B",
        "1..5G",
        "nan",
        "0x10",
        "1e9",
        "8P",
        "50%",
        "99999999999999999999",
        "16777216T",
        "18014398509481984K",
        "1.0000000000000000001G",
    };
    for (size_t i = 0; i < COUNT(texts); i++) {
        uint64_t bytes;
        if (size(texts[i], &bytes))
            fail_msg("\"%s\" is taken for a size", texts[i]);
    }
}

static void a_share_is_a_fraction_or_per_cent(void **state) {
    (void)state;
    static const struct {
        const char *text;
        double value;
    } shares[] = {{"0.5", 0.5}, {".5", 0.5},      {"1", 1},      {"1.0", 1},   {"50%", 0.5},
                  {"100%", 1},  {"12.5%", 0.125}, {".25", 0.25}, {"1%", 0.01}, {"0.5%", 0.005}};
    for (size_t i = 0; i < COUNT(shares); i++) {
        double value = 0;
        if (!share(shares[i].text, &value) || value != shares[i].value)
            fail_msg("%s is %f, not %f", shares[i].text, value, shares[i].value);
    }
    static const char *const none[] = {"",     "0",    "0.0", "0%",   "1.1",  "2",
                                       "-0.5", "+0.5", "nan", "inf",  "0.5x", "100.1%",
                                       "101%", "1.",   "0x1", "1e-1", "5%%",  "%"};
    for (size_t i = 0; i < COUNT(none); i++) {
        double value;
        if (share(none[i], &value))
            fail_msg("\"%s\" is taken for a share", none[i]);
    }
}

static void a_switch_takes_every_word_in_any_case(void **state) {
    (void)state;
    static const char *const ons[] = {"on", "ON", "true", "True", "yes", "YES", "1"};
    static const char *const offs[] = {"off", "Off", "false", "FALSE", "no", "No", "0"};
    static const char *const none[] = {"", "2", "11", "onn", "o", "y", "enable", "on "};
    bool on;
    for (size_t i = 0; i < COUNT(ons); i++) {
        assert_true(value_switch(ons[i], &on) && on);
        assert_false(value_is_off(ons[i]));
    }
    for (size_t i = 0; i < COUNT(offs); i++) {
        assert_true(value_switch(offs[i], &on) && !on);
        assert_true(value_is_off(offs[i]));
    }
    assert_true(value_is_off("None"));
    for (size_t i = 0; i < COUNT(none); i++)
        assert_false(value_switch(none[i], &on));
}

static uint64_t taken[VALUE_DEVICES];

static bool take(const char **at, size_t device, void *context) {
    (void)context;
    return value_take_size(at, &taken[device]);
}

static void values_per_device_name_each_device_once(void **state) {
    (void)state;
    uint64_t named = 1;
    assert_true(value_per_device("2K", take, NULL, &named));
    assert_true(named == 0 && taken[0] == 2048 && taken[63] == 2048);
    assert_true(value_per_device("1:1K,63:3K", take, NULL, &named));
    assert_true(named == (2 | 1ull << 63) && taken[1] == 1024 && taken[63] == 3072);
    static const char *const none[] = {"0:8G,1", "0:8G;1:8G", "0:8G,0:8G", "64:1G", "0:",
                                       ":1G",    "0:1G,",     "1G,1:1G",   "a:1G",  "0:1Gx"};
    for (size_t i = 0; i < COUNT(none); i++)
        assert_false(value_per_device(none[i], take, NULL, &named));
}

static void a_signal_is_a_name_or_a_number_that_can_be_caught(void **state) {
    (void)state;
    static const char *const names[] = {"USR2", "SIGUSR2", "usr2", "SigUsr2", "12"};
    int number = 0;
    for (size_t i = 0; i < COUNT(names); i++)
        assert_true(value_signal(names[i], &number) && number == SIGUSR2);
    static const char *const none[] = {"",   "KILL", "9",  "SIGSTOP", "0",   "-1", "65",
                                       "32", "SEGV", "11", "USR3",    "12x", "SIG"};
    for (size_t i = 0; i < COUNT(none); i++)
        assert_false(value_signal(none[i], &number));
}

static void a_file_pattern_is_absolute_and_no_switch(void **state) {
    (void)state;
    static char pattern[VALUE_PATTERN];
    assert_true(value_pattern("/tmp/%h-%e-%r.%p.%n.%%", pattern));
    assert_string_equal(pattern, "/tmp/%h-%e-%r.%p.%n.%%");
    assert_true(value_pattern("stdout.txt", pattern) && pattern[0] == '/');
    assert_true(value_pattern("./1", pattern) && pattern[0] == '/');
    static const char *const none[] = {"",   "-", "stdout", "Stderr", "on", "1",  "2",
                                       "no", "%", "a%",     "a%x",    "%d", "off"};
    for (size_t i = 0; i < COUNT(none); i++)
        if (value_pattern(none[i], pattern))
            fail_msg("\"%s\" is taken for a file name", none[i]);
}

static void milliseconds_are_truncated_and_never_0(void **state) {
    (void)state;
    uint64_t ms = 0;
    assert_true(value_milliseconds("1.5", &ms) && ms == 1500);
    assert_true(value_milliseconds(".0019", &ms) && ms == 1);
    static const char *const none[] = {"", "0", "-5", "5s", "1e3", "0.0001", "99999999999"};
    for (size_t i = 0; i < COUNT(none); i++)
        assert_false(value_milliseconds(none[i], &ms));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_distance_counts_added_removed_and_changed_characters),
        cmocka_unit_test(a_size_takes_units_in_any_case_and_decimals),
        cmocka_unit_test(other_texts_than_sizes_are_refused),
        cmocka_unit_test(a_share_is_a_fraction_or_per_cent),
        cmocka_unit_test(a_switch_takes_every_word_in_any_case),
        cmocka_unit_test(values_per_device_name_each_device_once),
        cmocka_unit_test(a_signal_is_a_name_or_a_number_that_can_be_caught),
        cmocka_unit_test(a_file_pattern_is_absolute_and_no_switch),
        cmocka_unit_test(milliseconds_are_truncated_and_never_0),
    };
    return cmocka_run_group_tests_name("values", tests, NULL, NULL);
}
