/*
 * gpucache run: a program under the library.
 *
 *      gpucache run --memory-limit=8G -- ./app
 *          finds libgpucache.so, puts GPUCACHE_MEMORY_LIMIT=8G and LD_PRELOAD into the environment,
 *          and becomes ./app
 *
 * It becomes the program and does not start it, so that exit status, signals, process id and
 * terminal are the program's own without anything being passed on.
 *
 * The library is looked for beside the command, as both lie in a build, then where it lies from the
 * command's folder in an installation (so that one may be moved as a whole), then where it was to be
 * installed.
 */
#include "tool/tool.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LIBRARY "libgpucache.so"

/* The folder of this command, through symbolic links. */
static void own_folder(char folder[PATH_MAX]) {
    ssize_t length = readlink("/proc/self/exe", folder, PATH_MAX - 1);

    folder[length > 0 ? length : 0] = '\0';
    char *slash = strrchr(folder, '/');
    if (slash)
        *slash = '\0';
}

static bool is_there(char path[PATH_MAX], const char *folder, const char *way) {
    char tried[2 * PATH_MAX];

    snprintf(tried, sizeof tried, "%s/%s" LIBRARY, folder, way);
    return realpath(tried, path) && access(path, R_OK) == 0;
}

static void find_library(char path[PATH_MAX]) {
    char folder[PATH_MAX];

    own_folder(folder);
    if (is_there(path, folder, "") || is_there(path, folder, GPUCACHE_LIBDIR_FROM_BINDIR "/") ||
        is_there(path, GPUCACHE_LIBDIR, ""))
        return;
    fprintf(stderr, "gpucache: " LIBRARY " is neither in %s nor in %s/%s nor in %s\n", folder,
            folder, GPUCACHE_LIBDIR_FROM_BINDIR, GPUCACHE_LIBDIR);
    exit(STATUS_OWN_FAILURE);
}

/* In front of what a variable holds already, if anything. */
static void put_in_front(const char *variable, const char *first) {
    const char *rest = getenv(variable);
    char *value = NULL;

    if (asprintf(&value, "%s%s%s", first, rest && *rest ? ":" : "", rest ? rest : "") < 0 ||
        setenv(variable, value, 1) != 0)
        fail(STATUS_OWN_FAILURE, variable, strerror(errno));
    free(value);
}

/* Whether one of LD_PRELOAD's libraries has this name; they are parted by colons and spaces. */
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

static void preload(void) {
    char path[PATH_MAX];

    if (preloaded())
        return;
    find_library(path);
    if (!strpbrk(path, " :;")) {
        put_in_front("LD_PRELOAD", path);
        return;
    }
    /* LD_PRELOAD cannot hold a path with a space. LD_LIBRARY_PATH can, and a bare name is looked
     * for there. */
    if (strpbrk(path, ":;"))
        fail(STATUS_OWN_FAILURE, path,
             "the dynamic linker takes no path with a colon or semicolon");
    *strrchr(path, '/') = '\0';
    put_in_front("LD_LIBRARY_PATH", path);
    put_in_front("LD_PRELOAD", LIBRARY);
}

int tool_run(char **arguments) {
    char **program = tool_take_options(arguments);

    if (!*program)
        fail(STATUS_OWN_FAILURE, "run", "no program is named, as in `gpucache run -- ./app`");
    preload();
    execvp(*program, program);
    int status = errno == ENOENT ? STATUS_NOT_FOUND : STATUS_CANNOT_EXECUTE;
    fail(status, *program, strerror(errno));
}
