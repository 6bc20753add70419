/*
 * Reads the list of loaded libraries without breaking a fork of the program.
 *
 * dl_iterate_phdr() holds a lock of the dynamic loader. If a thread holds it during a fork, the
 * child can neither load a library nor end a thread: it waits for ever (glibc 2.36). A fork
 * therefore waits until no thread reads the list, and no thread begins to read until the fork is
 * over. Both waits have a limit. Two atomic counts exclude each other; there is no lock.
 */
#ifndef GPUCACHE_BASE_LIBRARIES_H
#define GPUCACHE_BASE_LIBRARIES_H

#include <link.h>
#include <stddef.h>

/**
 * Runs dl_iterate_phdr() and returns its result. Keeps errno. May wait for a fork, for a limited
 * time.
 */
int libraries_visit(int (*look_at)(struct dl_phdr_info *info, size_t bytes, void *argument),
                    void *argument);

/**
 * Begin and end other work that may hold the loader's lock, such as unwinding. May be nested. The
 * first one may wait for a fork, for a limited time. Keep errno.
 */
void libraries_begin_reading(void);
void libraries_end_reading(void);

/** Run around a fork of the program: before it; after it in the parent; in the child. */
void libraries_before_fork(void);
void libraries_after_fork(void);
void libraries_forked(void);

#endif
