/* Tests which loaded libraries make the library choose segments: libraries that register device
 * memory without the driver. The argument is the path of a library with such a name. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "driver/state/rdma_libraries.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

static const char *library;

static void without_such_a_library_pages_are_possible(void **state) {
    (void)state;
    errno = 7;
    assert_null(rdma_libraries_loaded("/nonexistent"));
    assert_null(rdma_libraries_loaded(
        "/proc/self/fd")); /* a folder with entries: devices, but no library that uses them */
    assert_int_equal(errno, 7);
}

/* NCCL loads its RDMA libraries later, if there are InfiniBand devices. */
static void nccl_counts_where_there_are_infiniband_devices(void **state) {
    (void)state;
    char folder[] = "/tmp/rdma_libraries.XXXXXX", cards[64], name[64], card[80];
    assert_non_null(mkdtemp(folder));
    snprintf(cards, sizeof cards, "%s/cards", folder);
    snprintf(name, sizeof name, "%s/libnccl.so.2", folder);
    snprintf(card, sizeof card, "%s/mlx5_0", cards);
    assert_int_equal(mkdir(cards, 0700), 0);
    char *target = realpath(library, NULL);
    assert_int_equal(symlink(target, name), 0);
    free(target);
    void *handle = dlopen(name, RTLD_NOW);
    assert_non_null(handle);
    assert_null(rdma_libraries_loaded(cards));
    assert_null(rdma_libraries_loaded("/nonexistent"));
    assert_int_equal(symlink("nowhere", card), 0);
    assert_string_equal(rdma_libraries_loaded(cards),
                        "NCCL is loaded, and there are InfiniBand devices");
    dlclose(handle);
    unlink(card), rmdir(cards), unlink(name), rmdir(folder);
}

static void a_loaded_library_is_named(void **state) {
    (void)state;
    void *handle = dlopen(library, RTLD_NOW);
    assert_non_null(handle);
    assert_string_equal(rdma_libraries_loaded("/nonexistent"), "libfabric is loaded");
    dlclose(handle);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(without_such_a_library_pages_are_possible),
        cmocka_unit_test(nccl_counts_where_there_are_infiniband_devices),
        cmocka_unit_test(a_loaded_library_is_named),
    };
    library = argc > 1 ? argv[1] : "";
    return cmocka_run_group_tests_name("rdma_libraries", tests, NULL, NULL);
}
