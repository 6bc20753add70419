/*
 * The books of one pool: every figure of fields.def as something that many threads may read while
 * one writes.
 *
 * There is one writer at a time (it holds the pool's lock, or owns the counter), so a change is a
 * plain load and store and never a locked instruction; readers (a report in a signal handler) take
 * no lock. Peaks are kept where the value changes, not sampled.
 */
#ifndef GPUCACHE_STATS_BOOKS_H
#define GPUCACHE_STATS_BOOKS_H

#include "stats/stats.h"

#include <stdatomic.h>
#include <stdint.h>

typedef _Atomic uint64_t books_counter;

struct books_metric {
    books_counter current, peak, total, freed;
};

struct books {
#define METRIC(field, json, label) struct books_metric field;
#define OUTSIDE(field, json) struct books_metric field;
#define GAUGE(field) books_counter field;
#define COUNTER(field) books_counter field;
#include "stats/fields.def"
    books_counter peak_upper; /* no moment can have had more requested bytes than this */
    books_counter
        peaks_shared; /* not 0: several thread caches changed the books, peaks are lower bounds */
};

static inline uint64_t books_get(const books_counter *counter) {
    return atomic_load_explicit(counter, memory_order_relaxed);
}

static inline void books_set(books_counter *counter, uint64_t value) {
    atomic_store_explicit(counter, value, memory_order_relaxed);
}

static inline void books_add(books_counter *counter, uint64_t value) {
    books_set(counter, books_get(counter) + value);
}

static inline void books_raise(books_counter *peak, uint64_t value) {
    if (value > books_get(peak)) {
        books_set(peak, value);
    }
}

static inline void books_enter(struct books_metric *metric, uint64_t amount) {
    books_add(&metric->current, amount);
    books_add(&metric->total, amount);
    books_raise(&metric->peak, books_get(&metric->current));
}

static inline void books_leave(struct books_metric *metric, uint64_t amount) {
    books_set(&metric->current, books_get(&metric->current) - amount);
    books_add(&metric->freed, amount);
}

static inline void books_change(struct books_metric *metric, int64_t change) {
    if (change > 0) {
        books_enter(metric, (uint64_t)change);
    } else {
        books_leave(metric, (uint64_t)-change);
    }
}

/** Sets a value that is known as a whole, and books the difference. */
static inline void books_become(struct books_metric *metric, uint64_t value) {
    uint64_t before = books_get(&metric->current);
    if (value > before) {
        books_enter(metric, value - before);
    } else if (value < before) {
        books_leave(metric, before - value);
    }
}

/** Every peak becomes the current value. */
static inline void books_reset_peaks(struct books *books) {
#define METRIC(field, json, label) books_set(&books->field.peak, books_get(&books->field.current));
#define OUTSIDE(field, json) books_set(&books->field.peak, books_get(&books->field.current));
#include "stats/fields.def"
    books_set(&books->peak_upper, 0);
}

#endif
