/*
 * The gpucache command: which of its commands is meant.
 */
#include "tool/tool.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char usage[] =
    "usage: gpucache run [--NAME=VALUE...] [--one-pool] [--max-peak SIZE] [--] PROGRAM "
    "[ARGUMENT...]\n"
    "       gpucache options [--NAME=VALUE...]\n"
    "       gpucache top [--once] [--interval=SECONDS] [PID...]\n"
    "       gpucache report [--format=text|json] [--events=N] [--each] FILE...|PID...\n"
    "       gpucache report --compare A B\n"
    "       gpucache ctl [--device=N] [--timeout=SECONDS] PID report|empty-cache|reset-peak|limit "
    "SIZE\n"
    "       gpucache metrics [--format=openmetrics|prometheus]\n"
    "       gpucache --help | --version\n"
    "\n"
    "run       runs a CUDA program with its allocations served from a pool; its exit status is\n"
    "          the program's own, or 123 if a process held more than --max-peak of a device;\n"
    "          --one-pool switches off the frameworks' own caches\n"
    "options   lists the options: value in force, where it came from, what is accepted\n"
    "top       shows every process of yours under the library, again and again\n"
    "report    prints reports again: from files, of a running process, of one that was killed;\n"
    "          of several, one table\n"
    "ctl       acts on a running process\n"
    "metrics   writes the figures of all processes for Prometheus\n"
    "\n"
    "An option of run is a variable of the environment, spelled out: --memory-limit=8G stands for\n"
    "GPUCACHE_MEMORY_LIMIT=8G. See gpucache(1) and gpucache(7).\n";

static const struct {
    const char *name;
    int (*run)(char **arguments);
} commands[] = {
    {"run", tool_run},       {"options", tool_options}, {"top", tool_top},
    {"report", tool_report}, {"ctl", tool_ctl},         {"metrics", tool_metrics},
};

void fail(int status, const char *what, const char *why) {
    fprintf(stderr, "gpucache: %s: %s\n", what, why);
    exit(status);
}

const char *tool_value(const char *argument, const char *name) {
    size_t length = strlen(name);
    bool named = strncmp(argument, "--", 2) == 0 && strncmp(argument + 2, name, length) == 0;
    return named && argument[2 + length] == '=' ? argument + 3 + length : NULL;
}

int tool_pid(const char *argument) {
    char *end;
    long pid = strtol(argument, &end, 10);
    bool number = *argument >= '1' && *argument <= '9' && *end == '\0';
    return number && pid <= INT_MAX ? (int)pid : 0;
}

int main(int argc, char **argv) {
    const char *command = argc > 1 ? argv[1] : "";

    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++)
        if (strcmp(command, commands[i].name) == 0)
            return commands[i].run(argv + 2);
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
