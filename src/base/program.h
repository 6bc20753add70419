/* Identity of the program, for reports and names of files. */
#ifndef GPUCACHE_BASE_PROGRAM_H
#define GPUCACHE_BASE_PROGRAM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PROGRAM_ARGUMENTS 256 /* arguments that are kept */

struct program {
    char name[64]; /* file name in argv[0] */
    char host[65]; /* name of the host */
    int64_t rank;  /* in a parallel job, from the variables of its launcher; -1: none */
    const char *arguments[PROGRAM_ARGUMENTS]; /* argv; the last one may be cut */
    size_t argument_count;
    bool arguments_cut; /* there were more arguments, or longer ones, than are kept */
};

/** Reads the identity, once. options_load() calls this function. No lock (program.c). */
void program_load(void);

/** Returns the identity. All fields are empty before program_load(), and constant after it. */
const struct program *program(void);

/**
 * Copies the arguments that fit, each with its NUL. Returns the number of bytes. Never reads `to`,
 * because other processes may write there.
 */
uint32_t program_copy_command(char *to, size_t size);

/**
 * Reads up to `size` bytes of a file of the system. Returns how many were read, 0 after an error.
 * Changes errno.
 */
size_t program_read_file(const char *path, char *buffer, size_t size);

/** Returns the ns since the process started, or since program_load() if the start is not known. */
uint64_t program_uptime_ns(void);

/** Returns the ns since 1970. */
uint64_t program_time_ns(void);

#endif
