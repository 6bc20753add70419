/*
 * Functions and macros of all programs here. They use the plain driver API, so they run on a real
 * GPU as well as on the simulator, except those that say they need the simulator's own calls.
 */
#ifndef GPUCACHE_TESTS_PROGRAM_H
#define GPUCACHE_TESTS_PROGRAM_H

#include "../../src/driver/table/cuda_abi.h"
#include "kernels.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Makes a call that must succeed. Any other code ends the program. */
#define CHECK(call) check_call((call), #call, __FILE__, __LINE__)

static inline void check_call(CUresult result, const char *call, const char *file, int line) {
    if (result == CUDA_SUCCESS)
        return;
    fprintf(stderr, "%s:%d: %s: %d\n", file, line, call, (int)result);
    exit(1);
}

/*
 * Begins a part of the program: prints "# NAME", and returns whether the part is to run.
 *
 * If the program dies, its script sees from this line in which part. The script then names the
 * part in PROGRAM_SKIP ("a,b") and runs the others again.
 */
static inline bool section(const char *name) {
    size_t length = strlen(name);
    const char *skip = getenv("PROGRAM_SKIP");
    for (const char *at = skip; at && (at = strstr(at, name)); at += length)
        if ((at == skip || at[-1] == ',') && (at[length] == '\0' || at[length] == ','))
            return false;
    printf("# %s\n", name);
    fflush(stdout);
    return true;
}

/* Draws a number. The generator is not libc's, so a seed draws the same numbers on every
 * machine. */
static inline uint64_t draw(uint64_t *state) {
    uint64_t z = (*state += 0x9E3779B97F4A7C15u);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

static inline unsigned pick(uint64_t *state, unsigned below) {
    return (unsigned)((draw(state) >> 16) % below);
}

/* The kernels of one context. */
struct kernels {
    CUmodule module;
    CUfunction fill, add, check, spin, set, sleep, fault;
};

static inline void kernels_load(struct kernels *k) {
    CHECK(cuModuleLoadData(&k->module, kernels_ptx));
    CHECK(cuModuleGetFunction(&k->fill, k->module, "fill_u32"));
    CHECK(cuModuleGetFunction(&k->add, k->module, "add_u32"));
    CHECK(cuModuleGetFunction(&k->check, k->module, "check_u32"));
    CHECK(cuModuleGetFunction(&k->spin, k->module, "spin_until"));
    CHECK(cuModuleGetFunction(&k->set, k->module, "set_u32"));
    CHECK(cuModuleGetFunction(&k->sleep, k->module, "sleep_us"));
    CHECK(cuModuleGetFunction(&k->fault, k->module, "fault"));
}

static inline CUresult launch(CUfunction function, CUstream stream, unsigned threads,
                              void **params) {
    return cuLaunchKernel(function, 1, 1, 1, threads, 1, 1, 0, stream, params, NULL);
}

static inline CUresult launch_fill(const struct kernels *k, CUstream stream, CUdeviceptr to,
                                   uint32_t value, uint64_t count) {
    void *params[] = {&to, &value, &count};
    return launch(k->fill, stream, 256, params);
}

static inline CUresult launch_check(const struct kernels *k, CUstream stream, CUdeviceptr from,
                                    uint32_t value, uint64_t count, CUdeviceptr errors) {
    void *params[] = {&from, &value, &count, &errors};
    return launch(k->check, stream, 256, params);
}

static inline CUresult launch_spin(const struct kernels *k, CUstream stream, CUdeviceptr flag,
                                   uint32_t value) {
    void *params[] = {&flag, &value};
    return launch(k->spin, stream, 1, params);
}

static inline CUresult launch_set(const struct kernels *k, CUstream stream, CUdeviceptr flag,
                                  uint32_t value) {
    void *params[] = {&flag, &value};
    return launch(k->set, stream, 1, params);
}

static inline CUresult launch_sleep(const struct kernels *k, CUstream stream, uint64_t us) {
    void *params[] = {&us};
    return launch(k->sleep, stream, 1, params);
}

/* Makes the first device's primary context current and returns it. */
static inline CUcontext begin(void) {
    CUdevice device;
    CUcontext context;
    CHECK(cuInit(0));
    CHECK(cuDeviceGet(&device, 0));
    CHECK(cuDevicePrimaryCtxRetain(&context, device));
    CHECK(cuCtxSetCurrent(context));
    return context;
}

#endif
