/*
 * gpucache options, and the library's options on a command line: --memory-limit=8G sets
 * GPUCACHE_MEMORY_LIMIT=8G.
 */
#include "options/options.h"
#include "options/value.h"
#include "tool/common/arguments.h"
#include "tool/common/tool.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/** Returns the option of a --name, or OPTION_COUNT. */
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

void tool_option_name(const struct option_info *option, char name[TOOL_OPTION_NAME]) {
    const char *from = option->name + strlen("GPUCACHE_");
    size_t length = 0;
    for (; from[length] && length < TOOL_OPTION_NAME - 1; length++)
        name[length] = from[length] == '_' ? '-' : (char)tolower((unsigned char)from[length]);
    name[length] = '\0';
}

/** Refuses an unknown --name. Names an option that differs in at most three characters. */
static _Noreturn void refuse_name(const char *argument, size_t length) {
    char name[TOOL_OPTION_NAME], nearest[TOOL_OPTION_NAME] = "", why[256];
    size_t least = 4;
    for (int id = 0; id < OPTION_COUNT && length <= VALUE_WORD; id++) {
        tool_option_name(&option_table[id], name);
        size_t distance = value_distance(argument + 2, length, name);
        if (!option_table[id].internal && distance < least) {
            least = distance;
            strcpy(nearest, name);
        }
    }
    snprintf(why, sizeof why, "no such option;%s%s%s `gpucache options` lists them",
             *nearest ? " did you mean --" : "", nearest, *nearest ? "?" : "");
    fail(STATUS_OWN_FAILURE, argument, why);
}

void tool_take_option(const char *argument, const char *value, bool strictly) {
    size_t length = strcspn(argument + 2, "=");
    enum option_id id = option_of(argument + 2, length);
    if (id == OPTION_COUNT)
        refuse_name(argument, length);
    if (!value)
        fail(STATUS_OWN_FAILURE, argument, "needs a value, as --name=value");
    if (strictly && !options_accept(id, value)) {
        char what[256], why[512];
        snprintf(what, sizeof what, "--%.*s=%.160s", (int)length, argument + 2, value);
        snprintf(why, sizeof why, "makes no sense: accepted are %s", option_table[id].values);
        fail(STATUS_OWN_FAILURE, what, why);
    }
    if (setenv(option_table[id].name, value, 1) != 0)
        fail(STATUS_OWN_FAILURE, option_table[id].name, strerror(errno));
}

int tool_options(char **arguments) {
    struct print out = tool_stdout();
    struct arguments left = {.command = "options", .at = arguments, .variables = true};
    while (arguments_next(&left) == ARGUMENT_VARIABLE)
        tool_take_option(left.option, left.value, false); /* shows the effective value */
    if (*left.at)
        fail(STATUS_OWN_FAILURE, "options", "takes nothing but --name=value");
    options_load();
    options_print(&out);
    return tool_flush(&out) ? 0 : STATUS_OWN_FAILURE;
}
