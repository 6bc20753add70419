/*
 * Gives the properties of the kinds of unpooled memory (unpooled_kind.def), and counts their bytes.
 * unpooled.c and ledger_row.c call these functions. Only unpooled_kind_count() acquires a lock,
 * that of the device.
 */
#ifndef GPUCACHE_DRIVER_LIMIT_UNPOOLED_KIND_H
#define GPUCACHE_DRIVER_LIMIT_UNPOOLED_KIND_H

#include <stdbool.h>
#include <stdint.h>

struct device;

enum unpooled_kind {
#define KIND(number, name, space, charged, metric, words, meaning) UNPOOLED_##name = number,
#include "driver/limit/unpooled_kind.def"
    UNPOOLED_KINDS
};

/* Space of a row's key: keys of different spaces may be equal. */
enum unpooled_space {
    UNPOOLED_POINTER,
    UNPOOLED_ARRAYS,
    UNPOOLED_HANDLES,
    UNPOOLED_HOST,
    UNPOOLED_IMPORTS, /* addresses opened by legacy IPC */
    UNPOOLED_RANGES
};

enum unpooled_space unpooled_kind_space(enum unpooled_kind kind);

/**
 * Returns whether unpooled_begin() charges this kind. The driver's own pools charge stream-ordered
 * memory themselves.
 */
bool unpooled_kind_is_charged(enum unpooled_kind kind);

/**
 * Adds `change` bytes to the counters of a kind on its device. Does nothing for mappings, which
 * have no bytes of their own, and for stream-ordered memory, which its pool counts.
 */
void unpooled_kind_count(enum unpooled_kind kind, struct device *device, int64_t change);

/**
 * Adds `change` to the bytes of a requester, for kinds that are device memory of this process.
 * Takes no lock.
 */
void unpooled_kind_attribute(enum unpooled_kind kind, struct device *device, unsigned requester,
                             int64_t change);

/**
 * Returns the bytes of the kind's metric on the device. Kinds with the same metric are counted
 * together. Returns 0 for kinds without a metric.
 */
uint64_t unpooled_kind_bytes(enum unpooled_kind kind, const struct device *device);

#endif
