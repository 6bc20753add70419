/*
 * Peaks of live memory over all caches of a pool. peaks_sums() and peaks_live_at_most() take no
 * lock; all other functions need source.lock.
 */
#ifndef GPUCACHE_TCACHE_PEAKS_H
#define GPUCACHE_TCACHE_PEAKS_H

#include "tcache/pool_state.h"

struct peaks_sums {
    struct peaks_sum {
        uint64_t taken, given, live;
        uint64_t highest; /* upper bound of live since the last aggregation */
    } of[WATERMARKS];
    unsigned used; /* number of caches that have counted an allocation or a free */
};
struct peaks_sums peaks_sums(const struct pool *pool); /* over all caches; `live`: lower bound */
uint64_t peaks_live_at_most(const struct pool *pool);  /* upper bound of allocated bytes */

void peaks_update(struct pool *pool); /* after each slow path: counters, budget and decay */
void peaks_update_if_due(
    struct pool *pool);                   /* aggregates the peaks, unless that was done recently */
void peaks_update_all(struct pool *pool); /* aggregates the peaks and recomputes the budget */
/*
 * Returns whether growth by `bytes` exceeds the budget. Recomputes the budget first, at most once
 * per slow path.
 */
bool peaks_over_budget(struct pool *pool, uint64_t bytes);

#endif
