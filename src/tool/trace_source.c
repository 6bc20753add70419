#include "tool/trace_source.h"

#include "report/lines.h"
#include "tool/tool.h"

#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/** The file that a process has mapped and that is a trace; *error: why it could not be looked for, or 0. */
static bool find_mapped(int pid, char path[PATH_MAX], int *error) {
    char name[64], line[PATH_MAX + 256], inside[2 * PATH_MAX];
    bool found = false;
    snprintf(name, sizeof name, "/proc/%d/maps", pid);
    FILE *maps = fopen(name, "re");
    *error = maps ? 0 : errno;
    while (maps && !found && fgets(line, sizeof line, maps)) {
        char *file = strchr(line, '/');
        if (!file || !strstr(line, " rw-s "))
            continue;
        file[strcspn(file, "\n")] = '\0';
        /* as this process sees it, or as that one does */
        snprintf(inside, sizeof inside, "/proc/%d/root%s", pid, file);
        const char *seen = trace_file_is(file) ? file : inside;
        found = trace_file_is(seen) && strlen(seen) < PATH_MAX;
        if (found)
            strcpy(path, seen);
    }
    if (maps)
        fclose(maps);
    return found;
}

static bool say_no_trace(int pid, int error) {
    bool runs = kill(pid, 0) == 0, others = !runs && errno == EPERM;
    const char *why = error == 0
                          ? "records no trace; one that is started with GPUCACHE_TRACE=FILE does"
                      : others ? "is a process of another user's"
                      : runs   ? "may not be looked into; name its file"
                               : "is no process that runs; of one that has ended name the file";
    tool_say("%d: %s", pid, why);
    return false;
}

static void say_what_lacks(const char *source, const struct trace_file *file) {
    uint64_t lost = atomic_load(&file->header->lost);
    int refused = atomic_load(&file->header->refused);
    if (file->dropped)
        tool_say("%s: the last %zu events; %llu older ones are not in it%s", source,
                 file->count - file->carried, (unsigned long long)file->dropped,
                 lost ? "" : ", but all that lived then is");
    if (lost)
        tool_say("%s: missing as well: %llu block%s that lived then", source,
                 (unsigned long long)lost, PLURAL(lost));
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
    int error = 0;
    if (pid != 0 && access(source, F_OK) != 0) {
        if (!find_mapped(pid, mapped, &error))
            return say_no_trace(pid, error);
        path = mapped;
    }
    if (trace_file_read(path, file, &why) != 0) {
        tool_say("%s: %s", path, why);
        return false;
    }
    uint64_t kept = file->header->events_kept;
    uint64_t most = last != 0 && last < kept ? last : kept;
    trace_file_cut(file, most < SIZE_MAX ? (size_t)most : SIZE_MAX);
    say_what_lacks(path, file);
    return true;
}
