/*
 * Tests the sort without malloc (base/sort.h), and its heap, which selects the lowest keys.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/sort.h"

#define MOST 300

struct row {
    uint64_t key, same[4]; /* all equal to `key`, so a torn element shows */
};

static void write_row(struct row *row, uint64_t key) {
    row->key = key;
    for (unsigned i = 0; i < 4; i++)
        row->same[i] = key;
}

static uint64_t drawn(uint64_t *state) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return *state >> 33;
}

static void is_whole(const struct row *row) {
    for (unsigned i = 0; i < 4; i++)
        assert_int_equal(row->key, row->same[i]);
}

static void any_number_of_elements_is_sorted(void **state) {
    (void)state;
    uint64_t seed = 1;
    for (size_t count = 0; count < MOST; count++) {
        struct row rows[MOST + 1];
        uint64_t sum = 0, range = count % 3 == 0 ? 4 : UINT32_MAX; /* few keys, or all different */
        for (size_t i = 0; i < count; i++) {
            uint64_t key = drawn(&seed) % range;
            write_row(&rows[i], key);
            sum += key;
        }
        write_row(&rows[count], 0); /* behind the end: must stay */
        sort_by_key(rows, count, sizeof *rows);
        assert_int_equal(rows[count].key, 0);
        for (size_t i = 0; i < count; i++) {
            is_whole(&rows[i]);
            sum -= rows[i].key;
            assert_true(i == 0 || rows[i - 1].key <= rows[i].key);
        }
        assert_int_equal(sum, 0);
    }
}

static void sorted_elements_stay(void **state) {
    (void)state;
    uint64_t keys[MOST];
    for (size_t i = 0; i < MOST; i++)
        keys[i] = i;
    sort_by_key(keys, MOST, sizeof *keys);
    for (size_t i = 0; i < MOST; i++)
        assert_int_equal(keys[i], i);
}

static void a_heap_keeps_the_lowest(void **state) {
    (void)state;
    enum { KEPT = 37 };
    uint64_t seed = 2, all[1000], heap[KEPT];
    for (size_t i = 0; i < 1000; i++)
        all[i] = drawn(&seed);
    memcpy(heap, all, sizeof heap);
    for (size_t i = KEPT; i > 0; i--)
        sort_sift(heap, KEPT, sizeof *heap, i - 1);
    for (size_t i = KEPT; i < 1000; i++) {
        if (all[i] < heap[0]) {
            heap[0] = all[i];
            sort_sift(heap, KEPT, sizeof *heap, 0);
        }
    }
    sort_by_key(all, 1000, sizeof *all);
    sort_by_key(heap, KEPT, sizeof *heap);
    assert_memory_equal(heap, all, sizeof heap);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_number_of_elements_is_sorted),
        cmocka_unit_test(sorted_elements_stay),
        cmocka_unit_test(a_heap_keeps_the_lowest),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
