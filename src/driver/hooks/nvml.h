/*
 * Hooks of NVML's queries for the memory of a device. Called with no lock held.
 *
 * NVML (libnvidia-ml.so.1) knows neither the limit nor the pools. The library replaces two entries.
 * Their answers keep within the limit and count idle memory of the pools as free, as those of
 * cuMemGetInfo do. Without a limit the total is NVML's own, which is larger than cuMemGetInfo's.
 * Only calls of this process are replaced: nvidia-smi, in another process, shows the memory of the
 * whole device.
 *
 * The types are declared here because the build machine may lack NVIDIA's nvml.h. Their layout is
 * NVML's ABI and never changes: a new layout gets a new entry or a new version number.
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

/* nvmlMemory_t. `used` is all memory that is not free, including memory reserved by the system. */
struct nvml_memory {
    uint64_t total, free, used;
};

/* nvmlMemory_v2_t. The caller sets `version`. */
struct nvml_memory_v2 {
    unsigned version;
    uint64_t total, reserved, free, used;
};
#define NVML_MEMORY_V2 ((unsigned)sizeof(struct nvml_memory_v2) | 2u << 24)

_Static_assert(sizeof(struct nvml_memory) == 24, "nvmlMemory_t");
_Static_assert(sizeof(struct nvml_memory_v2) == 40, "nvmlMemory_v2_t");

/* The replaced entries: symbol, parameters, arguments. */
#define NVML_ENTRIES(ENTRY)                                                                        \
    ENTRY(nvmlDeviceGetMemoryInfo, (nvml_device nvml, struct nvml_memory * memory),                \
          (nvml, memory))                                                                          \
    ENTRY(nvmlDeviceGetMemoryInfo_v2, (nvml_device nvml, struct nvml_memory_v2 * memory),          \
          (nvml, memory))

/* A hook is exported by NVML's name, as for the driver's entries: a program may be linked with
 * -lnvidia-ml. */
#define DECLARE(symbol, parameters, arguments)                                                     \
    nvml_return hook_##symbol parameters __asm__(#symbol) __attribute__((visibility("default")));
NVML_ENTRIES(DECLARE)
#undef DECLARE

#endif
