/* Enlarges arrays in malloc memory. */
#ifndef GPUCACHE_REPLAY_GROW_H
#define GPUCACHE_REPLAY_GROW_H

#include <stddef.h>
#include <stdlib.h>

/**
 * Returns `list` with space for one more than `count` elements of `each` bytes, and updates
 * *capacity. Returns NULL without memory; `list` then stays.
 */
static inline void *grow(void *list, size_t count, size_t *capacity, size_t each) {
    if (count < *capacity)
        return list;
    size_t more = *capacity ? 2 * *capacity : 64;
    void *larger = realloc(list, more * each);
    *capacity = larger ? more : *capacity;
    return larger;
}

#endif
