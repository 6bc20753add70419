#include "tool/nvml.h"

#include "tool/tool.h"

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
_Static_assert(sizeof(struct process) == 24, "nvmlProcessInfo_t");

static struct {
    bool tried, works;
    int (*init)(void);
    int (*by_uuid)(const char *, handle *);
    int (*memory)(handle, struct memory *);
    int (*processes)(handle, unsigned *, struct process *);
} nvml;

/* The last values of each device. */
static struct device {
    struct device *next;
    char uuid[64];
    handle handle; /* NULL: NVML does not know the device */
    bool fresh, known;
    struct memory memory;
    struct process *processes;
    unsigned count;
} * devices;

/** Looks up a function. Copies the pointer, because dlsym() returns a pointer to data. */
static bool find(void *library, const char *name, void *entry) {
    void *found = dlsym(library, name);
    memcpy(entry, &found, sizeof found);
    return found != NULL;
}

bool nvml_is_there(void) {
    if (nvml.tried)
        return nvml.works;
    nvml.tried = true;
    void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    nvml.works = library && find(library, "nvmlInit_v2", &nvml.init) &&
                 find(library, "nvmlDeviceGetHandleByUUID", &nvml.by_uuid) &&
                 find(library, "nvmlDeviceGetMemoryInfo", &nvml.memory) && nvml.init() == NVML_DONE;
    if (nvml.works && !find(library, "nvmlDeviceGetComputeRunningProcesses_v3", &nvml.processes))
        find(library, "nvmlDeviceGetComputeRunningProcesses_v2", &nvml.processes);
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

bool nvml_read(const char *uuid, int pid, struct nvml_figures *figures) {
    struct device *device = nvml_is_there() ? device_of(uuid) : NULL;
    if (!device || !device->handle)
        return false;
    if (!device->fresh) {
        device->fresh = true;
        device->known = nvml.memory(device->handle, &device->memory) == NVML_DONE &&
                        device->memory.total != NVML_UNKNOWN && device->memory.total > 0 &&
                        device->memory.used <= device->memory.total;
        read_processes(device);
    }
    *figures = (struct nvml_figures){device->memory.used, device->memory.total, NVML_UNKNOWN};
    for (unsigned i = 0; i < device->count; i++)
        if (device->processes[i].pid == (unsigned)pid && device->processes[i].used != NVML_UNKNOWN)
            figures->process = device->processes[i].used;
    return device->known;
}
