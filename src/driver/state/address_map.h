/*
 * Addresses in order, each with what stands for it: what begins at an address, or last before it, is
 * found by bisection. The owner's lock protects them.
 */
#ifndef GPUCACHE_DRIVER_STATE_ADDRESS_MAP_H
#define GPUCACHE_DRIVER_STATE_ADDRESS_MAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct address_map_row {
    uint64_t start;
    void *what;
};

struct address_map {
    struct address_map_row *rows; /* several may begin at the same address */
    size_t count, room;
};

/** The first row that begins at `start` or behind it; `count` if there is none. */
size_t address_map_from(const struct address_map *map, uint64_t start);

/** What begins last at `address` or before it, or NULL. */
void *address_map_before(const struct address_map *map, uint64_t address);

/** False: no host memory. */
bool address_map_add(struct address_map *map, uint64_t start, void *what);

void address_map_remove(struct address_map *map, size_t at);

/** The row of `what`, which begins at `start` and is there. */
size_t address_map_find(const struct address_map *map, uint64_t start, const void *what);

#endif
