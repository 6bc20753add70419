/*
 * Addresses in order, each with what stands for it: what begins at an address, or last before it, is
 * found by bisection. The owner's lock protects them.
 */
#ifndef GPUCACHE_DRIVER_STATE_ADDRESS_MAP_H
#define GPUCACHE_DRIVER_STATE_ADDRESS_MAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct span {
    uint64_t start;
    void *what;
};

struct spans {
    struct span *rows; /* several may begin at the same address */
    size_t count, room;
};

/** The first row that begins at `start` or behind it; `count` if there is none. */
size_t spans_from(const struct spans *spans, uint64_t start);

/** What begins last at `address` or before it, or NULL. */
void *spans_before(const struct spans *spans, uint64_t address);

/** False: no host memory. */
bool spans_add(struct spans *spans, uint64_t start, void *what);

void spans_remove(struct spans *spans, size_t at);

/** The row of `what`, which begins at `start` and is there. */
size_t spans_find(const struct spans *spans, uint64_t start, const void *what);

#endif
