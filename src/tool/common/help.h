/*
 * Help texts, made from commands.def and options/options.def.
 */
#ifndef GPUCACHE_TOOL_COMMON_HELP_H
#define GPUCACHE_TOOL_COMMON_HELP_H

#include <stdbool.h>
#include <stdio.h>

/** Prints the list of all commands. */
void help_overview(FILE *out);

/** Prints usage, options with defaults, and an example. Returns false for an unknown command. */
bool help_command(FILE *out, const char *command);

/** Prints the version, and which optional libraries this command was built with. */
void help_version(FILE *out);

/** Prints that the first argument is no command, and a similar command. Ends the process. */
_Noreturn void help_refuse(char *const *arguments);

#endif
