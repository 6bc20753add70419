/*
 * What freezes the layout of pages: not a library that could register memory, nor the device alone, but the device open
 * beside the library. test_registrars LIBRARY: one of that name. In this order: all of it is for good.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "driver/registrars.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static const char *library;
static void *handle;
static char folder[] = "/tmp/registrars.XXXXXX";

static int open_file(const char *name) {
    char path[64];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    int file = open(path, O_RDWR | O_CREAT, 0600);
    assert_true(file >= 0);
    unlink(path);
    return file;
}

static void a_device_alone_freezes_nothing(void **state) {
    (void)state;
    int device = open_file("uverbs0");
    assert_null(registrars_loaded());
    assert_null(registrars_freeze());
    close(device);
}

static void nor_does_a_library(void **state) {
    (void)state;
    handle = dlopen(library, RTLD_NOW);
    assert_non_null(handle);
    assert_string_equal(registrars_loaded(), "libfabric is loaded");
    int other = open_file("verbs"), another = open_file("not-uverbs0");
    errno = 77;
    assert_null(registrars_freeze());
    assert_int_equal(errno, 77);
    close(other);
    close(another);
}

static void the_device_beside_it_does_and_for_good(void **state) {
    (void)state;
    int device = open_file("uverbs0");
    errno = 77;
    assert_string_equal(registrars_freeze(), "pages stay where they are: a network card is open");
    assert_int_equal(errno, 77);
    close(device);
    dlclose(handle);
    assert_non_null(registrars_freeze());
    assert_non_null(registrars_loaded());
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_device_alone_freezes_nothing),
        cmocka_unit_test(nor_does_a_library),
        cmocka_unit_test(the_device_beside_it_does_and_for_good),
    };
    library = argc > 1 ? argv[1] : "";
    if (!mkdtemp(folder)) {
        return 1;
    }
    int failed = cmocka_run_group_tests_name("registrars", tests, NULL, NULL);
    rmdir(folder);
    return failed;
}
