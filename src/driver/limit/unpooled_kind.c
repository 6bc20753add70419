#include "driver/limit/unpooled_kind.h"

#include "driver/state/device.h"

#include <stddef.h>

#define NOWHERE SIZE_MAX
#define METRIC(field) offsetof(struct counters, field)
#define CHARGED true
#define NOT_CHARGED false

static const struct {
    enum unpooled_space space;
    bool charged;
    size_t metric;
} kinds[UNPOOLED_KINDS] = {
#define KIND(number, name, space, charged, metric, words, meaning)                                 \
    [number] = {UNPOOLED_##space, charged, metric},
#include "driver/limit/unpooled_kind.def"
};

enum unpooled_space unpooled_kind_space(enum unpooled_kind kind) {
    return kinds[kind].space;
}

bool unpooled_kind_is_charged(enum unpooled_kind kind) {
    return kinds[kind].charged;
}

uint64_t unpooled_kind_bytes(enum unpooled_kind kind, const struct device *device) {
    size_t at = kinds[kind].metric;
    if (at == NOWHERE)
        return 0;
    const struct metric *metric = (const void *)((const char *)&device->unpooled + at);
    return counter_get(&metric->current);
}

/*
 * Counts a cuMemAlloc that the driver served, or its free, like a block with its own segment.
 * Acquires the lock of the device.
 */
static void count_native(struct device *device, int64_t change) {
    struct counters *counters = &device->unpooled;
    lock_acquire(&device->lock);
    metric_change(&counters->requested, change);
    metric_change(&counters->allocated, change);
    metric_change(&counters->active, change);
    metric_change(&counters->reserved, change);
    metric_change(&counters->segments, change > 0 ? 1 : -1);
    metric_change(&counters->allocations, change > 0 ? 1 : -1);
    counter_add(change > 0 ? &counters->driver_allocs : &counters->driver_frees, 1);
    counter_add(&counters->cache_misses, change > 0);
    lock_release(&device->lock);
}

void unpooled_kind_attribute(enum unpooled_kind kind, struct device *device, unsigned requester,
                             int64_t change) {
    if (!kinds[kind].charged && kind != UNPOOLED_STREAM_ORDERED)
        return; /* host memory, memory of another process, and mappings */
    if (change > 0)
        requester_add(&device->requesters[requester], (uint64_t)change);
    else
        requester_subtract(&device->requesters[requester], (uint64_t)-change);
    if (kind != UNPOOLED_NATIVE)
        atomic_fetch_add(&device->requested_unpooled, (uint64_t)change);
}

void unpooled_kind_count(enum unpooled_kind kind, struct device *device, int64_t change) {
    size_t at = kinds[kind].metric;
    if (kind == UNPOOLED_NATIVE)
        count_native(device, change);
    else if (at != NOWHERE && kind != UNPOOLED_STREAM_ORDERED)
        device_change_metric(device, (struct metric *)(void *)((char *)&device->unpooled + at),
                             change);
}
