/*
 * A libnvidia-ml.so.1 for tests. The answers are in the file that GPUCACHE_SIM_NVML
 * names, read again at every query:
 *
 *      KIND USED TOTAL BUSY  what UUIDs begin with, the device's memory and the percentage of time
 *                            with a kernel; -1: not available, as is a BUSY that is left out
 *      PID BYTES             a process, and so on
 *
 * Without the file nvmlInit fails.
 *
 * GPUCACHE_SIM_NVML_LIMITS is "SOFT HARD", the limits of the process's cgroup in bytes; without it
 * no cgroup has limits, and with "hang" nvmlInit never returns. "SOFT HARD MS": nvmlInit takes MS
 * milliseconds.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { DONE = 0, INVALID = 2, NO_SUPPORT = 3, NOT_FOUND = 6, SHORT = 7, NO_DRIVER = 9 };

struct memory {
    unsigned long long total, free, used;
};
struct memory_limits {
    const char *cgroup;
    unsigned long long soft, hard, used;
};
struct process {
    unsigned pid;
    unsigned long long used;
    unsigned gpu_instance, compute_instance;
};
struct utilization {
    unsigned gpu, memory;
};

#define API __attribute__((visibility("default")))
API int nvmlInit_v2(void);
API int nvmlShutdown(void);
API int nvmlDeviceGetMemoryLimits_v1(void *handle, struct memory_limits *limits);
API int nvmlDeviceGetHandleByUUID(const char *uuid, void **handle);
API int nvmlDeviceGetMemoryInfo(void *handle, struct memory *memory);
API int nvmlDeviceGetComputeRunningProcesses_v3(void *handle, unsigned *count,
                                                struct process *processes);
API int nvmlDeviceGetUtilizationRates(void *handle, struct utilization *utilization);

static int busy; /* of the file's last reading */

static FILE *open_file(char kind[8], long long *used, long long *total) {
    const char *path = getenv("GPUCACHE_SIM_NVML");
    FILE *file = path ? fopen(path, "re") : NULL;
    char line[128] = "";
    busy = -1;
    if (file && (!fgets(line, sizeof line, file) ||
                 sscanf(line, "%7s %lld %lld %d", kind, used, total, &busy) < 3)) {
        fclose(file);
        file = NULL;
    }
    return file;
}

int nvmlInit_v2(void) {
    char kind[8];
    long long used, total;
    const char *limits = getenv("GPUCACHE_SIM_NVML_LIMITS");
    unsigned ms;
    while (limits && strcmp(limits, "hang") == 0)
        pause();
    if (limits && sscanf(limits, "%*u %*u %u", &ms) == 1)
        usleep(ms * 1000);
    FILE *file = open_file(kind, &used, &total);
    if (file)
        fclose(file);
    return file ? DONE : NO_DRIVER;
}

int nvmlShutdown(void) {
    return DONE;
}

int nvmlDeviceGetMemoryLimits_v1(void *handle, struct memory_limits *limits) {
    const char *set = getenv("GPUCACHE_SIM_NVML_LIMITS");
    if (!handle || !limits->cgroup || strncmp(limits->cgroup, "/sys/fs/cgroup", 14) != 0)
        return INVALID;
    return set && sscanf(set, "%llu %llu", &limits->soft, &limits->hard) == 2 ? DONE : NOT_FOUND;
}

int nvmlDeviceGetHandleByUUID(const char *uuid, void **handle) {
    char kind[8] = "";
    long long used, total;
    FILE *file = open_file(kind, &used, &total);
    if (!file)
        return NO_DRIVER;
    fclose(file);
    if (strncmp(uuid, kind, strlen(kind)) != 0 || uuid[strlen(kind)] != '-')
        return NOT_FOUND;
    *handle = nvmlInit_v2; /* something that is not NULL */
    return DONE;
}

int nvmlDeviceGetMemoryInfo(void *handle, struct memory *memory) {
    char kind[8];
    long long used = 0, total = 0;
    FILE *file = handle ? open_file(kind, &used, &total) : NULL;
    if (!file)
        return NO_DRIVER;
    fclose(file);
    *memory = (struct memory){(unsigned long long)total, (unsigned long long)(total - used),
                              (unsigned long long)used};
    return DONE;
}

int nvmlDeviceGetComputeRunningProcesses_v3(void *handle, unsigned *count,
                                            struct process *processes) {
    char kind[8];
    long long used, total;
    unsigned pid, found = 0;
    FILE *file = handle ? open_file(kind, &used, &total) : NULL;
    if (!file)
        return NO_DRIVER;
    while (fscanf(file, "%u %lld", &pid, &used) == 2) {
        if (found < *count)
            processes[found] = (struct process){pid, (unsigned long long)used, ~0u, ~0u};
        found++;
    }
    fclose(file);
    int result = found <= *count ? DONE : SHORT;
    *count = found;
    return result;
}

int nvmlDeviceGetUtilizationRates(void *handle, struct utilization *utilization) {
    char kind[8];
    long long used, total;
    FILE *file = handle ? open_file(kind, &used, &total) : NULL;
    if (!file)
        return NO_DRIVER;
    fclose(file);
    *utilization = (struct utilization){(unsigned)busy, 0};
    return busy < 0 ? NO_SUPPORT : DONE;
}
