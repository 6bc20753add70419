/*
 * Kinds of memory that passes by the pool: where each is looked for, charged and counted. One table, unpooled_kind.def.
 */
#ifndef GPUCACHE_DRIVER_LIMIT_UNPOOLED_KIND_H
#define GPUCACHE_DRIVER_LIMIT_UNPOOLED_KIND_H

#include <stdbool.h>
#include <stdint.h>

struct device;

enum unpooled_kind {
#define KIND(number, name, space, charged, metric, words, meaning) UNPOOLED_##name = number,
#include "driver/limit/unpooled_kind.def"
    OUTSIDE_KINDS
};

/* Numbers of different spaces may collide. */
enum unpooled_space {
    UNPOOLED_POINTER,
    UNPOOLED_ARRAYS,
    UNPOOLED_HANDLES,
    UNPOOLED_HOST,
    UNPOOLED_IMPORTS, /* by IPC */
    UNPOOLED_RANGES
};

enum unpooled_space unpooled_kind_space(enum unpooled_kind kind);

/** Whether it counts against the limit where it is entered. */
bool unpooled_kind_is_charged(enum unpooled_kind kind);

/** Takes it into the books of its device, or out of them; what its pool counts is left to that. */
void unpooled_kind_book(enum unpooled_kind kind, struct device *device, int64_t change);

/** How many bytes of what is counted with it the device has; 0 if it is not counted on its own. */
uint64_t unpooled_kind_bytes(enum unpooled_kind kind, const struct device *device);

#endif
