#include "driver/state/partition.h"

#include "driver/state/device.h"
#include "driver/table/entries.h"
#include "loader/loader.h"
#include "process/helper.h"
#include "process/nap.h"
#include "process/process.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define SINCE 13040 /* driver version with nvmlDeviceGetMemoryLimits_v1 */
#define CGROUPS "/sys/fs/cgroup"
#define NAP_NS 1000000 /* between two looks for the answer */
#define NAPS 1000      /* after which the program goes on without the answer */

/* NVML's ABI, declared here because the build machine may lack nvml.h (see hooks/nvml.h). */
enum { NVML_DONE = 0 };
struct memory_limits {  /* nvmlGetMemoryLimits_v1_t */
    const char *cgroup; /* full path of its folder */
    uint64_t soft, hard, used;
};
_Static_assert(sizeof(struct memory_limits) == 32, "nvmlGetMemoryLimits_v1_t");

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

/* Reads a file into a buffer, with a NUL. Returns false if the file does not fit. Makes system
 * calls only: libc's functions are cancellation points. */
static bool read_file(const char *path, char *buffer, size_t size) {
    long file = syscall(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC), got = 0;
    size_t used = 0;
    while (file >= 0 && used < size - 1 &&
           (got = syscall(SYS_read, file, buffer + used, size - 1 - used)) > 0) {
        used += (size_t)got;
    }
    buffer[used] = '\0';
    if (file >= 0) {
        syscall(SYS_close, file);
    }
    return file >= 0 && got == 0;
}

/* Returns the folder of this process's cgroup of version 2, or NULL if there is none. A container
 * may see the name that its cgroup has outside; its own cgroup is then the root. Only one thread
 * calls. */
static const char *own_cgroup(void) {
    static char text[8192], path[sizeof CGROUPS + sizeof text];
    if (!read_file("/proc/self/cgroup", text, sizeof text)) {
        return NULL;
    }
    const char *line = strncmp(text, "0::", 3) == 0 ? text : strstr(text, "\n0::");
    if (!line) {
        return NULL;
    }
    const char *name = strchr(line, '/');
    size_t length = name ? strcspn(name, "\n") : 0;
    strcpy(path, CGROUPS);
    if (length > 1) {
        strncat(path, name, length);
    }
    return access(path, F_OK) == 0 ? path : CGROUPS;
}

/* Looks up a function. Copies the pointer, because dlsym() returns a pointer to data. */
static bool find(void *library, const char *name, void *entry) {
    void *found = loader_next_dlsym(library, name);
    memcpy(entry, &found, sizeof found);
    return found != NULL;
}

/* The question of the helper thread. Constant while the thread runs, but for `answered`. */
static struct {
    const char *cgroup;
    int count;
    atomic_bool answered;
} question;

static void ask(const struct nvml *nvml, int ordinal) {
    char uuid[48];
    void *handle = NULL;
    struct memory_limits got = {.cgroup = question.cgroup};
    if (!device_uuid(ordinal, uuid) || nvml->by_uuid(uuid, &handle) != NVML_DONE ||
        nvml->limits(handle, &got) != NVML_DONE) {
        return;
    }
    atomic_store(&hard_limits[ordinal], got.hard == UINT64_MAX ? 0 : got.hard);
    atomic_store(&soft_limits[ordinal], got.soft == UINT64_MAX ? 0 : got.soft);
}

static void *ask_all(void *unused) {
    struct nvml nvml;
    if (!loader_next_dlsym) {
        loader_find_next();
    }
    void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library && find(library, "nvmlInit_v2", &nvml.init) &&
        find(library, "nvmlShutdown", &nvml.shutdown) &&
        find(library, "nvmlDeviceGetHandleByUUID", &nvml.by_uuid) &&
        find(library, "nvmlDeviceGetMemoryLimits_v1", &nvml.limits) && nvml.init() == NVML_DONE) {
        for (int i = 0; i < question.count && i < STATS_MAX_DEVICES; i++) {
            ask(&nvml, i);
        }
        nvml.shutdown();
    }
    if (library) {
        dlclose(library);
    }
    atomic_store(&question.answered, true);
    return unused;
}

/*
 * A thread of the library loads NVML: dlopen() may wait for constructors of another thread, and
 * these for a lock of the CUDA runtime that the caller holds. The caller therefore waits for a
 * bounded time only.
 */
void partition_read(void) {
    static atomic_flag begun = ATOMIC_FLAG_INIT;
    static atomic_bool done;
    int version = 0, saved = errno;
    if (atomic_load_explicit(&done, memory_order_relaxed) || atomic_flag_test_and_set(&begun)) {
        return;
    }
    REAL(cuDriverGetVersion)(&version);
    if (version >= SINCE && REAL(cuDeviceGetCount)(&question.count) != CUDA_SUCCESS) {
        atomic_flag_clear(&begun); /* before cuInit(): the next call asks */
        errno = saved;
        return;
    }
    question.cgroup = version >= SINCE ? own_cgroup() : NULL;
    if (question.cgroup && process_ready() && helper_start(ask_all) == 0) {
        for (int i = 0; i < NAPS && !atomic_load(&question.answered); i++) {
            nap(NAP_NS);
        }
    }
    atomic_store(&done, true);
    errno = saved;
}
