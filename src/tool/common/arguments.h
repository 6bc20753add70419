/*
 * Parses the options of a command, as commands.def lists them: `--option`, `--option=value` or
 * `--option value`. Options may stand before, between and after operands, up to `--`; options of
 * run only before. An unknown option ends the process with a message that names the known ones.
 */
#ifndef GPUCACHE_TOOL_COMMON_ARGUMENTS_H
#define GPUCACHE_TOOL_COMMON_ARGUMENTS_H

#include <stdbool.h>

enum option_of_command {
#define FLAG(command, id, option, meaning) ARGUMENT_##command##_##id,
#define VALUE(command, id, option, value, initial, meaning) ARGUMENT_##command##_##id,
#define LIST(command, id, option, words, initial, meaning) ARGUMENT_##command##_##id,
#include "tool/common/commands.def"
    ARGUMENTS,
    ARGUMENT_VARIABLE, /* an option of the library, for commands that accept these */
    ARGUMENTS_END,     /* only operands remain */
};

struct arguments {
    const char *command;
    char **at;          /* the remaining words, reordered; after the last option, the operands */
    const char *option; /* the current option as the user wrote it */
    const char *value;  /* the value of the current option, or NULL */
    bool variables;     /* the library's options are accepted too */
};

/** Returns the next option. Ends the process with a message if the option is unknown, and after the
 * help text if it is --help or -h. */
enum option_of_command arguments_next(struct arguments *arguments);

/** Prints all options of the command with the form of their values, or that it takes none, and ends
 * the process. */
_Noreturn void arguments_refuse(const struct arguments *arguments);

#endif
