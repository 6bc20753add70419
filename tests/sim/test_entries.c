/*
 * Tests which symbol cuGetProcAddress returns for a name, a version and flags.
 */
#include "test_sim.h"

#include <dlfcn.h>

/* An entry of this program with the name of a driver entry. */
CUresult cuProfilerStop(void);
CUresult cuProfilerStop(void) {
    return CUDA_ERROR_UNKNOWN;
}

static void *address_of(const char *name, int version, cuuint64_t flags) {
    CUdriverProcAddressQueryResult status;
    void *address;

    OK(cuGetProcAddress_v2(name, &address, version, flags, &status));
    return address;
}

static void test_every_request_of_the_runtime_gets_an_exported_symbol(void **state) {
    FILE *requests = fopen(getenv("SIM_REQUESTS"), "r");
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    char name[128];
    int version, flags, count = 0;

    (void)state;
    assert_non_null(requests);
    assert_non_null(library);
    while (fscanf(requests, "%127s %d %d", name, &version, &flags) == 3) {
        void *address = address_of(name, version, (cuuint64_t)flags);
        Dl_info info;
        if (!address)
            fail_msg("%s %d %d", name, version, flags);
        assert_int_not_equal(dladdr(address, &info), 0);
        assert_non_null(info.dli_sname);
        assert_ptr_equal(dlsym(library, info.dli_sname), address);
        assert_memory_equal(info.dli_sname, name, strlen(name));
        count++;
    }
    fclose(requests);
    dlclose(library);
    assert_int_equal(count, 439);
}

static void test_version_and_flags_choose_the_variant(void **state) {
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    static const struct {
        const char *name;
        int version, flags;
        const char *symbol;
    } rows[] = {
        {"cuMemAlloc", 3020, 0, "cuMemAlloc_v2"},
        {"cuMemAlloc", 2000, 0, "cuMemAlloc"},
        {"cuMemAlloc", 13000, 2, "cuMemAlloc_v2"},
        {"cuMemAlloc", 1000, 0, NULL},
        {"cuMemAlloc_v2", 13000, 0, NULL},
        {"cuMemAllocAsync", 11020, 2, "cuMemAllocAsync_ptsz"},
        {"cuMemAllocAsync", 11010, 0, NULL},
        {"cuMemcpy", 4000, 0, "cuMemcpy"},
        {"cuMemcpy", 4000, 2, NULL},
        {"cuMemcpy", 7000, 2, "cuMemcpy_ptds"},
        {"cuStreamBeginCapture", 10010, 2, "cuStreamBeginCapture_v2_ptsz"},
        {"cuDevicePrimaryCtxReset", 7000, 0, "cuDevicePrimaryCtxReset"},
        {"cuDevicePrimaryCtxReset", 11000, 0, "cuDevicePrimaryCtxReset_v2"},
        {"cuGetProcAddress", 11030, 0, "cuGetProcAddress"},
        {"cuGetProcAddress", 12000, 0, "cuGetProcAddress_v2"},
        {"cuCtxRecordEvent", 12040, 0, NULL},
        {"cuCtxRecordEvent", 12050, 0, "cuCtxRecordEvent"},
        {"", 0, 0, NULL},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++) {
        void *expected = rows[i].symbol ? dlsym(library, rows[i].symbol) : NULL;
        assert_ptr_equal(address_of(rows[i].name, rows[i].version, (cuuint64_t)rows[i].flags),
                         expected);
    }
    dlclose(library);
}

static void test_statuses_of_entry_resolution(void **state) {
    CUdriverProcAddressQueryResult status = 77;
    void *address;

    (void)state;
    OK(cuGetProcAddress_v2("cuNoSuchThing", &address, 12000, 0, &status));
    assert_int_equal(status, CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
    OK(cuGetProcAddress_v2("cuMemAlloc", &address, 1000, 0, &status));
    assert_int_equal(status, CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT);
    OK(cuGetProcAddress_v2("cuMemAlloc", &address, 13000, 0, NULL));
    OK(cuGetProcAddress("cuMemAlloc", &address, 13000, 0));
    assert_ptr_equal(address, cuMemAlloc_v2);
    FAILS(CUDA_ERROR_NOT_FOUND, cuGetProcAddress("cuNoSuchThing", &address, 13000, 0));
    FAILS(CUDA_ERROR_INVALID_VALUE, cuGetProcAddress_v2("cuMemAlloc", &address, 99000, 0, &status));
    FAILS(CUDA_ERROR_INVALID_VALUE, cuGetProcAddress_v2("cuMemAlloc", &address, 13000, 4, &status));
}

static void test_interposed_symbols_do_not_reach_inside(void **state) {
    (void)state;
    assert_ptr_equal(dlsym(RTLD_DEFAULT, "cuProfilerStop"), cuProfilerStop);
    assert_ptr_not_equal(address_of("cuProfilerStop", 13000, 0), cuProfilerStop);
}

static void test_older_drivers_lack_newer_entries(void **state) {
    (void)state;
    setenv("GPUCACHE_SIM_DRIVER_VERSION", "12040", 1);
    assert_int_equal(run_scene("12.4 by environment"), 0);
    unsetenv("GPUCACHE_SIM_DRIVER_VERSION");
#if !defined(__SANITIZE_ADDRESS__) /* the other driver is not built into the sanitizer's process */
    assert_int_equal(run_scene("old library"), 0);
#endif
}

int test_entries(void) {
    static const struct CMUnitTest tests[] = {
        TEST(test_every_request_of_the_runtime_gets_an_exported_symbol),
        TEST(test_version_and_flags_choose_the_variant),
        TEST(test_statuses_of_entry_resolution),
        TEST(test_interposed_symbols_do_not_reach_inside),
        TEST(test_older_drivers_lack_newer_entries),
    };

    return cmocka_run_group_tests_name("entries", tests, NULL, NULL);
}
