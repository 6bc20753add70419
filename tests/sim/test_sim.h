/*
 * Functions of all tests of the simulated driver: a fresh driver for every test, the built-in
 * kernels, and scenes. A scene is a test that ends its process or needs a second one: run_scene()
 * starts this program again with the scene's name.
 */
#ifndef GPUCACHE_TESTS_SIM_TEST_SIM_H
#define GPUCACHE_TESTS_SIM_TEST_SIM_H

#define __CUDA_API_VERSION_INTERNAL
#include "driver/table/cuda_abi.h"

#include "sim.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

#include <cmocka.h>

#define OK(call) assert_int_equal((call), CUDA_SUCCESS)
#define FAILS(error, call) assert_int_equal((call), (error))
#define TEST(name) cmocka_unit_test_setup(name, fresh)
#define GRANULE ((size_t)2 << 20)

/* Outside a cmocka test: in a scene. */
#define SCENE_OK(call)                                                                             \
    do {                                                                                           \
        CUresult scene_result = (call);                                                            \
        if (scene_result != CUDA_SUCCESS) {                                                        \
            fprintf(stderr, "%s:%d: %s: %d\n", __FILE__, __LINE__, #call, (int)scene_result);      \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)
#define SCENE_TRUE(condition)                                                                      \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition);                \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

/* Set up by start(). */
extern CUcontext context;
extern CUfunction fill, add, check, spin, set, fault;
extern CUstream a, b;    /* non-blocking */
extern CUdeviceptr flag; /* 1024 words, all 0 */

/* Properties of an exportable page of device 0, and access to it. */
extern const CUmemAllocationProp page_prop;
extern const CUmemAccessDesc page_access;

void start(void);
int fresh(void **state); /* cmocka's set-up: two devices, nothing runs unless somebody waits */
void fresh_with(const char *name, const char *value); /* anew, with this in the environment */
void load_kernels(void);                              /* in the current context */
void launch(CUfunction function, CUstream stream, void **params);
void launch_fill(CUstream stream, CUdeviceptr to, uint32_t value, uint64_t count);
void launch_spin(CUstream stream, CUdeviceptr at, uint32_t value);
void launch_set(CUstream stream, CUdeviceptr at, uint32_t value);
uint32_t read_u32(CUdeviceptr at);

const char *old_driver(void);    /* path of the library of CUDA 12.4 */
int run_scene(const char *name); /* its exit status, 256 + signal if it was killed */
pid_t start_scene(const char *name, int fd, int as); /* with a descriptor under a number */

int test_entries(void);
int test_memory(void);
int test_contexts(void);
int test_streams(void);
int test_captures(void);
int test_sharing(void);
int test_control(void);
int test_lifetimes(void);

#endif
