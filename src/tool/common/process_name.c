/*
 * Parses the process numbers that the user writes, and makes the process names that are printed.
 */
#include "base/program.h"
#include "tool/common/tool.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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
