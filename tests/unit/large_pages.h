/*
 * Host pages of 16 or 64 KiB, as aarch64 has them, on a kernel with smaller ones. The linker leads getpagesize(), madvise() and
 * mmap() here (--wrap), which then refuse and round as a kernel with such pages does.
 */
#ifndef LARGE_PAGES_H
#define LARGE_PAGES_H

#include <stddef.h>

/** Switches host pages of `bytes` on, for this process and its later children. */
void large_pages_start(size_t bytes);

/** Switches back to the kernel's own pages. */
void large_pages_end(void);

#endif
