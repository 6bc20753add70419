/*
 * Files that the library writes: reports, traces and snapshots (file.c). live.c creates live pages,
 * and uses file_error() only. No function takes a lock or allocates.
 */
#ifndef GPUCACHE_REPORT_FILE_H
#define GPUCACHE_REPORT_FILE_H

#include <stdbool.h>
#include <stddef.h>

/**
 * Creates a file for writing, named by the pattern, with mode GPUCACHE_FILE_MODE. Opens a device,
 * FIFO or terminal of that name instead, and duplicates the descriptor that a name such as
 * /dev/stdout stands for. Returns a descriptor or a negative errno, and the name in `path`.
 */
int file_open(const char *pattern, char *path, size_t size);

/**
 * Creates a file as file_open() does, for reading and writing. Returns -ESPIPE if the name is a
 * device, a FIFO, a terminal or a descriptor.
 */
int file_create(const char *pattern, char *path, size_t size);

/**
 * Closes a file of file_open() or file_create(). Deletes a regular file that is not `complete`.
 * Returns true if the file is regular and complete, and not a descriptor of the program.
 */
bool file_close(int fd, const char *path, bool complete);

#define FILE_SHOWN 384 /* bytes of a shown path with its NUL; LOG_LINE has space for more text */

/**
 * Returns a path for a message that has more text behind it. Ends a long path with `...`, so that
 * the message has space for that text.
 */
const char *file_shown(char buffer[FILE_SHOWN], const char *path);

/** Returns the text of an errno, or NULL for one without a text. Does not depend on a locale. */
const char *file_error(int error);

#endif
