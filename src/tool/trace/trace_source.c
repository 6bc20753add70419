/* Finds the trace of a process in /proc/PID/maps, and reads it (trace_file.h). */
#include "tool/trace/trace_file.h"

#include "report/lines.h"
#include "tool/common/tool.h"

#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/** A mapped file, as /proc/PID/maps describes it. */
struct mapped_file {
    unsigned major, minor;
    unsigned long long inode;
};

static bool read_file(const char *line, struct mapped_file *file) {
    return sscanf(line, "%*s %*s %*s %x:%x %llu", &file->major, &file->minor, &file->inode) == 3;
}

/** Returns whether an open file is the one that a process has mapped. Maps the file and compares
 * the two lines of maps, because on overlayfs or btrfs fstat() has another device number. */
static bool is_same(int fd, const struct mapped_file *file) {
    char line[PATH_MAX + 256];
    struct mapped_file own = {0};
    bool found = false;
    void *memory = mmap(NULL, 1, PROT_READ, MAP_SHARED, fd, 0);
    FILE *maps = memory != MAP_FAILED ? fopen("/proc/self/maps", "re") : NULL;
    while (maps && !found && fgets(line, sizeof line, maps))
        found = strtoull(line, NULL, 16) == (uintptr_t)memory && read_file(line, &own);
    if (maps)
        fclose(maps);
    if (memory != MAP_FAILED)
        munmap(memory, 1);
    return found && own.major == file->major && own.minor == file->minor &&
           own.inode == file->inode;
}

/** Opens a path if the file is a trace and is still the mapped file. Returns a descriptor or -1. */
static int open_mapped(const char *path, const struct mapped_file *file) {
    int fd = tool_open_regular(path);
    if (fd >= 0 && trace_file_is_open(fd) && is_same(fd, file))
        return fd;
    if (fd >= 0)
        close(fd);
    return -1;
}

/** Opens the trace that a process has mapped, by its path here, or by its path in the process's own
 * file system. Returns a descriptor or -1. *error is the reason if the search failed, or 0. It is
 * ESRCH for a process without mappings: the process has ended, its parent has not waited for it. */
static int find_mapped(int pid, char path[PATH_MAX], int *error) {
    char name[64], line[PATH_MAX + 256];
    int fd = -1;
    snprintf(name, sizeof name, "/proc/%d/maps", pid);
    FILE *maps = fopen(name, "re");
    *error = maps ? ESRCH : errno;
    while (maps && fd < 0 && fgets(line, sizeof line, maps)) {
        struct mapped_file file;
        *error = 0;
        char *own = strchr(line, '/');
        if (!own || !strstr(line, " rw-s ") || !read_file(line, &file))
            continue;
        own[strcspn(own, "\n")] = '\0';
        for (int i = 0; i < 2 && fd < 0; i++) {
            int length = i == 0 ? snprintf(path, PATH_MAX, "%s", own)
                                : snprintf(path, PATH_MAX, "/proc/%d/root%s", pid, own);
            fd = length < PATH_MAX ? open_mapped(path, &file) : -1;
        }
    }
    if (maps)
        fclose(maps);
    return fd;
}

static bool say_no_trace(int pid, int error) {
    bool there = kill(pid, 0) == 0, others = !there && errno == EPERM;
    bool runs = there && error != ESRCH;
    const char *why = error == 0
                          ? "records no trace; one that is started with GPUCACHE_TRACE=FILE does"
                      : others ? "is a process of another user's"
                      : runs   ? "may not be looked into; name its file"
                               : "is no process that runs; of one that has ended name the file";
    tool_say("%d: %s", pid, why);
    return false;
}

static void say_missing(const char *source, const struct trace_file *file) {
    uint64_t lost = atomic_load(&file->header->lost);
    uint64_t missed = atomic_load(&file->header->missed);
    int refused = atomic_load(&file->header->refused);
    if (file->dropped)
        tool_say("%s: the last %zu events; %llu older ones are not in it%s", source,
                 file->count - file->carried, (unsigned long long)file->dropped,
                 lost ? "" : ", but all that lived then is");
    if (lost)
        tool_say("%s: missing as well: %llu block%s that lived then", source,
                 (unsigned long long)lost, PLURAL(lost));
    if (missed)
        tool_say("%s: missing as well: %llu event%s that found no place: too many threads", source,
                 (unsigned long long)missed, PLURAL(missed));
    if (file->incredible)
        tool_say("%s: says too often that what was not there ended; the last ends are "
                 "left out",
                 source);
    if (refused)
        tool_say("%s: the file could not grow: %s", source, strerror(refused));
}

bool trace_source_read(const char *source, uint64_t last, struct trace_file *file) {
    char mapped[PATH_MAX];
    const char *path = source, *why = "";
    int pid = tool_pid(source);
    int error = 0, r;
    if (pid != 0 && access(source, F_OK) != 0) {
        int fd = find_mapped(pid, mapped, &error);
        if (fd < 0)
            return say_no_trace(pid, error);
        path = mapped;
        r = trace_file_read_open(fd, file, &why);
    } else {
        r = trace_file_read(path, file, &why);
    }
    if (r != 0) {
        tool_say("%s: %s", path, why);
        return false;
    }
    uint64_t kept = file->header->events_kept;
    uint64_t most = last != 0 && last < kept ? last : kept;
    trace_file_cut(file, most < SIZE_MAX ? (size_t)most : SIZE_MAX);
    say_missing(path, file);
    return true;
}
