/*
 * Reads the memory of a device and of its processes from NVML, to compare with the library's
 * values. The driver's values include contexts, code and all memory that the library does not see.
 *
 * libnvidia-ml.so.1 comes with the driver and is loaded at the first call. Without it, or for a
 * device that it does not know, the values are unknown and nothing is printed. In a container,
 * NVML's process numbers may be those of the host; a process is then not found.
 */
#ifndef GPUCACHE_TOOL_NVML_H
#define GPUCACHE_TOOL_NVML_H

#include <stdbool.h>
#include <stdint.h>

#define NVML_UNKNOWN UINT64_MAX

struct nvml_figures {
    uint64_t used, total; /* bytes of the device, by all processes */
    uint64_t process;     /* bytes of the process, or NVML_UNKNOWN */
};

/** Returns whether NVML can be loaded and initialised. */
bool nvml_is_there(void);

/** Discards all values, so that the next calls read them again. */
void nvml_refresh(void);

/**
 * Reads the values of a process on a device, by the device's UUID in a report. Returns false if the
 * device is unknown.
 */
bool nvml_read(const char *uuid, int pid, struct nvml_figures *figures);

#endif
