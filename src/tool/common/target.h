/*
 * Finds the program that gpucache run starts, and decides whether the library can be loaded into
 * it.
 */
#ifndef GPUCACHE_TOOL_COMMON_TARGET_H
#define GPUCACHE_TOOL_COMMON_TARGET_H

#include <limits.h>
#include <stdbool.h>

/** Finds the file that execvp() would run. Returns false if there is none. */
bool target_find(const char *name, char path[PATH_MAX]);

/** Returns whether a file begins as an ELF file. */
bool target_is_elf(const char *path);

/**
 * Prints one line to stderr if the library cannot be loaded into a program. Returns whether to
 * preload it anyway. Returns false if the preload would end the program, or if its dynamic linker
 * would print an error.
 */
bool target_takes_library(const char *name);

#endif
