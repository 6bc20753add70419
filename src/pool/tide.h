#ifndef GPUCACHE_POOL_TIDE_H
#define GPUCACHE_POOL_TIDE_H

#include "stats/books.h"

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
struct tide {
    books_counter taken, crest, peak;
};

/** Given back in all. For others than the owner: not less than that, at the time of the call. */
static inline uint64_t tide_given(const struct tide *tide) {
    uint64_t peak = atomic_load_explicit(&tide->peak, memory_order_acquire);
    return books_get(&tide->crest) - peak;
}

static inline uint64_t tide_live(const struct tide *tide) {
    return books_get(&tide->taken) - tide_given(tide);
}

static inline void tide_rise(struct tide *tide, uint64_t amount) {
    uint64_t taken = books_get(&tide->taken) + amount;
    int64_t above = (int64_t)(taken - books_get(&tide->crest));
    books_set(&tide->taken, taken);
    if (above > 0) {
        uint64_t peak = books_get(&tide->peak) + (uint64_t)above;
        books_set(&tide->crest, taken);
        atomic_store_explicit(&tide->peak, peak, memory_order_release);
    }
}

static inline void tide_fall(struct tide *tide, uint64_t amount) {
    books_add(&tide->crest, amount);
}

/** Nothing was ever taken or given back. */
static inline bool tide_is_still(const struct tide *tide) {
    return (books_get(&tide->taken) | books_get(&tide->crest)) == 0;
}

/** The peak becomes what is live. */
static inline void tide_level(struct tide *tide) {
    uint64_t live = tide_live(tide);
    books_set(&tide->crest, books_get(&tide->taken));
    books_set(&tide->peak, live);
}

/** Nothing is live any more, and all that was taken counts as given back. */
static inline void tide_ebb(struct tide *tide) {
    books_set(&tide->peak, 0);
    books_set(&tide->crest, books_get(&tide->taken));
}

/** What `from` holds and held goes to `to`; the peak of both together is the highest it can have
 * been. */
static inline void tide_join(struct tide *to, struct tide *from) {
    books_add(&to->taken, books_get(&from->taken));
    books_add(&to->crest, books_get(&from->crest));
    books_add(&to->peak, books_get(&from->peak));
    books_set(&from->taken, 0);
    books_set(&from->crest, 0);
    books_set(&from->peak, 0);
}

#endif
