/*
 * Tests the reader of JSON (replay/plain.h) and the writer (base/json_put.h).
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/json_put.h"
#include "replay/plain.h"

/* ---- reading ---- */

/** Asserts that a JSON text reads as `wanted`. NULL: the text is refused. */
static void reads_as(const char *json, const char *wanted) {
    char copy[200], why[100];
    struct plain values;
    strcpy(copy, json);
    int r = json_read(copy, strlen(copy), SIZE_MAX, &values, why, sizeof why);
    assert_int_equal(r, wanted ? 0 : -EINVAL);
    if (wanted) {
        assert_int_equal(values.root.kind, PLAIN_TEXT);
        assert_int_equal(values.root.length, strlen(wanted));
        assert_string_equal(json_text(&values.root), wanted);
    }
    plain_free(&values);
}

static void escapes_become_characters(void **state) {
    (void)state;
    reads_as("\"\\\"\\\\\\/\\b\\f\\n\\r\\t\"", "\"\\/\b\f\n\r\t");
    reads_as("\"\\u0041\\u00e9\\u20AC\"", "A\u00e9\u20ac");
    reads_as("\"\\ud83d\\ude00!\"", "\U0001f600!");
    reads_as("\"\\uDBFF\\uDFFF\\ud800\\udc00\"", "\U0010ffff\U00010000");
}

static void half_a_surrogate_pair_is_replaced(void **state) {
    (void)state;
    reads_as("\"\\ud83d\"", "\ufffd");
    reads_as("\"\\ude00x\"", "\ufffdx");
    reads_as("\"\\ud83d\\ud83d\\ude00\"", "\ufffd\U0001f600");
    reads_as("\"\\ud83d\\u0041\"", "\ufffdA");
    reads_as("\"\\ud83d\\n\"", "\ufffd\n");
    reads_as("\"\\ud83d\\ue000\"", "\ufffd\ue000");
    reads_as("\"\\u0041\\ude00\"", "A\ufffd");
    reads_as("\"\\udc00\\udc00\"", "\ufffd\ufffd");
    reads_as("\"a\\u0000b\"", "a\ufffdb");
}

static void other_escapes_are_refused(void **state) {
    (void)state;
    reads_as("\"\\x41\"", NULL);
    reads_as("\"\\u12\"", NULL);
    reads_as("\"\\u+041\"", NULL);
    reads_as("\"\\u 041\"", NULL);
    reads_as("\"\\u0x4\"", NULL);
    reads_as("\"\\ud83d\\u12\"", NULL);
    reads_as("\"\\", NULL);
    reads_as("\"\\u", NULL);
    reads_as("\"\\ud83d\\", NULL);
}

/** Asserts that a number reads as these values of the three getters. */
static void number_is(const char *json, uint64_t unsigned_value, int64_t value, uint64_t ns) {
    char copy[200], why[100];
    struct plain values;
    snprintf(copy, sizeof copy, "[%s,7.5]", json);
    assert_int_equal(json_read(copy, strlen(copy), SIZE_MAX, &values, why, sizeof why), 0);
    const struct plain_value *number = plain_item(&values.root, 0);
    assert_true(json_is_number(number));
    assert_true(json_u64(number) == unsigned_value);
    assert_true(json_i64(number) == value);
    assert_true(json_seconds(number) == ns);
    plain_free(&values);
}

static void numbers_keep_their_digits(void **state) {
    (void)state;
    number_is("0", 0, 0, 0);
    number_is("-5", -UINT64_C(5), -5, -UINT64_C(5) * 1000000000);
    number_is("18446744073709551615", UINT64_MAX, INT64_MAX, -UINT64_C(1000000000));
    number_is("9223372036854775807", INT64_MAX, INT64_MAX, INT64_MAX * UINT64_C(1000000000));
    number_is("1.5", 1, 1, 1500000000);
    number_is("1792000000.123456789", 1792000000, 1792000000, 1792000000123456789);
    number_is("0.0000000019", 0, 0, 1);
    number_is("NaN", 0, 0, 0);
}

static void values_of_another_kind_read_as_nothing(void **state) {
    (void)state;
    char json[] = "{\"t\":\"5\",\"l\":[true,null],\"t\":\"6\"}", why[100];
    struct plain values;
    assert_int_equal(json_read(json, strlen(json), SIZE_MAX, &values, why, sizeof why), 0);
    const struct plain_value *list = plain_get(&values.root, "l");
    assert_int_equal(json_u64(plain_get(&values.root, "t")), 0);
    assert_string_equal(json_text(plain_get(&values.root, "t")), "5");
    assert_string_equal(json_text(list), "");
    assert_true(json_is_true(plain_item(list, 0)) && !json_is_true(plain_item(list, 1)));
    assert_true(!plain_item(list, 2) && !plain_item(&values.root, 0) && !plain_get(list, "l"));
    assert_true(json_u64(NULL) == 0 && !json_is_true(NULL) && !*json_text(NULL));
    plain_free(&values);
}

