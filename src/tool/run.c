/*
 * gpucache run: runs a program with the library.
 *
 *      gpucache run --memory-limit=8G -- ./app
 *          finds libgpucache.so, puts GPUCACHE_MEMORY_LIMIT=8G and LD_PRELOAD into the environment,
 *          and executes ./app
 *
 * The program replaces this process: exit status, signals, process id and terminal are its own.
 * Only --max-peak starts a child instead (peak.c). The library is searched in this order:
 *
 *      1. in the folder of the command, for a build
 *      2. at its place relative to that folder, so that an installation may be moved as a whole
 *      3. in the folder of the installation
 */
#include "options/value.h"
#include "tool/common/arguments.h"
#include "tool/common/tool.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LIBRARY "libgpucache.so"

/** Writes the folder of this command, with symbolic links resolved. */
static void own_folder(char folder[PATH_MAX]) {
    ssize_t length = readlink("/proc/self/exe", folder, PATH_MAX - 1);
    folder[length > 0 ? length : 0] = '\0';
    char *slash = strrchr(folder, '/');
    if (slash)
        *slash = '\0';
}

static bool find_in(char path[PATH_MAX], const char *folder, const char *subfolder) {
    char tried[2 * PATH_MAX];
    snprintf(tried, sizeof tried, "%s/%s" LIBRARY, folder, subfolder);
    return realpath(tried, path) && access(path, R_OK) == 0;
}

static void find_library(char path[PATH_MAX]) {
    char folder[PATH_MAX];
    own_folder(folder);
    if (find_in(path, folder, "") || find_in(path, folder, GPUCACHE_LIBDIR_FROM_BINDIR "/") ||
        find_in(path, GPUCACHE_LIBDIR, ""))
        return;
    fprintf(stderr, "gpucache: " LIBRARY " is neither in %s nor in %s/%s nor in %s\n", folder,
            folder, GPUCACHE_LIBDIR_FROM_BINDIR, GPUCACHE_LIBDIR);
    exit(STATUS_OWN_FAILURE);
}

/** Puts a text in front of the value of an environment variable. */
static void put_in_front(const char *variable, const char *first) {
    const char *rest = getenv(variable);
    char *value = NULL;
    if (asprintf(&value, "%s%s%s", first, rest && *rest ? ":" : "", rest ? rest : "") < 0 ||
        setenv(variable, value, 1) != 0)
        fail(STATUS_OWN_FAILURE, variable, strerror(errno));
    free(value);
}

/** Returns whether LD_PRELOAD has the library. Colons and spaces separate its names. */
static bool preloaded(void) {
    const char *at = getenv("LD_PRELOAD");
    while (at && *at) {
        size_t length = strcspn(at, ": "), name = strlen(LIBRARY);
        if (length >= name && strncmp(at + length - name, LIBRARY, name) == 0 &&
            (length == name || at[length - name - 1] == '/'))
            return true;
        at += length + strspn(at + length, ": ");
    }
    return false;
}

/** Adds the library to LD_PRELOAD, unless LD_PRELOAD has it. Ends the process if it cannot. */
static void preload(void) {
    char path[PATH_MAX];
    if (preloaded())
        return;
    find_library(path);
    if (!strpbrk(path, " :;")) {
        put_in_front("LD_PRELOAD", path);
        return;
    }
    /* LD_PRELOAD cannot hold a path with a space. LD_LIBRARY_PATH can, and the dynamic linker
     * searches a bare name there. */
    if (strpbrk(path, ":;"))
        fail(STATUS_OWN_FAILURE, path,
             "the dynamic linker takes no path with a colon or semicolon");
    *strrchr(path, '/') = '\0';
    put_in_front("LD_LIBRARY_PATH", path);
    put_in_front("LD_PRELOAD", LIBRARY);
}

void tool_become(char **program) {
    char path[PATH_MAX];
    /* execvp() runs a file that the kernel refuses by /bin/sh, which is right for a script only. */
    if (program_find(*program, path) && program_is_elf(path))
        execv(path, program);
    else
        execvp(*program, program);
    int status = errno == ENOENT ? STATUS_NOT_FOUND : STATUS_CANNOT_EXECUTE;
    fail(status, *program, strerror(errno));
}

/* ---- the command's own options ---- */

/* Environment variables with which frameworks disable their own caches. */
static const struct {
    const char *variable, *value, *effect;
} switches[] = {
    {"PYTORCH_NO_CUDA_MEMORY_CACHING", "1", "PyTorch keeps no cache of its own"},
    {"XLA_PYTHON_CLIENT_ALLOCATOR", "platform",
     "JAX keeps no cache of its own; what it takes is counted and limited, but not pooled"},
    {"XLA_PYTHON_CLIENT_PREALLOCATE", "false", "JAX takes no share of the device ahead"},
    {"TF_FORCE_GPU_ALLOW_GROWTH", "true",
     "TensorFlow takes no more than it needs, and keeps its cache: it has no switch for that"},
};

static void make_one_pool(void) {
    for (size_t i = 0; i < sizeof switches / sizeof *switches; i++) {
        const char *variable = switches[i].variable, *kept = getenv(variable);
        if (kept)
            fprintf(stderr, "gpucache: %s=%s is kept as it is\n", variable, kept);
        else if (setenv(variable, switches[i].value, 1) != 0)
            fail(STATUS_OWN_FAILURE, variable, strerror(errno));
        else
            fprintf(stderr, "gpucache: %s=%s: %s\n", variable, switches[i].value,
                    switches[i].effect);
    }
    fputs("gpucache: CuPy and RMM have no such variable: the program calls "
          "cupy.cuda.set_allocator(None), or sets no pool resource\n",
          stderr);
}

static void take_size(const char *option, const char *text, uint64_t *size) {
    if (!value_take_size(&text, size) || *text != '\0')
        fail(STATUS_OWN_FAILURE, option, "needs a size such as 8G");
}

int tool_run(char **arguments) {
    struct arguments left = {.command = "run", .at = arguments, .variables = true};
    enum option_of_command option;
    uint64_t most = 0;
    bool or_none = false;
    while ((option = arguments_next(&left)) != ARGUMENTS_END) {
        if (option == ARGUMENT_run_one_pool)
            make_one_pool();
        else if (option == ARGUMENT_run_max_peak || option == ARGUMENT_run_max_peak_or_none)
            take_size(left.option, left.value, &most);
        else
            tool_take_option(left.option, left.value, true);
        or_none |= option == ARGUMENT_run_max_peak_or_none;
    }
    arguments = left.at;
    if (!*arguments)
        fail(STATUS_OWN_FAILURE, "run", "no program is named, as in `gpucache run -- ./app`");
    if (program_takes_library(*arguments))
        preload();
    if (most > 0)
        return tool_judge_peak(most, or_none, arguments);
    tool_become(arguments);
}
