/*
 * Reads the memory of a device and of its processes from NVML, to compare with the library's
 * values. The driver's values include contexts, code and all memory that the library does not see.
 * Keeps the last values of each device until nvml_refresh().
 *
 * libnvidia-ml.so.1 comes with the driver and is loaded at the first call. Without NVML, or for a
 * device that NVML does not know, the values are unknown. In a container NVML's process numbers may
 * be those of the host; a process is then not found.
 */
#include "tool/screen/screen.h"

#include "tool/common/tool.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ATTEMPTS 3 /* to read a list of processes, which may grow between two calls */

/* NVML's ABI, declared here because the build machine may have no nvml.h. */
enum { NVML_DONE = 0, NVML_SHORT = 7 };
typedef void *handle;
struct memory { /* nvmlMemory_t */
    unsigned long long total, free, used;
};
struct process { /* nvmlProcessInfo_t of the functions with _v2 and _v3 */
    unsigned pid;
    unsigned long long used; /* all ones: unknown */
    unsigned gpu_instance, compute_instance;
};
struct utilization { /* nvmlUtilization_t */
    unsigned gpu, memory;
};
_Static_assert(sizeof(struct process) == 24, "nvmlProcessInfo_t");

static struct {
    bool tried, works;
    int (*init)(void);
    int (*by_uuid)(const char *, handle *);
    int (*memory)(handle, struct memory *);
    int (*processes)(handle, unsigned *, struct process *);
    int (*utilization)(handle, struct utilization *);
} nvml;

/* The last values of each device. */
static struct device {
    struct device *next;
    char uuid[64];
    handle handle; /* NULL: NVML does not know the device */
    bool fresh;
    struct memory memory; /* total 0: unknown */
    uint64_t busy;
    struct process *processes;
    unsigned count;
} * devices;

/** Looks up a function. Copies the pointer, because dlsym() returns a pointer to data. */
static bool find(void *library, const char *name, void *entry) {
    void *found = dlsym(library, name);
    memcpy(entry, &found, sizeof found);
    return found != NULL;
}

/** Returns whether NVML can be loaded and initialised. */
static bool is_there(void) {
    if (nvml.tried)
        return nvml.works;
    nvml.tried = true;
    void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    nvml.works = library && find(library, "nvmlInit_v2", &nvml.init) &&
                 find(library, "nvmlDeviceGetHandleByUUID", &nvml.by_uuid) &&
                 find(library, "nvmlDeviceGetMemoryInfo", &nvml.memory) && nvml.init() == NVML_DONE;
    if (nvml.works && !find(library, "nvmlDeviceGetComputeRunningProcesses_v3", &nvml.processes))
        find(library, "nvmlDeviceGetComputeRunningProcesses_v2", &nvml.processes);
    if (nvml.works)
        find(library, "nvmlDeviceGetUtilizationRates", &nvml.utilization);
    return nvml.works;
}

/** Finds a device by its UUID. CUDA's UUID does not tell a whole device from a MIG instance. */
static handle handle_of(const char *uuid) {
    static const char *const kinds[] = {"GPU", "MIG"};
    const char *number = strchr(uuid, '-');
    char name[64];
    for (size_t i = 0; number && i < sizeof kinds / sizeof *kinds; i++) {
        handle found = NULL;
        snprintf(name, sizeof name, "%s%s", kinds[i], number);
        if (nvml.by_uuid(name, &found) == NVML_DONE)
            return found;
    }
    return NULL;
}

static struct device *device_of(const char *uuid) {
    for (struct device *device = devices; device; device = device->next)
        if (strcmp(device->uuid, uuid) == 0)
            return device;
    struct device *device = checked(calloc(1, sizeof *device));
    snprintf(device->uuid, sizeof device->uuid, "%s", uuid);
    device->handle = handle_of(uuid);
    device->next = devices;
    devices = device;
    return device;
}

static void read_processes(struct device *device) {
    unsigned capacity = 0;
    int result = NVML_SHORT;
    for (unsigned i = 0; nvml.processes && result == NVML_SHORT && i < ATTEMPTS; i++) {
        capacity = device->count + 16; /* count of the last read, or of the last attempt */
        device->processes =
            checked(realloc(device->processes, capacity * sizeof *device->processes));
        device->count = capacity;
        result = nvml.processes(device->handle, &device->count, device->processes);
    }
    if (result != NVML_DONE || device->count > capacity)
        device->count = 0;
}

void nvml_refresh(void) {
    for (struct device *device = devices; device; device = device->next)
        device->fresh = false;
}

static void read_device(struct device *device) {
    struct memory *memory = &device->memory;
    struct utilization utilization;
    if (nvml.memory(device->handle, memory) != NVML_DONE || memory->total == NVML_UNKNOWN ||
        memory->used > memory->total)
        *memory = (struct memory){0};
    bool known = nvml.utilization && /* not for a MIG instance */
                 nvml.utilization(device->handle, &utilization) == NVML_DONE;
    device->busy = known && utilization.gpu <= 100 ? utilization.gpu : NVML_UNKNOWN;
    read_processes(device);
    device->fresh = true;
}

void nvml_read(const char *uuid, int pid, struct nvml_values *values) {
    struct device *device = is_there() ? device_of(uuid) : NULL;
    bool seen = false;
    *values = (struct nvml_values){0, 0, NVML_UNKNOWN, NVML_UNKNOWN, NVML_UNKNOWN};
    if (!device || !device->handle)
        return;
    if (!device->fresh)
        read_device(device);
    uint64_t others = 0;
    for (unsigned i = 0; i < device->count; i++) {
        uint64_t used = device->processes[i].used;
        if (device->processes[i].pid == (unsigned)pid) {
            values->process = used;
            seen = true;
        } else {
            others = used == NVML_UNKNOWN || others == NVML_UNKNOWN ? NVML_UNKNOWN : others + used;
        }
    }
    values->used = device->memory.used;
    values->total = device->memory.total;
    values->others = seen ? others : NVML_UNKNOWN;
    values->busy = device->busy;
}
