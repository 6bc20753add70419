/*
 * What NVML says of a device and of the processes on it, beside the library's own figures: the
 * driver's own bookkeeping, with contexts, code and everything that passes the library by.
 *
 * libnvidia-ml.so.1 comes with the driver and is looked for when it is first needed. Without it, or
 * without a device that it knows, nothing is known, and nothing is said. In a container its process
 * numbers may be those of the host: then a process is not found.
 */
#ifndef GPUCACHE_TOOL_NVML_H
#define GPUCACHE_TOOL_NVML_H

#include <stdbool.h>
#include <stdint.h>

#define NVML_UNKNOWN UINT64_MAX

struct nvml_figures {
    uint64_t used, total; /* of the device, by whomever; */
    uint64_t process;     /* of it by this process, or NVML_UNKNOWN */
};

/** Whether there is an NVML that works. */
bool nvml_is_there(void);

/** Forgets what was read: the next answers are new. */
void nvml_refresh(void);

/** The device by its UUID as a report has it; false: not known. */
bool nvml_read(const char *uuid, int pid, struct nvml_figures *figures);

#endif
