/*
 * Runs a part of a test in a child process. A part needs a child if it reads options (once per
 * process), closes descriptors, or ends by a signal.
 */
#ifndef GPUCACHE_TESTS_CHILD_H
#define GPUCACHE_TESTS_CHILD_H

#include <stdbool.h>
#include <sys/types.h>

/** Returns whether valgrind runs this process. Valgrind continues with wrong registers after a
 * signal handler has repaired an access. */
bool child_under_valgrind(void);

/** Waits for the end of a child. Returns its status, as waitpid() does. */
int child_status(pid_t child);

/** Reads fd to its end. The text is valid until the next call. */
const char *child_read(int fd);

/**
 * Returns the text that body() writes to stderr in a child, which must end with status 0. The text
 * is valid until the next call. `variables` (NULL: unchanged) is the child's whole environment, a
 * list that ends with NULL.
 */
const char *child_stderr(const char *const *variables, void (*body)(void));

#endif
