/*
 * The gpucache command: runs a program under the library, and shows the options in force.
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
#include "process/options.h"
#include "process/print.h"

#include <ctype.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LIBRARY "libgpucache.so"

/* As env(1) and timeout(1) have them. */
enum { STATUS_OWN_FAILURE = 125, STATUS_CANNOT_EXECUTE = 126, STATUS_NOT_FOUND = 127 };

static const char usage[] =
    "usage: gpucache run [--NAME=VALUE...] [--] PROGRAM [ARGUMENT...]\n"
    "       gpucache options [--NAME=VALUE...]\n"
    "       gpucache --help | --version\n"
    "\n"
    "run       runs a CUDA program with its allocations served from a pool; its exit status is\n"
    "          the program's own\n"
    "options   lists the options: value in force, where it came from, what is accepted\n"
    "\n"
    "An option is a variable of the environment, spelled out: --memory-limit=8G stands for\n"
    "GPUCACHE_MEMORY_LIMIT=8G. See gpucache(7).\n";

static _Noreturn void fail(int status, const char *what, const char *why) {
    fprintf(stderr, "gpucache: %s: %s\n", what, why);
    exit(status);
}

/* The variable that --name stands for, or NULL. */
static const char *variable_of(const char *name, size_t length) {
    char variable[64] = "GPUCACHE_";
    size_t used = strlen(variable);

    if (used + length >= sizeof variable)
        return NULL;
    for (size_t i = 0; i < length; i++)
        variable[used++] = name[i] == '-' ? '_' : (char)toupper((unsigned char)name[i]);
    variable[used] = '\0';
    for (int id = 0; id < OPTION_COUNT; id++)
        if (strcmp(option_table[id].name, variable) == 0)
            return option_table[id].name;
    return NULL;
}

/* Puts options into the environment; returns what stands behind them. */
static char **take_options(char **arguments) {
    for (; *arguments && strncmp(*arguments, "--", 2) == 0; arguments++) {
        const char *name = *arguments + 2;
        if (*name == '\0')
            return arguments + 1;
        const char *value = strchr(name, '=');
        const char *variable = variable_of(name, value ? (size_t)(value - name) : strlen(name));
        if (!variable)
            fail(STATUS_OWN_FAILURE, *arguments, "no such option; `gpucache options` lists them");
        if (!value)
            fail(STATUS_OWN_FAILURE, *arguments, "needs a value, as --name=value");
        if (setenv(variable, value + 1, 1) != 0)
            fail(STATUS_OWN_FAILURE, variable, strerror(errno));
    }
    return arguments;
}

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

static int run(char **arguments) {
    char **program = take_options(arguments);

    if (!*program)
        fail(STATUS_OWN_FAILURE, "run", "no program is named, as in `gpucache run -- ./app`");
    preload();
    execvp(*program, program);
    int status = errno == ENOENT ? STATUS_NOT_FOUND : STATUS_CANNOT_EXECUTE;
    fail(status, *program, strerror(errno));
}

static int show_options(char **arguments) {
    char buffer[1024];
    struct print out;

    if (*take_options(arguments))
        fail(STATUS_OWN_FAILURE, "options", "takes nothing but --name=value");
    options_load();
    print_init(&out, STDOUT_FILENO, buffer, sizeof buffer);
    options_print(&out);
    return print_flush(&out) == 0 ? 0 : STATUS_OWN_FAILURE;
}

int main(int argc, char **argv) {
    const char *command = argc > 1 ? argv[1] : "";

    if (strcmp(command, "run") == 0)
        return run(argv + 2);
    if (strcmp(command, "options") == 0)
        return show_options(argv + 2);
    if (strcmp(command, "--version") == 0) {
        puts("gpucache " GPUCACHE_VERSION);
        return 0;
    }
    bool asked = strcmp(command, "--help") == 0 || strcmp(command, "-h") == 0;
    if (*command && !asked)
        fprintf(stderr, "gpucache: there is no command %s\n", command);
    fputs(usage, asked ? stdout : stderr);
    return asked ? 0 : STATUS_OWN_FAILURE;
}
