/*
 * NVML, as far as a program asks it how much memory a device has.
 *
 * NVML is a library of its own (libnvidia-ml.so.1) with handles of its own, and knows nothing of a
 * limit or of the pools. Two of its entries are replaced, so that a program gets the same answer
 * from them as from cuMemGetInfo. Only the program's own questions: what nvidia-smi says in another
 * process is the device's own truth.
 *
 * The types stand here because nvml.h need not be on the machine that builds. Their layout is
 * NVML's ABI and never changes; a new layout gets a new entry or a new version number.
 */
#ifndef GPUCACHE_DRIVER_HOOKS_NVML_H
#define GPUCACHE_DRIVER_HOOKS_NVML_H

#include "driver/table/entries.h"

#include <stdint.h>

typedef int nvml_return; /* nvmlReturn_t */
typedef struct nvmlDevice_st *nvml_device;

enum {
    NVML_DONE = 0,                /* NVML_SUCCESS */
    NVML_LIBRARY_NOT_FOUND = 12,  /* NVML_ERROR_LIBRARY_NOT_FOUND */
    NVML_FUNCTION_NOT_FOUND = 13, /* NVML_ERROR_FUNCTION_NOT_FOUND */
};

/* nvmlMemory_t: used is all that is not free, what the system has reserved included. */
struct nvml_memory {
    uint64_t total, free, used;
};

/* nvmlMemory_v2_t: the caller sets `version`. */
struct nvml_memory_v2 {
    unsigned version;
    uint64_t total, reserved, free, used;
};
#define NVML_MEMORY_V2 ((unsigned)sizeof(struct nvml_memory_v2) | 2u << 24)

_Static_assert(sizeof(struct nvml_memory) == 24, "nvmlMemory_t");
_Static_assert(sizeof(struct nvml_memory_v2) == 40, "nvmlMemory_v2_t");

/* Replaced entries: symbol, parameters, arguments. */
#define NVML_ENTRIES(ENTRY)                                                                        \
    ENTRY(nvmlDeviceGetMemoryInfo, (nvml_device nvml, struct nvml_memory * memory),                \
          (nvml, memory))                                                                          \
    ENTRY(nvmlDeviceGetMemoryInfo_v2, (nvml_device nvml, struct nvml_memory_v2 * memory),          \
          (nvml, memory))

/* As for the driver's entries: the assembler name is NVML's, for programs linked with
 * -lnvidia-ml. */
#define DECLARE(symbol, parameters, arguments)                                                     \
    nvml_return hook_##symbol parameters __asm__(#symbol) __attribute__((visibility("default")));
NVML_ENTRIES(DECLARE)
#undef DECLARE

#endif
