/*
 * gpucache options, and options on a command line: --memory-limit=8G is GPUCACHE_MEMORY_LIMIT=8G.
 */
#include "process/options.h"
#include "process/print.h"
#include "tool/arguments.h"
#include "tool/tool.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

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

void tool_take_option(const char *argument) {
    const char *name = argument + 2, *value = strchr(name, '=');
    const char *variable = variable_of(name, value ? (size_t)(value - name) : strlen(name));
    if (!variable)
        fail(STATUS_OWN_FAILURE, argument, "no such option; `gpucache options` lists them");
    if (!value)
        fail(STATUS_OWN_FAILURE, argument, "needs a value, as --name=value");
    if (setenv(variable, value + 1, 1) != 0)
        fail(STATUS_OWN_FAILURE, variable, strerror(errno));
}

int tool_options(char **arguments) {
    char buffer[1024];
    struct print out;

    struct arguments left = {.command = "options", .at = arguments, .variables = true};
    while (arguments_next(&left) == ARGUMENT_VARIABLE)
        tool_take_option(left.option);
    if (*left.at)
        fail(STATUS_OWN_FAILURE, "options", "takes nothing but --name=value");
    options_load();
    print_init(&out, STDOUT_FILENO, buffer, sizeof buffer);
    options_print(&out);
    return print_flush(&out) == 0 ? 0 : STATUS_OWN_FAILURE;
}
