/*
 * A watermark: the amount that an owner holds, and the peak of that amount since the last
 * aggregation (tcache/peaks.c). An allocation compares two numbers, a free changes one:
 *
 *      taken        sum of all allocations
 *      crest        value of `taken` at which the next new peak begins: peak plus all frees
 *      given back   crest - peak
 *      live         taken - given back
 *
 * All arithmetic is modulo 2^64. `live` is signed: a thread may free more than it allocated. Only
 * the owner writes.
 */
#ifndef GPUCACHE_STATS_WATERMARK_H
#define GPUCACHE_STATS_WATERMARK_H

#include "stats/counters.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct watermark {
    stat_counter taken, crest, peak;
    stat_counter restarts; /* two for each change that lowers the crest: before and after it */
};

/**
 * Returns the sum of all frees. In other threads than the owner the result is at least the sum at
 * the time of the call. It is the exact sum unless the owner raises or lowers the peak during the
 * call.
 *
 * Repeats the loads if the peak has changed between them, or was lowered: it may have risen to the
 * same value again, while the crest was read in between. A repetition follows a change by the
 * owner, so a signal handler that has interrupted the owner does not repeat for ever.
 */
static inline uint64_t watermark_given(const struct watermark *mark) {
    uint64_t crest, before, peak;
    uint64_t restarts, restarts_after = atomic_load_explicit(&mark->restarts, memory_order_acquire);
    do {
        restarts = restarts_after;
        before = atomic_load_explicit(&mark->peak, memory_order_acquire);
        crest = atomic_load_explicit(&mark->crest, memory_order_acquire);
        peak = atomic_load_explicit(&mark->peak, memory_order_acquire);
        restarts_after = atomic_load_explicit(&mark->restarts, memory_order_acquire);
    } while (peak != before || restarts != restarts_after);
    return crest - peak;
}

/** Returns the live amount, as exact as watermark_given(). */
static inline uint64_t watermark_live(const struct watermark *mark) {
    return counter_get(&mark->taken) - watermark_given(mark);
}

/**
 * Counts an allocation. A negative result means a new peak: the caller must call watermark_raise().
 */
static inline int64_t watermark_rise(struct watermark *mark, uint64_t amount) {
    uint64_t taken = counter_get(&mark->taken) + amount;
    counter_set(&mark->taken, taken);
    return (int64_t)(counter_get(&mark->crest) - taken);
}

/** Raises the peak to the amount that is live now, if that is higher. */
static inline void watermark_raise(struct watermark *mark) {
    uint64_t taken = counter_get(&mark->taken);
    int64_t above = (int64_t)(taken - counter_get(&mark->crest));
    if (above > 0) {
        uint64_t peak = counter_get(&mark->peak) + (uint64_t)above;
        counter_set(&mark->crest, taken);
        atomic_store_explicit(&mark->peak, peak, memory_order_release);
    }
}

/** Counts a free. */
static inline void watermark_fall(struct watermark *mark, uint64_t amount) {
    counter_add(&mark->crest, amount);
}

/** Returns whether nothing was ever counted. */
static inline bool watermark_is_unused(const struct watermark *mark) {
    return (counter_get(&mark->taken) | counter_get(&mark->crest)) == 0;
}

/** Sets the peak, and the live amount, to `live`. Lowers the peak before the crest: with the lower
 * crest and the old peak, watermark_given() would return less than the sum. */
static inline void watermark_set(struct watermark *mark, uint64_t live) {
    counter_add(&mark->restarts, 1);
    atomic_store_explicit(&mark->peak, live, memory_order_release);
    atomic_store_explicit(&mark->crest, counter_get(&mark->taken), memory_order_release);
    atomic_store_explicit(&mark->restarts, counter_get(&mark->restarts) + 1, memory_order_release);
}

/** Sets the peak to the live amount. */
static inline void watermark_restart(struct watermark *mark) {
    watermark_set(mark, watermark_live(mark));
}

/** Sets the live amount and the peak to 0: counts all allocations as freed. */
static inline void watermark_clear(struct watermark *mark) {
    watermark_set(mark, 0);
}

/** Moves the counts of `from` to `to`. The common peak is the sum of both, an upper bound. */
static inline void watermark_join(struct watermark *to, struct watermark *from) {
    counter_add(&to->taken, counter_get(&from->taken));
    counter_add(&to->crest, counter_get(&from->crest));
    counter_add(&to->peak, counter_get(&from->peak));
    counter_set(&from->taken, 0);
    counter_set(&from->crest, 0);
    counter_set(&from->peak, 0);
}

#endif
