/*
 * Opens files and writes to descriptors so that the program does not notice. Nothing here allocates
 * or takes a lock. write_all() and write_in_time() keep errno.
 */
#ifndef GPUCACHE_BASE_WRITE_H
#define GPUCACHE_BASE_WRITE_H

#include <stddef.h>
#include <stdint.h>

/**
 * Writes all bytes, through partial writes and interruptions. Waits at most 1 s in total for a full
 * non-blocking descriptor, and then returns -EAGAIN. A blocking descriptor may block for ever. The
 * program gets no SIGPIPE, SIGXFSZ or SIGTTOU. Returns 0 or a negative errno.
 */
int write_all(int fd, const void *bytes, size_t length);

/**
 * Writes all bytes as write_all(), but waits only for a limited time for a pipe, terminal or socket
 * that nobody reads, whether it blocks or not. Returns -EAGAIN after that time; a pipe may then
 * have got a part of the bytes. After an -EAGAIN, calls for any descriptor do not wait, until a
 * call returns another result.
 */
int write_in_time(int fd, const void *bytes, size_t length);

/**
 * Opens a file as openat() does, with a number above that of stderr. If the program has closed
 * stdout or stderr, openat() alone would return that number, and later output of the program would
 * go to the file. A read or write of the closed descriptors fails with EBADF during the call too.
 * Returns a descriptor or a negative errno. Changes errno.
 */
int write_open(int folder, const char *path, int flags, unsigned mode);

/**
 * Reserves space for bytes of a file, so that they can be mapped: with a full file system an access
 * would raise SIGBUS. Returns 0 or a negative errno. Changes errno; does not raise SIGXFSZ.
 */
int write_reserve(int fd, uint64_t from, uint64_t bytes);

/**
 * Writes zeros to a part of a file that has reserved space and no content, before it is mapped. The
 * pages are then in memory. On a disk, writing many pages at once costs a third to a sixth of
 * touching them one by one. Ignores an error: the kernel then makes each page at its first access.
 * Writes nothing on tmpfs, where it would save no time. May change errno.
 */
void write_pages(int fd, uint64_t from, uint64_t bytes);

#endif
