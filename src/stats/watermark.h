#ifndef GPUCACHE_STATS_WATERMARK_H
#define GPUCACHE_STATS_WATERMARK_H

#include "stats/counters.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/*
 * What the owner holds, having taken and given back, and the highest that was since the pool last
 * looked. An allocation compares two numbers, a free changes one:
 *
 *      taken        in all
 *      crest        what `taken` is when the next new peak is reached: the peak and all given back
 *      given back   crest - peak
 *      live         taken less that
 *
 * Modulo 2^64, and live to be read as signed: a thread may free more than it asked for.
 */
struct watermark {
    stat_counter taken, crest, peak;
};

/** Given back in all. For others than the owner: not less than that, at the time of the call; nor more, as long as the
 * peak that is taken off is that of the same moment. */
static inline uint64_t watermark_given(const struct watermark *mark) {
    uint64_t crest, before, peak = atomic_load_explicit(&mark->peak, memory_order_acquire);
    do {
        before = peak;
        crest = atomic_load_explicit(&mark->crest, memory_order_acquire);
        peak = atomic_load_explicit(&mark->peak, memory_order_acquire);
    } while (peak != before);
    return crest - peak;
}

static inline uint64_t watermark_live(const struct watermark *mark) {
    return counter_get(&mark->taken) - watermark_given(mark);
}

/** Counts what is taken. Negative: it makes a new peak, which watermark_raise() has to be told. */
static inline int64_t watermark_rise(struct watermark *mark, uint64_t amount) {
    uint64_t taken = counter_get(&mark->taken) + amount;
    counter_set(&mark->taken, taken);
    return (int64_t)(counter_get(&mark->crest) - taken);
}

static inline void watermark_raise(struct watermark *mark) {
    uint64_t taken = counter_get(&mark->taken);
    int64_t above = (int64_t)(taken - counter_get(&mark->crest));
    if (above > 0) {
        uint64_t peak = counter_get(&mark->peak) + (uint64_t)above;
        counter_set(&mark->crest, taken);
        atomic_store_explicit(&mark->peak, peak, memory_order_release);
    }
}

static inline void watermark_fall(struct watermark *mark, uint64_t amount) {
    counter_add(&mark->crest, amount);
}

/** Nothing was ever taken or given back. */
static inline bool watermark_is_unused(const struct watermark *mark) {
    return (counter_get(&mark->taken) | counter_get(&mark->crest)) == 0;
}

/** The peak becomes what is live. */
static inline void watermark_restart(struct watermark *mark) {
    uint64_t live = watermark_live(mark);
    counter_set(&mark->crest, counter_get(&mark->taken));
    counter_set(&mark->peak, live);
}

/** Nothing is live any more, and all that was taken counts as given back. */
static inline void watermark_clear(struct watermark *mark) {
    counter_set(&mark->peak, 0);
    counter_set(&mark->crest, counter_get(&mark->taken));
}

/** What `from` holds and held goes to `to`; the peak of both together is the highest it can have
 * been. */
static inline void watermark_join(struct watermark *to, struct watermark *from) {
    counter_add(&to->taken, counter_get(&from->taken));
    counter_add(&to->crest, counter_get(&from->crest));
    counter_add(&to->peak, counter_get(&from->peak));
    counter_set(&from->taken, 0);
    counter_set(&from->crest, 0);
    counter_set(&from->peak, 0);
}

#endif
