/*
 * Help texts, made from commands.def and process/options.def.
 */
#ifndef GPUCACHE_TOOL_HELP_H
#define GPUCACHE_TOOL_HELP_H

#include <stdbool.h>
#include <stdio.h>

/** Prints the list of all commands. */
void help_overview(FILE *out);

/** Prints usage, options with their defaults, and an example of a command. False: it is none. */
bool help_command(FILE *out, const char *command);

/** Prints the version, and which optional libraries this command was built with. */
void help_version(FILE *out);

/** Says that the first argument is no command, and what may have been meant. Ends the process. */
_Noreturn void help_refuse(char *const *arguments);

#endif
