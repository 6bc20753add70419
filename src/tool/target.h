/*
 * The program that gpucache run starts: where it is, and whether the library can be loaded into it.
 */
#ifndef GPUCACHE_TOOL_TARGET_H
#define GPUCACHE_TOOL_TARGET_H

#include <limits.h>
#include <stdbool.h>

/** Finds the file that execvp() would run. False: there is none. */
bool target_find(const char *name, char path[PATH_MAX]);

/**
 * Says on stderr, in one line, why the library cannot be loaded into a program, if so. Returns
 * whether to preload it nevertheless: false where the preload would end the program, or have its
 * dynamic linker complain.
 */
bool target_takes_library(const char *name);

#endif
