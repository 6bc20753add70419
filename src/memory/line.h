/*
 * Lines: the addresses that an arena's segments lie at, where the backend maps memory at addresses of ours.
 *
 *      line      |<------------- several times what the device has ------------->|
 *      segments  | segment | segment |   hole   | segment |   hole, without end
 *
 * Addresses cost nothing, so there are always some left. What a request lacks beside the free range that ends where a
 * hole begins, or begins where one ends, is what the pool grows by, and only that. So memory is one piece as far as
 * possible, and what lies idle in small ranges elsewhere can make room for it: its segments move there, or go back to the driver. What
 * has moved leaves an alias (alias.h), where nothing else lies for a while.
 *
 * Under the pool's lock.
 */
#ifndef GPUCACHE_MEMORY_LINE_H
#define GPUCACHE_MEMORY_LINE_H

#include "memory/arena.h"

struct line {
    uint64_t base, bytes;
    struct line *next; /* by address */
};

/* Where an arena can grow for a request. */
struct line_place {
    uint64_t base, bytes;       /* of the new memory: whole pages */
    uint64_t room;              /* so many bytes could be there */
    struct range *left, *right; /* free ranges beside it that are needed as well, or NULL */
};

/** Where a free range of so many bytes needs the least new memory, the lowest place among equals. False: the lines have no
 * such addresses. */
bool line_find(const struct arena *arena, uint64_t bytes, struct line_place *place);

/** More new memory at the same place, as far as there is room, or less again. */
void line_place_become(struct line_place *place, uint64_t bytes);

/** Makes sure that a line can be added, as far as no other thread adds one. False without host memory. */
bool line_prepare(struct arena *arena);

/** From now on these addresses are there. Prepared before. */
void line_add(struct arena *arena, uint64_t base, uint64_t bytes);

/** Forgets a line; nothing lies there. False: there is none. */
bool line_remove(struct arena *arena, uint64_t *base, uint64_t *bytes);

#endif
