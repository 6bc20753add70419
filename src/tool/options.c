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

/* The option that --name stands for, or OPTION_COUNT. */
static enum option_id option_of(const char *name, size_t length) {
    char variable[64] = "GPUCACHE_";
    size_t used = strlen(variable);

    if (used + length >= sizeof variable)
        return OPTION_COUNT;
    for (size_t i = 0; i < length; i++)
        variable[used++] = name[i] == '-' ? '_' : (char)toupper((unsigned char)name[i]);
    variable[used] = '\0';
    for (int id = 0; id < OPTION_COUNT; id++)
        if (strcmp(option_table[id].name, variable) == 0)
            return (enum option_id)id;
    return OPTION_COUNT;
}

void tool_take_option(const char *argument, bool strictly) {
    const char *name = argument + 2, *value = strchr(name, '=');
    enum option_id id = option_of(name, value ? (size_t)(value - name) : strlen(name));
    if (id == OPTION_COUNT)
        fail(STATUS_OWN_FAILURE, argument, "no such option; `gpucache options` lists them");
    if (!value)
        fail(STATUS_OWN_FAILURE, argument, "needs a value, as --name=value");
    if (strictly && !options_accept(id, value + 1)) {
        char why[512];
        snprintf(why, sizeof why, "makes no sense: accepted are %s", option_table[id].values);
        fail(STATUS_OWN_FAILURE, argument, why);
    }
    if (setenv(option_table[id].name, value + 1, 1) != 0)
        fail(STATUS_OWN_FAILURE, option_table[id].name, strerror(errno));
}

int tool_options(char **arguments) {
    char buffer[1024];
    struct print out;

    struct arguments left = {.command = "options", .at = arguments, .variables = true};
    while (arguments_next(&left) == ARGUMENT_VARIABLE)
        tool_take_option(left.option, false); /* what it comes to is shown */
    if (*left.at)
        fail(STATUS_OWN_FAILURE, "options", "takes nothing but --name=value");
    options_load();
    print_init(&out, STDOUT_FILENO, buffer, sizeof buffer);
    options_print(&out);
    return print_flush(&out) == 0 ? 0 : STATUS_OWN_FAILURE;
}
