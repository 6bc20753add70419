/*
 * The gpucache command: which of its commands is meant.
 */
#include "process/program.h"
#include "tool/arguments.h"
#include "tool/tool.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    const char *name;
    int (*run)(char **arguments);
} commands[] = {
#define COMMAND(name, operands, meaning) {#name, tool_##name},
#include "tool/commands.def"
};

void fail(int status, const char *what, const char *why) {
    fprintf(stderr, "gpucache: %s: %s\n", what, why);
    exit(status);
}

int tool_pid(const char *argument) {
    char *end;
    long pid = strtol(argument, &end, 10);
    bool number = *argument >= '1' && *argument <= '9' && *end == '\0';
    return number && pid <= INT_MAX ? (int)pid : 0;
}

void tool_program_name(const struct program *program, char name[TOOL_PROGRAM_NAME]) {
    const char *script = program->argument_count > 1 ? program->arguments[1] : "-";
    bool runs_script = strncmp(program->name, "python", 6) == 0 && *script != '-';
    const char *slash = strrchr(script, '/');
    snprintf(name, TOOL_PROGRAM_NAME, "%s%s%s", program->name, runs_script ? " " : "",
             !runs_script ? ""
             : slash      ? slash + 1
                          : script);
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
    arguments_help(asked ? stdout : stderr, NULL);
    return asked ? 0 : STATUS_OWN_FAILURE;
}
