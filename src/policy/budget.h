/*
 * The budget: how far a pool may grow, computed from the peak of live memory. All values are bytes.
 * The pool's lock is held, and kept, in every function but budget_expect_streams() and
 * budget_streams().
 */
#ifndef GPUCACHE_POLICY_BUDGET_H
#define GPUCACHE_POLICY_BUDGET_H

#include "source/source.h"

/** Computes goal, budget, pressure and the bytes per event from peak, quotas and refusals. */
void budget_recompute(struct source *source);

/** Updates the metrics of reserved and free memory. */
void budget_count_reserve(struct source *source);

/** Set, and return, the number of the program's streams, the default one not counted. */
void budget_expect_streams(unsigned streams);
unsigned budget_streams(void);

/** Returns the upper bound of the goal for the present peak. With at most one active cache it also
 * bounds the budget. */
uint64_t budget_highest_goal(const struct source *source);

/** Returns whether the peak is above the floor of several streams; true with at most one stream. */
bool budget_is_beyond_floor(const struct source *source);

/** Returns the budget of a VMM pool as it will be once `bytes` more are in use. */
uint64_t budget_with(const struct source *source, uint64_t bytes);

/** Returns the bytes by which remapping may raise the goal at its present number of slack steps. */
uint64_t budget_remap_slack_most(const struct source *source);

/**
 * Returns the bytes per event under pressure: a thread that freed more since the last event that
 * any free recorded has to record one.
 *
 * A wait for memory freed after the last event is a wait for all work submitted so far. The result
 * is therefore a small part of the bytes that the pool can grow by instead, and EVENT_BYTES_LAST if
 * the pool cannot grow.
 */
static inline uint64_t budget_event_bytes(const struct source *source, uint64_t budget) {
    uint64_t used = max_u64(budget, source_reserved(source)), capacity = source->backend->capacity;
    uint64_t growable = source->refused_at == 0 && used < capacity ? capacity - used : 0;
    uint64_t most = clamp_u64(EVENT_BYTES_LAST, growable / EVENT_PART, EVENT_BYTES);
    return min_u64(budget / EVENT_SHARE + SMALL_MAX_BYTES, most);
}

/** Returns whether the reserve, all growths in progress and `growth` together exceed `most`. */
static inline bool budget_would_exceed(const struct source *source, uint64_t growth,
                                       uint64_t most) {
    return source_reserved_soon(source) + growth > most;
}

/**
 * Returns whether growing by `bytes` stays within the budget as last computed. The peak may have
 * risen since then.
 */
static inline bool budget_allows(const struct source *source, uint64_t bytes) {
    return !budget_would_exceed(source, bytes,
                                atomic_load_explicit(&source->budget, memory_order_relaxed));
}

#endif
