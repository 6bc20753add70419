#include "driver/outside_kind.h"

#include "driver/device.h"

#include <stddef.h>

#define NOWHERE SIZE_MAX
#define METRIC(field) offsetof(struct books, field)
#define CHARGED true
#define NOT_CHARGED false

static const struct {
    enum outside_space space;
    bool charged;
    size_t metric;
} kinds[OUTSIDE_KINDS] = {
#define KIND(number, name, space, charged, metric, words, meaning)                                 \
    [number] = {OUTSIDE_##space, charged, metric},
#include "driver/outside_kind.def"
};

enum outside_space outside_kind_space(enum outside_kind kind) {
    return kinds[kind].space;
}

bool outside_kind_is_charged(enum outside_kind kind) {
    return kinds[kind].charged;
}

uint64_t outside_kind_bytes(enum outside_kind kind, const struct device *device) {
    size_t at = kinds[kind].metric;
    if (at == NOWHERE) {
        return 0;
    }
    const struct books_metric *metric = (const void *)((const char *)&device->outside + at);
    return books_get(&metric->current);
}

/* A cuMemAlloc of the driver's own is booked like a block of the pool, all of it at once. */
static void book_native(struct device *device, int64_t change) {
    struct books *books = &device->outside;
    lock_acquire(&device->lock);
    books_change(&books->requested, change);
    books_change(&books->allocated, change);
    books_change(&books->active, change);
    books_change(&books->reserved, change);
    books_change(&books->segments, change > 0 ? 1 : -1);
    books_change(&books->allocations, change > 0 ? 1 : -1);
    books_add(change > 0 ? &books->driver_allocs : &books->driver_frees, 1);
    books_add(&books->cache_misses, change > 0);
    lock_release(&device->lock);
}

void outside_kind_book(enum outside_kind kind, struct device *device, int64_t change) {
    size_t at = kinds[kind].metric;
    if (kind == OUTSIDE_NATIVE) {
        book_native(device, change);
    } else if (at != NOWHERE && kind != OUTSIDE_STREAM_ORDERED) {
        device_book(device, (struct books_metric *)(void *)((char *)&device->outside + at), change);
    }
}
