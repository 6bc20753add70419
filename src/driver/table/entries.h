/*
 * Declares three functions for each entry of the driver, from the rows of entry_points.def.
 *
 *      REAL(cuMemAllocPitch_v2)(...)     calls the driver
 *      hook_cuMemAllocPitch_v2(...)      is the library's replacement
 *      front_cuMemAllocPitch_v2(...)     is exported under the entry's name, for programs linked
 *                                        with -lcuda; calls the hook, in a forked child the driver
 *
 * A forked child has only a copy of the parent's counters and locks, so its calls go to the driver.
 * The hook of a FAST row tests for a forked child itself, and is exported without a front.
 *
 * Invariant: REAL() is never NULL, so no caller tests it. At first REAL() is a function that finds
 * the driver: a program may call from a constructor that runs before the library's. Later REAL() is
 * the driver's entry, or entry_absent(). The loader writes the table; no lock protects it.
 */
#ifndef GPUCACHE_DRIVER_TABLE_ENTRIES_H
#define GPUCACHE_DRIVER_TABLE_ENTRIES_H

#include "driver/table/cuda_abi.h"

#include <stdbool.h>
#include <stdint.h>

/* The table of driver functions, one member for each row. */
struct real_entries {
#define ENTRY(symbol, since, parameters, arguments, effect, test)                                  \
    CUresult(CUDAAPI *real_##symbol) parameters;
#define CALLED(symbol, since, parameters, arguments) CUresult(CUDAAPI *real_##symbol) parameters;
#include "driver/table/entry_points.def"
};

extern struct real_entries real_entries;

#define REAL(symbol) (real_entries.real_##symbol)

/* The hooks and fronts. __asm__ sets the exported name: macros of cuda.h would replace some names
 * by those of another version. */
#define FAST(symbol, since, parameters, arguments, effect, test)                                   \
    CUresult CUDAAPI hook_##symbol parameters __asm__(#symbol)                                     \
        __attribute__((visibility("default")));
#define ENTRY(symbol, since, parameters, arguments, effect, test)                                  \
    CUresult CUDAAPI hook_##symbol parameters;                                                     \
    CUresult CUDAAPI front_##symbol parameters __asm__(#symbol)                                    \
        __attribute__((visibility("default")));
#include "driver/table/entry_points.def"

/** Makes every exported function call the driver from now on, in the child of a fork. */
void entries_forked(void);

/** Replaces an entry that the driver does not have. Returns CUDA_ERROR_NOT_INITIALIZED. */
CUresult CUDAAPI entry_absent(void);

/** Address at which no memory is ever allocated. A driver call with this address returns the answer
 * for freed memory. */
#define UNKNOWN_ADDRESS ((CUdeviceptr)0x1000)

/** Returns whether the driver has an entry. */
#define HAS(symbol) ((void *)REAL(symbol) != (void *)entry_absent)

#endif
