/*
 * Walks an arena, or the pages of one, and finds the first thing that does not fit. For tests.
 */
#ifndef GPUCACHE_MEMORY_CHECK_H
#define GPUCACHE_MEMORY_CHECK_H

#include <stdint.h>

struct arena;

#define HOLDS(condition)                                                                           \
    do {                                                                                           \
        if (!(condition))                                                                          \
            return __LINE__;                                                                       \
    } while (0)

/** Returns the line that is not so, or 0; adds what is live, and what is cached or pending. */
int check_arena(const struct arena *arena, uint64_t *live, uint64_t *pending);

/* What pages of small blocks have. */
struct in_pages {
    uint64_t live, cached, free_units, free_runs;
};

/** The same of all pages of an arena. */
int check_pages(const struct arena *arena, struct in_pages *all);

#endif
