/*
 * Peaks of live memory over all caches of a pool, and the end of a slow path, which updates the
 * values that depend on them. decay_is_any() tells whether decay has to run (pool/decay.c).
 *
 * peaks_sums() takes no lock. All other functions need source.lock, and keep it. Those that
 * aggregate enter the calling thread's cache: call them outside that cache.
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
/* Returns the sums over all caches. `live` is a lower bound, with `upper_bound` an upper bound. */
struct peaks_sums peaks_sums(const struct pool *pool, bool upper_bound);

/* Ends a slow path of an allocation or a free, or another call that may change the reserve or the
 * peak. Aggregates the peaks if that is due, recomputes budget and pressure, publishes the
 * counters, and asks for decay. */
void slow_path_end(struct pool *pool);
/* Does the same, but aggregates and recomputes in any case. */
void slow_path_recompute(struct pool *pool);
/* Aggregates the peaks, unless a recent slow path did. */
void peaks_aggregate_if_due(struct pool *pool);
/*
 * Returns whether growth by `bytes` exceeds the budget. Before returning true recomputes the
 * budget, at most once per slow path: the peak may have risen since. Aggregates if that is due.
 */
bool peaks_over_budget(struct pool *pool, uint64_t bytes);
/*
 * Returns whether memory may go back to the driver later. Counts quotas and deferred frees too: a
 * thread may free into its cache without a slow path, and only slow_path_end() asks for decay.
 * Returns false if a release waits for the device, and after a fault.
 */
bool decay_is_any(const struct pool *pool);

#endif
