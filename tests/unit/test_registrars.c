/* What is a reason for segments: a library that registers memory past the driver. test_registrars LIBRARY: one of that name. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "driver/registrars.h"

#include <dlfcn.h>

static const char *library;

static void nothing_is_loaded(void **state) {
    (void)state;
    assert_null(registrars_loaded());
}

static void a_library_is(void **state) {
    (void)state;
    void *handle = dlopen(library, RTLD_NOW);
    assert_non_null(handle);
    assert_string_equal(registrars_loaded(), "libfabric is loaded");
    dlclose(handle);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_is_loaded),
        cmocka_unit_test(a_library_is),
    };
    library = argc > 1 ? argv[1] : "";
    return cmocka_run_group_tests_name("registrars", tests, NULL, NULL);
}
