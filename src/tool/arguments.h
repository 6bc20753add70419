/*
 * The options of a command, as commands.def lists them: `--option`, `--option=value` or `--option
 * value`. They stand in front of its operands, behind them or in between, up to `--`; those of run
 * in front. What is not listed is refused, with what would be accepted.
 */
#ifndef GPUCACHE_TOOL_ARGUMENTS_H
#define GPUCACHE_TOOL_ARGUMENTS_H

#include <stdbool.h>

enum option_of_command {
#define FLAG(command, id, option, meaning) ARGUMENT_##command##_##id,
#define VALUE(command, id, option, value, initial, meaning) ARGUMENT_##command##_##id,
#define LIST(command, id, option, words, initial, meaning) ARGUMENT_##command##_##id,
#include "tool/commands.def"
    ARGUMENTS,
    ARGUMENT_VARIABLE, /* an option of the library's, of commands that take those */
    ARGUMENTS_END,     /* only operands are left */
};

struct arguments {
    const char *command;
    char **at;          /* the rest, put in order as options are taken; at the end, the operands */
    const char *option; /* as it was written */
    const char *value;  /* of it, or NULL */
    bool variables;     /* the library's options are taken too */
};

/** The next option; ends the process with a word about it if it is none. --help is answered here.
 */
enum option_of_command arguments_next(struct arguments *arguments);

/** The option's value makes no sense: says what is wanted, and ends. */
_Noreturn void arguments_refuse(const struct arguments *arguments);

#endif
