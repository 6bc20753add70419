/*
 * Walks an arena, or the pages of one, and finds the first thing that does not fit. For tests.
 */
#ifndef GPUCACHE_MEMORY_CHECK_H
#define GPUCACHE_MEMORY_CHECK_H

#include <stdint.h>

struct arena;

#define HERE_AT(line) #line
#define HERE_IN(file, line) file ":" HERE_AT(line)
#define HERE HERE_IN(__FILE__, __LINE__)

#define HOLDS(condition)                                                                           \
    do {                                                                                           \
        if (!(condition))                                                                          \
            return HERE;                                                                           \
    } while (0)

/** Returns where something is asked that is not so (file and line), or NULL; adds what is live, and what is cached or pending. */
const char *check_arena(const struct arena *arena, uint64_t *live, uint64_t *pending);

/* What pages of small blocks have. */
struct in_slabs {
    uint64_t live, cached, free_units, free_runs;
};

/** The same of all pages of an arena. */
const char *check_slabs(const struct arena *arena, struct in_slabs *all);

#endif
