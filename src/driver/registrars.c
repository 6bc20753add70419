/*
 * The C library keeps the list of what is loaded under a lock of its own, which nobody holds while constructors run:
 * another thread inside dlopen() holds nobody up here.
 */
#include "driver/registrars.h"

#include "process/libraries.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

/* `loaded` is what is said of a process that is likely to register memory; NULL: that one tells nothing. */
struct registrar {
    const char *prefix, *loaded;
};

/* PyTorch is linked with libcufile and libnvshmem whether it uses them or not. */
static const struct registrar known[] = {
    {"libibverbs.so", "libibverbs is loaded"},
    {"libgdrapi.so", "libgdrapi is loaded"},
    {"libfabric.so", "libfabric is loaded"},
    {"libcufile.so", NULL},
    {"libnvshmem", NULL},
};

/* Through which they all register memory: a process that has none of these open cannot. */
static const struct device_file {
    const char *prefix, *freeze;
} devices[] = {
    {"uverbs", "pages stay where they are: a network card is open"},
    {"cxi", "pages stay where they are: a network card is open"},
    {"gdrdrv", "pages stay where they are: GDRCopy's device is open"},
    {"nvidia-fs", "pages stay where they are: GPUDirect Storage's device is open"},
};

static _Atomic(const struct registrar *) found; /* for good, also if it is unloaded */
static _Atomic uint64_t looked_at;              /* how many libraries had been loaded then */
static _Atomic(const char *) frozen;            /* for good, also if the device is closed */

static const struct registrar *registrar_of(const char *path) {
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        const struct registrar *one = &known[i];
        if (strncmp(name, one->prefix, strlen(one->prefix)) == 0) {
            return one;
        }
    }
    return NULL;
}

/* All are told how many there have been. */
static int look_at(struct dl_phdr_info *info, size_t bytes, void *with) {
    uint64_t *loads = with;
    (void)bytes;
    *loads = info->dlpi_adds;
    if (*loads == atomic_load(&looked_at)) {
        return 1;
    }
    const struct registrar *registrar = registrar_of(info->dlpi_name);
    const struct registrar *before = atomic_load(&found);
    if (registrar && (!before || !before->loaded)) {
        atomic_store(&found, registrar);
    }
    return 0;
}

static const struct registrar *find(void) {
    uint64_t loads = 0;
    if (!atomic_load(&found)) {
        libraries_visit(look_at, &loads);
        atomic_store(&looked_at, loads);
    }
    return atomic_load(&found);
}

const char *registrars_loaded(void) {
    const struct registrar *registrar = find();
    return registrar ? registrar->loaded : NULL;
}

/* The device that an open descriptor leads to; NULL: another file. */
static const struct device_file *device_of(int folder, const char *descriptor) {
    char path[PATH_MAX];
    ssize_t length = readlinkat(folder, descriptor, path, sizeof path - 1);
    path[length > 0 ? length : 0] = '\0';
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    for (size_t i = 0; i < sizeof devices / sizeof *devices; i++) {
        if (strncmp(name, devices[i].prefix, strlen(devices[i].prefix)) == 0) {
            return &devices[i];
        }
    }
    return NULL;
}

/* As the kernel writes them; readdir() would take host memory of the program's. */
struct entry {
    uint64_t number;
    int64_t next;
    unsigned short bytes;
    unsigned char type;
    char name[];
};

/* Why, or NULL: no such device is open. Where no descriptor is left to look with, one may be open. */
static const char *open_device(bool *can_look) {
    _Alignas(struct entry) char buffer[4096];
    const struct device_file *device = NULL;
    int folder =
        (int)syscall(SYS_openat, AT_FDCWD, "/proc/self/fd", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    long bytes;
    *can_look = folder >= 0;
    if (folder < 0) {
        return "pages stayed where they were: open files could not be looked at";
    }
    while (!device && (bytes = syscall(SYS_getdents64, folder, buffer, sizeof buffer)) > 0) {
        for (long at = 0; at < bytes && !device;) {
            const struct entry *entry = (const struct entry *)(buffer + at);
            device = device_of(folder, entry->name);
            at += entry->bytes;
        }
    }
    syscall(SYS_close, folder);
    return device ? device->freeze : NULL;
}

const char *registrars_freeze(void) {
    if (!atomic_load(&frozen) && find()) {
        int saved = errno;
        bool can_look;
        const char *reason = open_device(&can_look);
        errno = saved;
        if (!reason || !can_look) {
            return reason;
        }
        atomic_store(&frozen, reason);
    }
    return atomic_load(&frozen);
}
