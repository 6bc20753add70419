/*
 * Kinds of memory that passes by the pool: where each is looked for, charged and counted. One table, outside_kind.def.
 */
#ifndef GPUCACHE_DRIVER_LIMIT_UNPOOLED_KIND_H
#define GPUCACHE_DRIVER_LIMIT_UNPOOLED_KIND_H

#include <stdbool.h>
#include <stdint.h>

struct device;

enum outside_kind {
#define KIND(number, name, space, charged, metric, words, meaning) OUTSIDE_##name = number,
#include "driver/limit/unpooled_kind.def"
    OUTSIDE_KINDS
};

/* Numbers of different spaces may collide. */
enum outside_space {
    OUTSIDE_POINTER,
    OUTSIDE_ARRAYS,
    OUTSIDE_HANDLES,
    OUTSIDE_HOST,
    OUTSIDE_IMPORTS, /* by IPC */
    OUTSIDE_RANGES
};

enum outside_space outside_kind_space(enum outside_kind kind);

/** Whether it counts against the limit where it is entered. */
bool outside_kind_is_charged(enum outside_kind kind);

/** Takes it into the books of its device, or out of them; what its pool counts is left to that. */
void outside_kind_book(enum outside_kind kind, struct device *device, int64_t change);

/** How many bytes of what is counted with it the device has; 0 if it is not counted on its own. */
uint64_t outside_kind_bytes(enum outside_kind kind, const struct device *device);

#endif
