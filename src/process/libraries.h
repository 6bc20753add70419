/*
 * The libraries that are loaded, looked through one by one.
 *
 * That is done under a lock of the loader's. A child of a fork for whom some thread of the parent's held it can load no
 * library any more, nor end a thread: it waits for ever (glibc 2.36). So a fork waits until nobody here looks, and
 * nobody begins to before it is over; both within limits.
 */
#ifndef GPUCACHE_PROCESS_LIBRARIES_H
#define GPUCACHE_PROCESS_LIBRARIES_H

#include <link.h>
#include <stddef.h>

/** dl_iterate_phdr(). Keeps errno. */
int libraries_visit(int (*visit)(struct dl_phdr_info *info, size_t bytes, void *with), void *with);

/** Around a fork of the program's: before it; after it, in the parent; and in the child. */
void libraries_before_fork(void);
void libraries_after_fork(void);
void libraries_forked(void);

#endif
