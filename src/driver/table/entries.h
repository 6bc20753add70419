/*
 * The driver's entries: the real ones, our replacements, and the way from one to the other.
 *
 *      REAL(cuMemFree_v2)(p)          calls the driver
 *      hook_cuMemFree_v2(p)           is our replacement
 *      front_cuMemFree_v2(p)          is what the program calls; its ELF name is cuMemFree_v2, for
 * programs linked with -lcuda. It leads to our replacement, but in the child of a fork to the
 * driver: the books and locks there are a dead process's.
 *
 * Before the driver is known, REAL() leads to a function that finds it and then calls the entry: a
 * program linked with -lcuda may call from a constructor that runs before anything of ours. An
 * entry the driver does not have answers CUDA_ERROR_NOT_INITIALIZED. So nobody needs to test for
 * NULL.
 */
#ifndef GPUCACHE_DRIVER_TABLE_ENTRIES_H
#define GPUCACHE_DRIVER_TABLE_ENTRIES_H

#include "driver/table/cuda_abi.h"

#include <stdbool.h>
#include <stdint.h>

struct real_entries {
#define ENTRY(symbol, since, parameters, arguments, effect, test)                                  \
    CUresult(CUDAAPI *real_##symbol) parameters;
#define CALLED(symbol, since, parameters, arguments) CUresult(CUDAAPI *real_##symbol) parameters;
#include "driver/table/entry_points.def"
};

extern struct real_entries real_entries;

#define REAL(symbol) (real_entries.real_##symbol)

/* The replacements, and what is exported. The assembler name is the driver's, whatever cuda.h's
 * macros say. */
#define FAST(symbol, since, parameters, arguments, effect, test)                                   \
    CUresult CUDAAPI hook_##symbol parameters __asm__(#symbol)                                     \
        __attribute__((visibility("default")));
#define ENTRY(symbol, since, parameters, arguments, effect, test)                                  \
    CUresult CUDAAPI hook_##symbol parameters;                                                     \
    CUresult CUDAAPI front_##symbol parameters __asm__(#symbol)                                    \
        __attribute__((visibility("default")));
#include "driver/table/entry_points.def"

/** In the child of a fork: from now on every entry is the driver's. */
void entries_forked(void);

/** What an entry that the driver lacks leads to. */
CUresult CUDAAPI entry_absent(void);

/** An address that nobody has. What the driver says of it, it says of memory that was freed. */
#define UNKNOWN_ADDRESS ((CUdeviceptr)0x1000)

/** Whether the driver has an entry. */
#define HAS(symbol) ((void *)REAL(symbol) != (void *)entry_absent)

#endif
