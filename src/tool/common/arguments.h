/*
 * The parser of command lines, and the help texts. Both are made from commands.def.
 *
 * Parses the options of a command: `--option`, `--option=value` or
 * `--option value`. Options may stand before, between and after operands, up to `--`; options of
 * run only before. An unknown option ends the process with a message that names the known ones.
 */
#ifndef GPUCACHE_TOOL_COMMON_ARGUMENTS_H
#define GPUCACHE_TOOL_COMMON_ARGUMENTS_H

#include <stdbool.h>
#include <stdio.h>

enum option_of_command {
#define FLAG(command, id, option, meaning) ARGUMENT_##command##_##id,
#define VALUE(command, id, option, value, initial, meaning) ARGUMENT_##command##_##id,
#define LIST(command, id, option, words, initial, meaning) ARGUMENT_##command##_##id,
#include "tool/common/commands.def"
    ARGUMENTS,
    ARGUMENT_VARIABLE, /* an option of the library, for commands that accept these */
    ARGUMENTS_END,     /* only operands remain */
};

/* The options of all commands. `value` is NULL for a flag, `words` for all but lists. */
extern const struct option_row {
    const char *command, *name, *value, *words, *initial, *meaning;
} option_rows[ARGUMENTS];

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

/** Prints the list of all commands. */
void help_overview(FILE *out);

/** Prints usage, options with defaults, and an example. Returns false for an unknown command. */
bool help_command(FILE *out, const char *command);

/** Prints the version, and which optional libraries this command was built with. */
void help_version(FILE *out);

/** Prints that the first argument is no command, and a similar command. Ends the process. */
_Noreturn void help_refuse(char *const *arguments);

#endif
