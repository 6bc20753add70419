/*
 * A watermark: the amount that an owner holds, and the peak of that amount since the last
 * aggregation (tcache/peaks.c). Only the owner writes.
 *
 * `taken` and `given` only grow while a thread owns the watermark. Their difference is the live
 * amount. A reader in another thread that loads one before the other therefore gets a bound of the
 * live amount. Where a watermark changes its owner, pool->moves tells the reader to start again.
 *
 * All arithmetic is modulo 2^64. The live amount is signed: a thread may free more than it
 * allocated.
 */
#ifndef GPUCACHE_STATS_WATERMARK_H
#define GPUCACHE_STATS_WATERMARK_H

#include "stats/counters.h"

#include <stdbool.h>
#include <stdint.h>

struct watermark {
    stat_counter taken, given; /* sums of all allocations and of all frees */
    stat_counter peak;
};

/** Returns the live amount. Exact for the owner. */
static inline uint64_t watermark_live(const struct watermark *mark) {
    return counter_get(&mark->taken) - counter_get(&mark->given);
}

/**
 * Counts an allocation. A negative result means a new peak: the caller must call watermark_raise().
 */
static inline int64_t watermark_rise(struct watermark *mark, uint64_t amount) {
    uint64_t taken = counter_own(&mark->taken) + amount;
    counter_set(&mark->taken, taken);
    return (int64_t)(counter_own(&mark->peak) + counter_own(&mark->given) - taken);
}

/** Raises the peak to the amount that is live now, if that is higher. */
static inline void watermark_raise(struct watermark *mark) {
    uint64_t live = watermark_live(mark);
    if ((int64_t)(live - counter_own(&mark->peak)) > 0)
        counter_set(&mark->peak, live);
}

static inline void watermark_fall(struct watermark *mark, uint64_t amount) {
    counter_add(&mark->given, amount);
}

/** Returns whether nothing was ever counted. */
static inline bool watermark_is_unused(const struct watermark *mark) {
    return (counter_get(&mark->taken) | counter_get(&mark->given)) == 0;
}

/** Sets the peak to the live amount. */
static inline void watermark_restart(struct watermark *mark) {
    counter_set(&mark->peak, watermark_live(mark));
}

/** Sets the live amount and the peak to 0: counts all allocations as freed. */
static inline void watermark_clear(struct watermark *mark) {
    counter_set(&mark->given, counter_get(&mark->taken));
    counter_set(&mark->peak, 0);
}

/** Moves the counts of `from` to `to`. The common peak is the sum of both, an upper bound. */
static inline void watermark_join(struct watermark *to, struct watermark *from) {
    counter_add(&to->taken, counter_get(&from->taken));
    counter_add(&to->given, counter_get(&from->given));
    counter_add(&to->peak, counter_get(&from->peak));
    counter_set(&from->taken, 0);
    counter_set(&from->given, 0);
    counter_set(&from->peak, 0);
}

#endif