/** A text of brackets may take only a small multiple of its bytes. */
static void memory_is_bounded(void **state) {
    (void)state;
    char json[2000], why[100];
    struct plain values;
    memset(json, '0', sizeof json);
    for (size_t i = 2; i < sizeof json; i += 2)
        json[i] = ',';
    json[0] = '[';
    strcpy(&json[sizeof json - 2], "]");
    assert_int_equal(json_read(json, strlen(json), 1000, &values, why, sizeof why), -EFBIG);
    assert_non_null(strstr(why, "more memory"));
    plain_free(&values);
}

/* ---- writing ---- */

#define WRITTEN(...)                                                                               \
    ({                                                                                             \
        static char buffer[512];                                                                   \
        struct print out;                                                                          \
        print_init(&out, -1, buffer, sizeof buffer);                                               \
        struct json_put to = json_put_to(&out);                                                    \
        __VA_ARGS__;                                                                               \
        print_end(&out);                                                                           \
    })

static void commas_stand_between(void **state) {
    (void)state;
    assert_string_equal(WRITTEN(json_put_open(&to, '['); json_put_close(&to, ']')), "[]");
    assert_string_equal(WRITTEN(json_put_open(&to, '['); json_put_u64(&to, UINT64_MAX);
                                json_put_i64(&to, -1); json_put_text(&to, "\xff");
                                json_put_bool(&to, true); json_put_close(&to, ']')),
                        "[18446744073709551615,-1,\"\\ufffd\",true]");
    assert_string_equal(WRITTEN(json_put_open(&to, '{'); json_put_key(&to, "a");
                                json_put_open(&to, '['); json_put_close(&to, ']');
                                json_put_key(&to, "\""); json_put_open(&to, '{');
                                json_put_close(&to, '}'); json_put_key(&to, "b");
                                json_put_null(&to); json_put_close(&to, '}')),
                        "{\"a\":[],\"\\\"\":{},\"b\":null}");
    assert_string_equal(WRITTEN(json_put_open(&to, '['); for (int i = 0; i < 2; i++) {
                            json_put_open(&to, '['), json_put_close(&to, ']');
                        } json_put_close(&to, ']')),
                        "[[],[]]");
}

static void lines_begin_elements(void **state) {
    (void)state;
    assert_string_equal(WRITTEN(json_put_open(&to, '['); json_put_line(&to); json_put_u64(&to, 1);
                                json_put_line(&to); json_put_open(&to, '{'); json_put_line(&to);
                                json_put_key(&to, "k"); json_put_u64(&to, 2);
                                json_put_close(&to, '}'); json_put_close(&to, ']')),
                        "[\n1,\n{\n\"k\":2}]");
}

static void numbers_have_their_forms(void **state) {
    (void)state;
    assert_string_equal(WRITTEN(json_put_open(&to, '['); json_put_seconds(&to, 1500000000);
                                json_put_double(&to, 0.25, 4); json_put_open(&to, '[');
                                json_put_text(&to, NULL); json_put_close(&to, ']');
                                json_put_u64_or_null(&to, 7, true);
                                json_put_u64_or_null(&to, 7, false); json_put_close(&to, ']')),
                        "[1.500000000,0.2500,[null],7,null]");
}

static void keys_stand_before_values(void **state) {
    (void)state;
    assert_string_equal(WRITTEN(json_put_open(&to, '{'); json_put_named_u64(&to, "a", 1);
                                json_put_named_i64(&to, "b", -1);
                                json_put_named_bool(&to, "c", false);
                                json_put_named_text(&to, "d", NULL); json_put_number_key(&to, 5);
                                json_put_text(&to, "e"); json_put_named_open(&to, "f", '[');
                                json_put_close(&to, ']'); json_put_close(&to, '}')),
                        "{\"a\":1,\"b\":-1,\"c\":false,\"d\":null,\"5\":\"e\",\"f\":[]}");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(numbers_keep_their_digits),
        cmocka_unit_test(values_of_another_kind_read_as_nothing),
        cmocka_unit_test(memory_is_bounded),
        cmocka_unit_test(escapes_become_characters),
        cmocka_unit_test(half_a_surrogate_pair_is_replaced),
        cmocka_unit_test(other_escapes_are_refused),
        cmocka_unit_test(commas_stand_between),
        cmocka_unit_test(keys_stand_before_values),
        cmocka_unit_test(lines_begin_elements),
        cmocka_unit_test(numbers_have_their_forms),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
