/*
 * Keeps a sorted array of addresses, each with a pointer to the object that begins there.
 *
 * A binary search finds the object that begins at an address, or the last object before it. The
 * caller's lock protects the array. Invariant: the rows are sorted. pinned.c, ipc.c, ipc_export.c,
 * ipc_pages.c and backend/vmm.c use this file.
 */
#ifndef GPUCACHE_DRIVER_STATE_ADDRESS_MAP_H
#define GPUCACHE_DRIVER_STATE_ADDRESS_MAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct address_map_row {
    uint64_t start;
    void *what; /* the object that begins at `start` */
};

struct address_map {
    struct address_map_row *rows; /* sorted by `start`; several rows may have the same `start` */
    size_t count, capacity;       /* rows in use, and rows in the host memory of `rows` */
};

/** Returns the index of the first row at or after `start`; `count` if there is none. */
size_t address_map_from(const struct address_map *map, uint64_t start);

/** Returns the object with the highest start at or below `address`. NULL: there is none. */
void *address_map_before(const struct address_map *map, uint64_t address);

/**
 * Returns the object with the highest start in or before the range of `bytes` (at least 1) at
 * `address`. `address + bytes` may overflow. NULL: there is none.
 */
void *address_map_before_end(const struct address_map *map, uint64_t address, uint64_t bytes);

/** Adds the object `what`, which begins at `start`, in front of other rows with that start. Returns
 * false without host memory. */
bool address_map_add(struct address_map *map, uint64_t start, void *what);

/** Removes the row at index `at`. */
void address_map_remove(struct address_map *map, size_t at);

/** Returns the index of the row of `what`, which begins at `start`. The row must exist. */
size_t address_map_find(const struct address_map *map, uint64_t start, const void *what);

#endif
