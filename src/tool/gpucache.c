/*
 * main() of gpucache: finds the command by its name and calls it.
 */
#include "tool/common/arguments.h"
#include "tool/common/tool.h"

#include <stdio.h>
#include <string.h>

static const struct {
    const char *name;
    int (*run)(char **arguments);
} commands[] = {
#define COMMAND(name, operands, meaning, example) {#name, tool_##name},
#include "tool/common/commands.def"
};

int tool_help(char **arguments) {
    struct arguments left = {.command = "help", .at = arguments};
    while (arguments_next(&left) != ARGUMENTS_END) {
    }
    if (!*left.at)
        help_overview(stdout);
    else if (left.at[1])
        fail(STATUS_OWN_FAILURE, "help", "takes the name of one command");
    else if (!help_command(stdout, *left.at))
        help_refuse(left.at);
    return tool_flush_stdout();
}

int main(int argc, char **argv) {
    const char *command = argc > 1 ? argv[1] : "";
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++)
        if (strcmp(command, commands[i].name) == 0)
            return commands[i].run(argv + 2);
    if (strcmp(command, "--version") == 0) {
        help_version(stdout);
        return tool_flush_stdout();
    }
    if (strcmp(command, "--help") == 0 || strcmp(command, "-h") == 0) {
        help_overview(stdout);
        return tool_flush_stdout();
    }
    if (*command)
        help_refuse(argv + 1);
    help_overview(stderr);
    fputs("gpucache: no command is named\n", stderr);
    return STATUS_OWN_FAILURE;
}
