/*
 * JSON as the tool reads it (tool/json.h), and as library and tool write it (process/json_put.h).
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "process/json_put.h"
#include "tool/json.h"

/* ---- reading ---- */

/** Reads a text and compares it. NULL: the text is refused. */
static void reads_as(const char *json, const char *wanted) {
    const char *at = json;
    struct json *value = json_read(&at);
    if (!wanted) {
        assert_null(value);
        return;
    }
    assert_non_null(value);
    assert_int_equal(value->kind, JSON_STRING);
    assert_string_equal(json_text(value), wanted);
    json_free(value);
}

static void escapes_become_characters(void **state) {
    (void)state;
    reads_as("\"\\\"\\\\\\/\\b\\f\\n\\r\\t\"", "\"\\/\b\f\n\r\t");
    reads_as("\"\\u0041\\u00e9\\u20AC\"", "A\u00e9\u20ac");
    reads_as("\"\\ud83d\\ude00!\"", "\U0001f600!");
    reads_as("\"\\uDBFF\\uDFFF\\ud800\\udc00\"", "\U0010ffff\U00010000");
}

static void half_a_pair_is_replaced(void **state) {
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
        cmocka_unit_test(escapes_become_characters), cmocka_unit_test(half_a_pair_is_replaced),
        cmocka_unit_test(other_escapes_are_refused), cmocka_unit_test(commas_stand_between),
        cmocka_unit_test(keys_stand_before_values),  cmocka_unit_test(lines_begin_elements),
        cmocka_unit_test(numbers_have_their_forms),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
