/*
 * Walks an arena and its slabs, and finds the first broken invariant. For unit tests, under the
 * pool's lock. Each function returns NULL if all invariants hold, else the file:line of the first
 * check that failed.
 */
#ifndef GPUCACHE_DEBUG_CHECK_H
#define GPUCACHE_DEBUG_CHECK_H

#include <stdint.h>

struct arena;

/* The present file:line as a string. Two macros, so that __LINE__ is expanded before #line. */
#define HERE_AT(line) #line
#define HERE_IN(file, line) file ":" HERE_AT(line)
#define HERE HERE_IN(__FILE__, __LINE__)

/* Returns from the calling function with the file:line, unless the condition holds. */
#define HOLDS(condition)                                                                           \
    do {                                                                                           \
        if (!(condition))                                                                          \
            return HERE;                                                                           \
    } while (0)

/**
 * Checks ranges, free array, lists and counters of an arena. Adds its live bytes to *live, and its
 * cached or pending bytes to *pending.
 */
const char *check_arena(const struct arena *arena, uint64_t *live, uint64_t *pending);

/* Sums over slabs: bytes of live and of cached blocks, free units, free runs. */
struct in_slabs {
    uint64_t live, cached, free_units, free_runs;
};

/** Checks all slabs of an arena, and adds to *all. */
const char *check_slabs(const struct arena *arena, struct in_slabs *all);

#endif
