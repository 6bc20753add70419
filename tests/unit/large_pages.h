/*
 * Simulates host pages of 16 or 64 KiB, as aarch64 has them, on a kernel with smaller pages. With
 * --wrap, getpagesize(), madvise() and mmap() refuse and round as on a kernel with large pages.
 */
#ifndef LARGE_PAGES_H
#define LARGE_PAGES_H

#include <stddef.h>

/** Starts the simulation of host pages of `bytes`, for this process and its later children. */
void large_pages_start(size_t bytes);

/** Ends the simulation. */
void large_pages_end(void);

#endif
