/*
 * What a test has done in a child: options are read once in the life of a process, descriptors are closed,
 * signals kill.
 */
#ifndef GPUCACHE_TESTS_CHILD_H
#define GPUCACHE_TESTS_CHILD_H

#include <stdbool.h>
#include <sys/types.h>

/** Returns whether valgrind runs this. It does not keep registers right for an access that a
 * handler has repaired. */
bool child_under_valgrind(void);

/** Waits for the end of a child: its status, as waitpid() has it. */
int child_status(pid_t child);

/** Everything up to the end of what fd leads to, until the next call. */
const char *child_read(int fd);

/**
 * What body() writes to stderr in a child, which must end well; until the next call. With `variables`, a list
 * that ends with NULL, those are the child's whole environment.
 */
const char *child_stderr(const char *const *variables, void (*body)(void));

#endif
