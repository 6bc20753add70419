/*
 * The counters and metrics of one pool, or of a device's unpooled memory: every row of fields.def.
 *
 * Each counter has one writer at a time: the thread that holds the lock of the pool (source.lock),
 * of the device, or of the cache. A change is therefore a plain load and a plain store, without a
 * locked instruction. Readers, such as a report in a signal handler, take no lock. A peak is
 * updated with each change. Exceptions: tcache/peaks.c computes a pool's peaks of requested bytes,
 * allocated bytes and allocations from the counters of the caches.
 */
#ifndef GPUCACHE_STATS_COUNTERS_H
#define GPUCACHE_STATS_COUNTERS_H

#include "stats/stats.h"

#include <stdint.h>

/* A struct, so that code uses the functions below only. */
typedef struct {
    uint64_t value;
} stat_counter;

struct metric {
    stat_counter current, peak, total, freed; /* as struct stats_metric */
};

struct counters {
#define METRIC(field, json, label) struct metric field;
#define UNPOOLED(field, json) struct metric field;
#define GAUGE(field) stat_counter field;
#define COUNTER(field) stat_counter field;
#include "stats/fields.def"
    stat_counter peak_upper;   /* upper bound of the peak of requested bytes */
    stat_counter peaks_shared; /* not 0: several caches counted, so peaks are lower bounds */
};

/** Returns the value, in any thread. */
static inline uint64_t counter_get(const stat_counter *counter) {
    return __atomic_load_n(&counter->value, __ATOMIC_RELAXED);
}

/** Returns the value to the one writer. The compiler may use a plain load as an operand. */
static inline uint64_t counter_own(const stat_counter *counter) {
    return counter->value;
}

/* The functions that change a counter are for the writer only. */

static inline void counter_set(stat_counter *counter, uint64_t value) {
    __atomic_store_n(&counter->value, value, __ATOMIC_RELAXED);
}

static inline void counter_add(stat_counter *counter, uint64_t value) {
    counter_set(counter, counter_own(counter) + value);
}

static inline void counter_raise(stat_counter *peak, uint64_t value) {
    if (value > counter_get(peak))
        counter_set(peak, value);
}

/** Counts a positive change as taken: raises current, total and, if exceeded, peak. Counts a
 * negative one as given back: lowers current, raises freed. */
static inline void metric_change(struct metric *metric, int64_t change) {
    counter_add(&metric->current, (uint64_t)change);
    if (change > 0) {
        counter_add(&metric->total, (uint64_t)change);
        counter_raise(&metric->peak, counter_get(&metric->current));
    } else {
        counter_add(&metric->freed, (uint64_t)-change);
    }
}

/** Sets `current`, and counts the difference as taken or freed. */
static inline void metric_become(struct metric *metric, uint64_t value) {
    metric_change(metric, (int64_t)(value - counter_get(&metric->current)));
}

/** Sets every peak to the current value, and peak_upper to 0: the next aggregation raises it. */
static inline void counters_reset_peaks(struct counters *counters) {
#define METRIC(field, json, label)                                                                 \
    counter_set(&counters->field.peak, counter_get(&counters->field.current));
#define UNPOOLED(field, json)                                                                      \
    counter_set(&counters->field.peak, counter_get(&counters->field.current));
#include "stats/fields.def"
    counter_set(&counters->peak_upper, 0);
}

#endif
