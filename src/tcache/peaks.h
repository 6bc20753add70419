/*
 * Peaks of live memory over all caches of a pool. peaks_sums() and peaks_live_upper_bound() take no
 * lock; all other functions need source.lock.
 */
#ifndef GPUCACHE_TCACHE_PEAKS_H
#define GPUCACHE_TCACHE_PEAKS_H

#include "tcache/pool_state.h"

struct peaks_sums {
    struct peaks_sum {
        uint64_t taken, given, live; /* sums of allocations and of frees; their difference, or 0 */
        uint64_t highest;            /* upper bound of live since the last aggregation */
    } of[WATERMARKS];
    unsigned used; /* number of caches that have counted an allocation or a free */
};
struct peaks_sums peaks_sums(const struct pool *pool);    /* over all caches; `live`: lower bound */
uint64_t peaks_live_upper_bound(const struct pool *pool); /* upper bound of allocated bytes */

/* Ends each slow path: updates counters, budget and decay. May aggregate the peaks. */
void peaks_update(struct pool *pool);
/* Aggregates the peaks, unless a recent update did. */
void peaks_aggregate_if_due(struct pool *pool);
void peaks_update_all(struct pool *pool); /* aggregates the peaks and recomputes the budget */
/*
 * Returns whether growth by `bytes` exceeds the budget. Before returning true recomputes the
 * budget, at most once per slow path.
 */
bool peaks_over_budget(struct pool *pool, uint64_t bytes);

#endif
