#include "driver/state/partition.h"

#include "base/cgroup.h"
#include "base/clock.h"
#include "base/program.h"
#include "driver/state/device.h"
#include "driver/table/entries.h"
#include "loader/loader.h"
#include "process/helper.h"
#include "process/process.h"

#include <dlfcn.h>
#include <errno.h>
#include <string.h>
#include <unistd.h>

#define LIMITS_SINCE 13040 /* first driver version with nvmlDeviceGetMemoryLimits_v1 */
#define CGROUPS "/sys/fs/cgroup"
#define POLL_NS 1000000 /* time between two tests for the limits */
#define POLLS_MOST 1000 /* tests after which a thread goes on without the limits */

/* NVML's ABI, declared here because the build machine may lack nvml.h (see hooks/nvml.h). */
enum { NVML_DONE = 0 };
struct memory_limits {  /* nvmlGetMemoryLimits_v1_t */
    const char *cgroup; /* full path of its folder */
    uint64_t soft, hard, used;
};
_Static_assert(sizeof(struct memory_limits) == 32, "nvmlGetMemoryLimits_v1_t");

/* The functions of NVML that the helper thread calls. */
struct nvml {
    int (*init)(void);
    int (*shutdown)(void);
    int (*by_uuid)(const char *uuid, void **handle);
    int (*limits)(void *handle, struct memory_limits *limits);
};

static _Atomic uint64_t hard_limits[STATS_MAX_DEVICES], soft_limits[STATS_MAX_DEVICES];

uint64_t partition_hard_limit(int ordinal) {
    return ordinal >= 0 && ordinal < STATS_MAX_DEVICES ? atomic_load(&hard_limits[ordinal]) : 0;
}

uint64_t partition_soft_limit(int ordinal) {
    return ordinal >= 0 && ordinal < STATS_MAX_DEVICES ? atomic_load(&soft_limits[ordinal]) : 0;
}

/* Returns the folder of this process's cgroup of version 2. NULL: there is none, or its name is too
 * long. A container may see the host's name of its cgroup, without such a folder. The root is then
 * its cgroup. Only the thread that has set `begun` calls this function: the buffers are static. */
static const char *own_cgroup(void) {
    static char text[8192], path[sizeof CGROUPS + sizeof text];
    size_t length = program_read_file("/proc/self/cgroup", text, sizeof text - 1);
    if (length == 0 || length == sizeof text - 1)
        return NULL; /* unreadable, or longer than the buffer */
    text[length] = '\0';
    const char *name = cgroup_find(text, "", &length);
    if (length == 0)
        return NULL;
    strcpy(path, CGROUPS);
    if (length > 1)
        strncat(path, name, length);
    return access(path, F_OK) == 0 ? path : CGROUPS;
}

/* Writes a library's function to *entry, a function pointer. Copies the bytes, because dlsym()
 * returns a pointer to data. Returns false if the library lacks the function. */
static bool find_function(void *library, const char *name, void *entry) {
    void *found = loader_next_dlsym(library, name);
    memcpy(entry, &found, sizeof found);
    return found != NULL;
}

/* The helper thread's arguments, which are constant while it runs, and `finished`. */
static struct {
    const char *cgroup;
    int count;
    atomic_bool finished; /* the thread has read all limits, or failed */
} reader;

/* Reads the limits of one device. Leaves them at 0 if NVML has none or refuses. */
static void read_limits(const struct nvml *nvml, int ordinal) {
    char uuid[48];
    void *handle = NULL;
    struct memory_limits got = {.cgroup = reader.cgroup};
    if (!device_uuid(ordinal, uuid) || nvml->by_uuid(uuid, &handle) != NVML_DONE ||
        nvml->limits(handle, &got) != NVML_DONE)
        return;
    atomic_store(&hard_limits[ordinal], got.hard == UINT64_MAX ? 0 : got.hard);
    atomic_store(&soft_limits[ordinal], got.soft == UINT64_MAX ? 0 : got.soft);
}

/* The helper thread: loads NVML, reads the limits of all devices, and closes NVML. */
static void *read_all_limits(void *unused) {
    struct nvml nvml;
    loader_know_next();
    void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library && find_function(library, "nvmlInit_v2", &nvml.init) &&
        find_function(library, "nvmlShutdown", &nvml.shutdown) &&
        find_function(library, "nvmlDeviceGetHandleByUUID", &nvml.by_uuid) &&
        find_function(library, "nvmlDeviceGetMemoryLimits_v1", &nvml.limits) &&
        nvml.init() == NVML_DONE) {
        for (int i = 0; i < reader.count && i < STATS_MAX_DEVICES; i++)
            read_limits(&nvml, i);
        nvml.shutdown();
    }
    if (library)
        dlclose(library);
    atomic_store(&reader.finished, true);
    return unused;
}

static atomic_flag begun = ATOMIC_FLAG_INIT; /* a thread reads the limits, or has read them */
static atomic_bool done; /* partition_read() has nothing to do: all is read, or too late to wait */

/*
 * Lets a helper thread load NVML, and waits for a bounded time only. dlopen() may wait for
 * constructors that run in another thread. Such a constructor may wait for a lock of the CUDA
 * runtime that the caller of partition_read() holds. Before cuInit(), clears `begun` and reads
 * nothing.
 */
static void read_once(void) {
    int version = 0;
    REAL(cuDriverGetVersion)(&version);
    if (version >= LIMITS_SINCE && REAL(cuDeviceGetCount)(&reader.count) != CUDA_SUCCESS) {
        atomic_flag_clear(&begun); /* before cuInit(): the next call tries again */
        return;
    }
    reader.cgroup = version >= LIMITS_SINCE ? own_cgroup() : NULL;
    if (reader.cgroup && process_ready() && helper_start(read_all_limits) == 0)
        for (int i = 0; i < POLLS_MOST && !atomic_load(&reader.finished); i++)
            sleep_ns(POLL_NS);
    atomic_store(&done, true);
}

void partition_read(void) {
    int saved = errno, polls = 0;
    while (!atomic_load_explicit(&done, memory_order_relaxed)) {
        if (!atomic_flag_test_and_set(&begun)) {
            read_once();
            break;
        }
        sleep_ns(POLL_NS); /* another thread reads the limits; none does in the child of a fork */
        if (++polls == POLLS_MOST)
            atomic_store(&done, true);
    }
    errno = saved;
}
