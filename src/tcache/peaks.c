/*
 * Computes the peaks of live memory from the counters of all thread caches, and updates the budget.
 *
 * One cache knows its own peak exactly. Over several caches a peak is known only when their
 * counters are summed ("aggregated"), which loads a cache line of each thread's cache. Every slow
 * path ends with slow_path_end(). That function decides when the sum is worth its time, updates
 * budget and counters, and asks the backend for ticks of decay.
 *
 * All functions but those of the sums need source.lock. Invariant: the pool's peak of requested
 * bytes is at most the real one, and peak_upper at least.
 */
#include "tcache/internal.h"

#include <sched.h>

/* Adds the allocations of all caches. The fence orders the loads before later ones. */
static void add_taken(const struct pool *pool, struct peaks_sums *sums) {
    for (struct cache *cache = atomic_load(&pool->caches); cache; cache = cache->next_in_pool)
        for (unsigned i = 0; i < WATERMARKS; i++)
            sums->of[i].taken += counter_get(&cache->watermarks[i].taken);
    atomic_thread_fence(memory_order_acquire);
}

/* Adds the frees and the peaks of all caches, with such a fence. */
static void add_given(const struct pool *pool, struct peaks_sums *sums) {
    for (struct cache *cache = atomic_load(&pool->caches); cache; cache = cache->next_in_pool) {
        for (unsigned i = 0; i < WATERMARKS; i++) {
            sums->of[i].given += counter_get(&cache->watermarks[i].given);
            sums->of[i].highest += counter_get(&cache->watermarks[i].peak);
        }
    }
    atomic_thread_fence(memory_order_acquire);
}

/*
 * Sums the counters of all caches. Other threads allocate and free during the sum, so the order of
 * reading decides the error:
 *
 *   taken before given (`upper_bound` false)   `live` is at most what was live at some time
 *   given before taken (`upper_bound` true)    `live` is at least what was live at some time
 */
static struct peaks_sums sum_up(const struct pool *pool, bool upper_bound) {
    struct peaks_sums sums = {0};
    (upper_bound ? add_given : add_taken)(pool, &sums);
    (upper_bound ? add_taken : add_given)(pool, &sums);
    /* Counted last, to include every cache of the sums. */
    for (struct cache *cache = atomic_load(&pool->caches); cache; cache = cache->next_in_pool)
        sums.used += !watermark_is_unused(&cache->watermarks[WATERMARK_BLOCKS]);
    for (unsigned i = 0; i < WATERMARKS; i++) {
        struct peaks_sum *sum = &sums.of[i];
        sum->live = (int64_t)(sum->taken - sum->given) > 0 ? sum->taken - sum->given : 0;
        sum->highest = (int64_t)(sum->highest - sum->live) > 0 ? sum->highest : sum->live;
    }
    return sums;
}

/*
 * Waits until no cache is being added or removed. Returns pool->moves, which is odd if the wait
 * gave up, at MOVE_TURNS turns: the moving thread may be preempted, or interrupted by the signal
 * handler that calls this function.
 */
static unsigned wait_for_move(const struct pool *pool, unsigned *turns) {
    unsigned moves;
    while ((moves = atomic_load(&pool->moves)) % 2 > 0 && ++*turns < MOVE_TURNS)
        sched_yield();
    return moves;
}

/* Repeats the sum if a cache was added or removed meanwhile, at most MOVE_TURNS times. */
struct peaks_sums peaks_sums(const struct pool *pool, bool upper_bound) {
    struct peaks_sums sums;
    unsigned before, turns = 0;
    do {
        before = wait_for_move(pool, &turns);
        sums = sum_up(pool, upper_bound);
        atomic_thread_fence(memory_order_acquire);
    } while (before != atomic_load(&pool->moves) && ++turns < MOVE_TURNS);
    return sums;
}

/*
 * Raises the pool's peaks to the sums of the caches.
 *
 *   1. Only one cache has ever counted: its own peak is exact.
 *   2. Several: the peak is the highest sum seen here, a lower bound. `peak_upper` is the sum of
 *      the caches' own peaks, an upper bound.
 *
 * Also restarts the watermarks of the calling thread's cache (&cache_last identifies the thread)
 * and of the common cache, which has no thread. Other caches keep theirs: only their thread may
 * write them.
 */
