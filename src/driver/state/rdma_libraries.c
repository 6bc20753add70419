/*
 * Searches the C library's list of loaded libraries for RDMA libraries. The C library protects the
 * list with a lock that no thread holds while constructors run. A dlopen() in another thread
 * therefore does not block the search.
 */
#include "driver/state/rdma_libraries.h"

#include "base/libraries.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Libraries that are a reason for segments. PyTorch is linked with libcufile, libnvshmem and NCCL,
 * used or not. libcufile and libnvshmem are therefore no reason. NCCL is a reason only if the
 * machine has network cards: it then loads libibverbs, after the first allocation. */
static const struct rdma_library {
    const char *prefix;
    bool only_with_cards; /* a reason only if the machine has network cards */
    const char *reason;
} known[] = {
    {"libibverbs.so", false, "libibverbs is loaded"},
    {"libgdrapi.so", false, "libgdrapi is loaded"},
    {"libfabric.so", false, "libfabric is loaded"},
    {"libnccl.so", true, "NCCL is loaded, and there are InfiniBand devices"},
};

struct search {
    bool has_cards;
    const char *reason; /* the result */
};

/* Called for each loaded library. Returns 1, which ends the search, once there is a reason. */
static int check_library(struct dl_phdr_info *info, size_t bytes, void *state) {
    struct search *search = state;
    const char *slash = strrchr(info->dlpi_name, '/'), *name = slash ? slash + 1 : info->dlpi_name;
    (void)bytes;
    for (size_t i = 0; i < sizeof known / sizeof *known && !search->reason; i++)
        if (strncmp(name, known[i].prefix, strlen(known[i].prefix)) == 0 &&
            (search->has_cards || !known[i].only_with_cards))
            search->reason = known[i].reason;
    return search->reason != NULL;
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
    if (fd >= 0)
        syscall(SYS_close, fd);
    errno = saved;
    return any;
}

const char *rdma_libraries_loaded(const char *cards) {
    struct search search = {.has_cards = has_entries(cards)};
    libraries_visit(check_library, &search);
    return search.reason;
}
