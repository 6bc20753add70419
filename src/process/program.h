/*
 * Who this process is, as reports and file names say it.
 */
#ifndef GPUCACHE_PROCESS_PROGRAM_H
#define GPUCACHE_PROCESS_PROGRAM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PROGRAM_ARGUMENTS 256 /* arguments remembered */

struct program {
    char name[64]; /* the file name in argv[0] */
    char host[65]; /* the host's name */
    int64_t rank;  /* in a parallel job, as its launcher says; -1: none */
    const char *arguments[PROGRAM_ARGUMENTS]; /* argv, each at most what fitted */
    size_t argument_count;
    bool arguments_cut; /* there were more, or longer ones, than are remembered */
};

/** Finds out, once; options_load() calls it. */
void program_load(void);

/** What is known; all empty before program_load(). Never changes afterwards. */
const struct program *program(void);

/** Copies the arguments that fit, each with its NUL, and returns how many bytes that are. Reads
 * nothing back: others may write to where they go. */
uint32_t program_copy_command(char *to, size_t size);

/** Up to `size` bytes of a file of the system's; how many there were, 0 if none could be read.
 * Changes errno. */
size_t program_read_file(const char *path, char *buffer, size_t size);

/** Nanoseconds since the process started (since program_load() if the system does not tell). */
uint64_t program_uptime_ns(void);

/** Nanoseconds since 1970. */
uint64_t program_time_ns(void);

#endif