static void aggregate_peaks(struct pool *pool) {
    ASSERT_HELD(&pool->source.lock);
    struct counters *counters = &pool->source.counters;
    struct metric *const metrics[WATERMARKS] = {&counters->requested, &counters->allocated,
                                                &counters->allocations};
    struct peaks_sums sums = peaks_sums(pool, false);
    pool->peaks.summed_at = pool->peaks.updates;
    pool->peaks.has_large = false;
    for (struct cache *cache = atomic_load(&pool->caches); cache; cache = cache->next_in_pool) {
        if (cache->thread == &cache_last || !cache->thread) {
            cache_enter(cache); /* a thread that is ending may count in the common cache */
            for (unsigned i = 0; i < WATERMARKS; i++)
                watermark_restart(&cache->watermarks[i]);
            cache_leave(cache);
        }
    }
    bool shared = counter_get(&counters->peaks_shared) || sums.used > 1;
    counter_set(&counters->peaks_shared, shared);
    for (unsigned i = 0; i < WATERMARKS; i++)
        counter_raise(&metrics[i]->peak, shared ? sums.of[i].live : sums.of[i].highest);
    counter_raise(&counters->peak_upper, sums.of[WATERMARK_REQUESTED].highest);
}

/* Returns whether enough slow paths have ended since the last sum: one for each UPDATES_PER_SUM
 * caches. A sum over many caches takes longer than most slow paths, so it must not run in each. */
static bool may_aggregate(const struct pool *pool) {
    return pool->peaks.updates - pool->peaks.summed_at >= pool->caches_owned / UPDATES_PER_SUM;
}

void peaks_aggregate_if_due(struct pool *pool) {
    pool->peaks.updates++;
    if (may_aggregate(pool))
        aggregate_peaks(pool);
}

bool peaks_over_budget(struct pool *pool, uint64_t bytes) {
    struct source *source = &pool->source;
    if (budget_allows(source, bytes))
        return false;
    if (!pool->peaks.budget_is_fresh) {
        if (may_aggregate(pool))
            aggregate_peaks(pool);
        budget_recompute(source);
        pool->peaks.budget_is_fresh = true;
    }
    return !budget_allows(source, bytes);
}

bool decay_is_any(const struct pool *pool) {
    const struct source *source = &pool->source;
    return !source->backend->release_waits && epochs_broken(&source->epochs) == 0 &&
           source_idle(source) + source->returning_bytes + source->pending_bytes + source->quotas +
                   atomic_load_explicit(&pool->deferred_bytes, memory_order_relaxed) >
               0;
}

void slow_path_end(struct pool *pool) {
    ASSERT_HELD(&pool->source.lock);
    struct source *source = &pool->source;
    /*
     * Aggregation takes cache lines away from the threads that own the caches. It runs at the end
     * of every UPDATES_PER_SUM-th slow path. It runs earlier, if may_aggregate(), after a large
     * block of one of several caches, and after a change of the reserve or of refused records. A
     * single cache keeps its own exact peak, so no sum is needed until a report reads it. Small
     * blocks of several caches do not raise the budget before the next aggregation.
     */
    uint64_t updates = ++pool->peaks.updates - pool->peaks.summed_at;
    bool large = pool->caches_owned > 1 && pool->peaks.has_large;
    struct counters *counters = &source->counters;
    bool changed = source_reserved(source) != counter_get(&counters->reserved.current) ||
                   source->backend->refused != source->refused_seen;
    if (updates >= UPDATES_PER_SUM || ((large || changed) && may_aggregate(pool))) {
        aggregate_peaks(pool);
        source->budget_stale = true;
    }
    if (changed || source->budget_stale)
        budget_recompute(source);
    if (changed || source_free(source) != counter_get(&counters->ready_bytes))
        budget_count_reserve(source);
    counter_set(&counters->epochs, source->epochs.closed);
    counter_set(&counters->barriers, source->epochs.barriers);
    pool->peaks.budget_is_fresh = false;
    if (source->config.decays && !source->decay.watched && decay_is_any(pool)) {
        source->decay.watched = true;
        source->backend->ops->watch_idle(source->backend);
    }
}

void slow_path_recompute(struct pool *pool) {
    aggregate_peaks(pool);
    pool->source.budget_stale = true;
    slow_path_end(pool);
}
