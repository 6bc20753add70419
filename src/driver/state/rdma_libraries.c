/*
 * Looks for RDMA libraries in the C library's list of loaded libraries. The C library protects the
 * list with a lock that no thread holds while constructors run. A dlopen() in another thread
 * therefore does not block the search.
 */
#include "driver/state/rdma_libraries.h"

#include "process/libraries.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Libraries that are a reason for segments. PyTorch is linked with libcufile and libnvshmem, used
 * or not, so these two are no reason. PyTorch is linked with NCCL too. NCCL loads libibverbs when
 * it begins to communicate, after the first allocation, but only if the machine has network cards
 * for it. */
static const struct rdma_library {
    const char *prefix;
    bool with_cards;
    const char *reason;
} known[] = {
    {"libibverbs.so", false, "libibverbs is loaded"},
    {"libgdrapi.so", false, "libgdrapi is loaded"},
    {"libfabric.so", false, "libfabric is loaded"},
    {"libnccl.so", true, "NCCL is loaded, and there are InfiniBand devices"},
};

struct look {
    bool cards;
    const char *reason;
};

static int check_library(struct dl_phdr_info *info, size_t bytes, void *with) {
    struct look *look = with;
    const char *slash = strrchr(info->dlpi_name, '/'), *name = slash ? slash + 1 : info->dlpi_name;
    (void)bytes;
    for (size_t i = 0; i < sizeof known / sizeof *known && !look->reason; i++) {
        if (strncmp(name, known[i].prefix, strlen(known[i].prefix)) == 0 &&
            (look->cards || !known[i].with_cards)) {
            look->reason = known[i].reason;
        }
    }
    return look->reason != NULL;
}

/* Returns whether a folder has entries. Does not call opendir(), which allocates memory: the caller
 * may be inside a malloc() of the program. Has no cancellation point. Keeps errno. */
static bool has_entries(const char *folder) {
    _Alignas(struct dirent64) char names[1024];
    int saved = errno;
    long filled, fd = syscall(SYS_openat, AT_FDCWD, folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    bool any = false;
    while (fd >= 0 && !any && (filled = syscall(SYS_getdents64, fd, names, sizeof names)) > 0) {
        const struct dirent64 *entry;
        for (long at = 0; at < filled; at += entry->d_reclen) {
            entry = (const struct dirent64 *)(names + at);
            any |= strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0;
        }
    }
    if (fd >= 0) {
        syscall(SYS_close, fd);
    }
    errno = saved;
    return any;
}

const char *rdma_libraries_loaded(const char *cards) {
    struct look look = {.cards = has_entries(cards)};
    libraries_visit(check_library, &look);
    return look.reason;
}
