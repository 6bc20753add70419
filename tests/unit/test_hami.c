/*
 * The syntax of HAMi-core's variables, and which of them limits a device.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "child.h"
#include "options/hami.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define GIB (1ull << 30)
#define THEIRS "CUDA_DEVICE_MEMORY_LIMIT"

static char *environment[8];
static struct hami_limit limits[VALUE_DEVICES];

static bool (*check)(void);

static void load_and_check(void) {
    hami_load(environment, limits);
    _exit(check && !check() ? 1 : 0);
}

/* Returns the messages of a child that loads an environment. then_true() must return true in the
 * child afterwards. */
static const char *load_with(const char *const *variables, bool (*then_true)(void)) {
    memcpy(environment, variables, sizeof environment);
    check = then_true;
    return child_stderr(NULL, load_and_check);
}

#define LOAD(check, ...) load_with((const char *const[8]){__VA_ARGS__, NULL}, check)

/* Returns whether the variable `name` limits a device to `bytes`. NULL: no variable limits it. */
static bool is(int device, uint64_t bytes, const char *name) {
    const struct hami_limit *limit = &limits[device];
    return name ? limit->bytes == bytes && limit->name && strcmp(limit->name, name) == 0
                : limit->bytes == 0 && !limit->name;
}

static bool eight_for_all(void) {
    return is(0, 8 * GIB, THEIRS) && is(1, 8 * GIB, THEIRS) && is(63, 8 * GIB, THEIRS);
}

static bool three_sizes(void) {
    return is(0, 8 * GIB, THEIRS) && is(1, 4 * GIB, THEIRS "_1") && is(2, 8 * GIB, THEIRS) &&
           is(63, 2 * GIB, THEIRS "_63");
}

static bool only_10(void) {
    return is(0, 0, NULL) && is(1, 0, NULL) && is(10, 4 * GIB, THEIRS "_10");
}

static bool none(void) {
    for (int device = 0; device < VALUE_DEVICES; device++)
        if (!is(device, 0, NULL))
            return false;
    return true;
}

static bool little(void) {
    return is(0, 8192, THEIRS);
}

static void one_variable_limits_all_devices(void **state) {
    (void)state;
    assert_string_equal(LOAD(eight_for_all, "A=1", THEIRS "=8g", "B=2"), "");
    assert_string_equal(LOAD(eight_for_all, THEIRS "=8G"), "");
    assert_string_equal(LOAD(eight_for_all, THEIRS "=8192m"), "");
    assert_string_equal(LOAD(eight_for_all, THEIRS "=8192M"), "");
    assert_string_equal(LOAD(eight_for_all, THEIRS "=8388608k"), "");
    assert_string_equal(LOAD(eight_for_all, THEIRS "=8589934592"), "");
}

static void a_variable_of_a_device_wins_in_any_order(void **state) {
    (void)state;
    assert_string_equal(LOAD(three_sizes, THEIRS "_1=4g", THEIRS "=8g", THEIRS "_63=2048m"), "");
    assert_string_equal(LOAD(only_10, THEIRS "_10=4g"), "");
}

static void other_names_and_empty_values_limit_nothing(void **state) {
    (void)state;
    assert_string_equal(LOAD(none, THEIRS "_64=4g", THEIRS "_00=4g", THEIRS "_=4g",
                             THEIRS "_1.5=4g", THEIRS "S=4g"),
                        "");
    assert_string_equal(LOAD(none, THEIRS "=", THEIRS "_1=", THEIRS, THEIRS "_100000000000=4g"),
                        "");
    hami_load(NULL, limits); /* of a set-user-ID program */
    assert_true(none());
}

static void nonsense_is_an_error_and_leaves_the_general_limit(void **state) {
    (void)state;
    static const char *const nonsense[] = {"0", "-1", "8x", "8 g", "0x10", "half", "50%", "none"};
    for (size_t i = 0; i < sizeof nonsense / sizeof *nonsense; i++) {
        char variable[64], expected[256];
        snprintf(variable, sizeof variable, "%s_1=%s", THEIRS, nonsense[i]);
        snprintf(expected, sizeof expected,
                 "gpucache: %s=\"%s\" makes no sense: accepted are bytes, or a size such as 8g or "
                 "8192m; it is ignored\n",
                 THEIRS "_1", nonsense[i]);
        assert_string_equal(LOAD(none, variable), expected);
        assert_string_equal(LOAD(eight_for_all, variable, THEIRS "=8g"), expected);
    }
}

static void a_limit_of_a_few_bytes_is_taken_and_doubted(void **state) {
    (void)state;
    assert_string_equal(LOAD(little, THEIRS "=8192"),
                        "gpucache: " THEIRS "=8192 is a limit of 8192 bytes, too little for "
                        "anything; sizes take k, m or g\n");
}

static void the_first_of_two_entries_with_one_name_counts(void **state) {
    (void)state;
    assert_string_equal(LOAD(eight_for_all, THEIRS "=8g", THEIRS "=4g"), "");
    assert_string_equal(LOAD(only_10, THEIRS "_10=4g", THEIRS "_10=2g"), "");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_variable_limits_all_devices),
        cmocka_unit_test(a_variable_of_a_device_wins_in_any_order),
        cmocka_unit_test(other_names_and_empty_values_limit_nothing),
        cmocka_unit_test(nonsense_is_an_error_and_leaves_the_general_limit),
        cmocka_unit_test(a_limit_of_a_few_bytes_is_taken_and_doubted),
        cmocka_unit_test(the_first_of_two_entries_with_one_name_counts),
    };
    return cmocka_run_group_tests_name("hami", tests, NULL, NULL);
}
