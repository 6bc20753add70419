/*
 * Reads the memory of a device and of its processes from NVML, to compare with the library's
 * values. The driver's values include contexts, code and all memory that the library does not see.
 *
 * libnvidia-ml.so.1 comes with the driver and is loaded at the first call. Without NVML, or for a
 * device that NVML does not know, the values are unknown. In a container NVML's process numbers may
 * be those of the host; a process is then not found.
 */
#ifndef GPUCACHE_TOOL_SCREEN_NVML_H
#define GPUCACHE_TOOL_SCREEN_NVML_H

#include <stdint.h>

#define NVML_UNKNOWN UINT64_MAX

struct nvml_values {
    uint64_t used, total; /* bytes of the device, by all processes; total 0: unknown */
    uint64_t process;     /* bytes of the process, or NVML_UNKNOWN */
    uint64_t others;      /* bytes of all other processes, or NVML_UNKNOWN */
    uint64_t busy;        /* percent of the last sample period with a kernel, or NVML_UNKNOWN */
};

/** Discards all values, so that the next calls read them again. */
void nvml_refresh(void);

/**
 * Reads the values of a process on a device, by the device's UUID in a report. The bytes of other
 * processes are known only if NVML sees this process and the bytes of all others.
 */
void nvml_read(const char *uuid, int pid, struct nvml_values *values);

#endif
