/*
 * Lines: the addresses that an arena's segments lie at, where the backend maps memory at addresses of ours.
 *
 *      line      |<------------- several times what the device has ------------->|
 *      segments  | segment | segment |   hole   | segment |   hole, without end
 *
 * Addresses cost nothing, so there are always some left. What a request lacks beside the free range that ends where a
 * hole begins, or begins where one ends, is what the pool grows by, and only that. So memory is one piece as far as
 * possible, and what lies idle in small ranges elsewhere can make room for it: its segments move there, or go back to the driver. What
 * has moved leaves an alias (stale.h), where nothing else lies for a while.
 *
 * Under the pool's lock.
 */
#ifndef GPUCACHE_MEMORY_VA_RANGE_H
#define GPUCACHE_MEMORY_VA_RANGE_H

#include "memory/arena.h"

struct va_range {
    uint64_t base, bytes;
    struct va_range *next; /* by address */
};

/* Where an arena can grow for a request. */
struct gap {
    uint64_t base, bytes;       /* of the new memory: whole pages */
    uint64_t room;              /* so many bytes could be there */
    struct range *left, *right; /* free ranges beside it that are needed as well, or NULL */
};

/** Where a free range of so many bytes needs the least new memory, the lowest place among equals. False: the lines have no
 * such addresses. */
bool va_range_find(const struct arena *arena, uint64_t bytes, struct gap *gap);

/** More new memory at the same place, as far as there is room, or less again. */
void gap_become(struct gap *gap, uint64_t bytes);

/** Makes sure that a line can be added, as far as no other thread adds one. False without host memory. */
bool va_range_prepare(struct arena *arena);

/** From now on these addresses are there. Prepared before. */
void va_range_add(struct arena *arena, uint64_t base, uint64_t bytes);

/** Forgets a line; nothing lies there. False: there is none. */
bool va_range_remove(struct arena *arena, uint64_t *base, uint64_t *bytes);

#endif
