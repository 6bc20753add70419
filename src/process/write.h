/*
 * Writing to a descriptor so that the program does not notice. Nothing here allocates, takes a lock or
 * changes errno.
 */
#ifndef GPUCACHE_PROCESS_WRITE_H
#define GPUCACHE_PROCESS_WRITE_H

#include <stddef.h>
#include <stdint.h>

/**
 * Writes all of it: through partial writes and interruptions, for a moment through a full
 * non-blocking descriptor, and without SIGPIPE or SIGXFSZ reaching the program. Returns 0 or a
 * negative errno.
 */
int write_all(int fd, const void *bytes, size_t length);

/**
 * The same, but never held up for long by a pipe, terminal or socket that nobody reads, blocking or
 * not: -EAGAIN, and if it is a pipe that would hold all of it, nothing has been written. Whoever
 * comes after that does not wait at all, until something could be written again.
 */
int write_in_time(int fd, const void *bytes, size_t length);

/** Makes a file's bytes from `from` on exist, so that they can be mapped: a full file system would be SIGBUS later. 0 or a
 * negative errno, which changes errno; SIGXFSZ is not raised. */
int write_room(int fd, uint64_t from, uint64_t bytes);

/**
 * Has the pages of a part that has room, and holds nothing yet, in memory before it is mapped: written, many at once cost a
 * file system on a disk a third to a sixth of what they cost when they are touched one by one. It may fail: then they are touched. On
 * tmpfs it would save nothing. May change errno.
 */
void write_pages(int fd, uint64_t from, uint64_t bytes);

#endif
