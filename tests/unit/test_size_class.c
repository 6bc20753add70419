/*
 * Size classes: each small request gets a class that holds it, and wastes no more than size_class.h
 * says.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "heap/size_class.h"
#include "heap/slab.h"

#define SIZE_CLASSES 432 /* up to 512 GiB */

static uint64_t class_bytes(unsigned class) {
    return (uint64_t)size_class_units(class) << UNIT_SHIFT;
}

static void every_request_fits_its_class(void **state) {
    (void)state;
    for (uint64_t bytes = 1; bytes <= SMALL_MAX_BYTES; bytes++) {
        unsigned class = size_class_of(bytes);
        if (class >= SMALL_CLASSES || class_bytes(class) < bytes)
            fail_msg("%lu bytes: class %u", (unsigned long)bytes, class);
    }
}

static void no_smaller_class_would_do(void **state) {
    (void)state;
    for (uint64_t bytes = 1; bytes <= SMALL_MAX_BYTES; bytes++) {
        unsigned class = size_class_of(bytes);
        if (class > 0 && class_bytes(class - 1) >= bytes)
            fail_msg("%lu bytes: class %u", (unsigned long)bytes, class);
    }
}

static void waste_is_one_unit_or_one_sixteenth(void **state) {
    (void)state;
    for (uint64_t bytes = 1; bytes <= SMALL_MAX_BYTES; bytes++) {
        uint64_t waste = class_bytes(size_class_of(bytes)) - bytes;
        if (waste > 511 && waste > bytes / 16)
            fail_msg("%lu bytes: %lu wasted", (unsigned long)bytes, (unsigned long)waste);
    }
}

static void a_block_freed_finds_its_class_again(void **state) {
    (void)state;
    for (unsigned class = 0; class < SIZE_CLASSES; class ++)
        assert_int_equal(size_class_of(class_bytes(class)), class);
}

static void powers_of_two_are_exact(void **state) {
    (void)state;
    for (uint64_t bytes = 512; bytes <= SMALL_MAX_BYTES; bytes *= 2)
        assert_int_equal(class_bytes(size_class_of(bytes)), bytes);
}

static void a_size_lies_between_its_two_classes(void **state) {
    (void)state;
    for (uint64_t bytes = 512; bytes < (uint64_t)512 << 30; bytes += bytes / 1000 + 1) {
        unsigned above = size_class_of(bytes), below = size_class_of(bytes + 1) - 1;
        assert_true(above < SIZE_CLASSES && class_bytes(above) >= bytes);
        assert_true(class_bytes(below) <= bytes);
        assert_int_equal(above, class_bytes(below) == bytes ? below : below + 1);
        assert_true(bytes < 32 * 512 || class_bytes(above) - bytes <= bytes / 16);
    }
    assert_int_equal(size_class_of((uint64_t)512 << 30), SIZE_CLASSES - 1);
}

static void the_last_class_is_the_largest_small_block(void **state) {
    (void)state;
    assert_int_equal(size_class_of(SMALL_MAX_BYTES), SMALL_CLASSES - 1);
    assert_true(size_class_units(SMALL_CLASSES - 1) <= SLAB_UNITS);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_request_fits_its_class),
        cmocka_unit_test(no_smaller_class_would_do),
        cmocka_unit_test(waste_is_one_unit_or_one_sixteenth),
        cmocka_unit_test(a_block_freed_finds_its_class_again),
        cmocka_unit_test(powers_of_two_are_exact),
        cmocka_unit_test(a_size_lies_between_its_two_classes),
        cmocka_unit_test(the_last_class_is_the_largest_small_block),
    };
    return cmocka_run_group_tests_name("size classes", tests, NULL, NULL);
}
