/*
 * The peaks of what is live, as the caches of all threads count it, and with them the budget.
 *
 * A look brings all of it up to date, and with it those of the books that are known as a whole.
 */
#include "pool/internal.h"

#include <sched.h>

static void add_taken(const struct pool *pool, struct peaks_sums *sums) {
    for (struct cache *cache = atomic_load(&pool->caches); cache; cache = cache->next_in_pool) {
        for (unsigned i = 0; i < WATERMARKS; i++) {
            sums->of[i].taken += counter_get(&cache->watermarks[i].taken);
        }
    }
    atomic_thread_fence(memory_order_acquire);
}

static void add_given(const struct pool *pool, struct peaks_sums *sums) {
    for (struct cache *cache = atomic_load(&pool->caches); cache; cache = cache->next_in_pool) {
        for (unsigned i = 0; i < WATERMARKS; i++) {
            sums->of[i].given += watermark_given(&cache->watermarks[i]);
            sums->of[i].highest += counter_get(&cache->watermarks[i].peak);
        }
    }
    atomic_thread_fence(memory_order_acquire);
}

/*
 * Blocks change hands while one cache is read after another. So of all of them first what was taken is read, then what was
 * given back: the sum is never more than was live in between. The other way round it is never less.
 */
static struct peaks_sums sum_up(const struct pool *pool, bool at_most) {
    struct peaks_sums sums = {0};
    (at_most ? add_given : add_taken)(pool, &sums);
    (at_most ? add_taken : add_given)(pool, &sums); /* whoever is in the sums has to be counted */
    for (struct cache *cache = atomic_load(&pool->caches); cache; cache = cache->next_in_pool) {
        sums.used += !watermark_is_unused(&cache->watermarks[WATERMARK_COUNT]);
    }
    for (unsigned i = 0; i < WATERMARKS; i++) {
        struct peaks_sum *sum = &sums.of[i];
        sum->live = (int64_t)(sum->taken - sum->given) > 0 ? sum->taken - sum->given : 0;
        sum->highest = (int64_t)(sum->highest - sum->live) > 0 ? sum->highest : sum->live;
    }
    return sums;
}

/* Whoever moves one may have lost its processor; or be the thread that a signal has interrupted. */
static unsigned moves_done(const struct pool *pool, unsigned *turns) {
    unsigned moves;
    while ((moves = atomic_load(&pool->moves)) % 2 > 0 && ++*turns < MOVE_TURNS) {
        sched_yield();
    }
    return moves;
}

/* Without the lock a cache may come or go meanwhile: then once more. */
static struct peaks_sums sum_up_at_rest(const struct pool *pool, bool at_most) {
    struct peaks_sums sums;
    unsigned before, turns = 0;
    do {
        before = moves_done(pool, &turns);
        sums = sum_up(pool, at_most);
        atomic_thread_fence(memory_order_acquire);
    } while (before != atomic_load(&pool->moves) && ++turns < MOVE_TURNS);
    return sums;
}

struct peaks_sums peaks_sums(const struct pool *pool) {
    return sum_up_at_rest(pool, false);
}

uint64_t peaks_live_at_most(const struct pool *pool) {
    return sum_up_at_rest(pool, true).of[WATERMARK_ALLOCATED].live;
}

/*
 * What is live is booked in the caches of the threads. With one cache in use its own peak is the
 * truth. With several, no single moment is known: the peak is then the highest sum seen here, and
 * peak_upper what the sum of their own peaks allows. What has been summed need not be summed again;
 * only its owner may say so of a cache.
 */
static void aggregate_peaks(struct pool *pool) {
    struct counters *counters = &pool->source.counters;
    struct metric *const metrics[WATERMARKS] = {&counters->requested, &counters->allocated,
                                                &counters->allocations};
    struct peaks_sums sums = peaks_sums(pool);
    pool->peaks.summed_at = pool->peaks.updates;
    pool->peaks.unaggregated_bytes = 0;
    for (struct cache *cache = atomic_load(&pool->caches); cache; cache = cache->next_in_pool) {
        for (unsigned i = 0; i < WATERMARKS && (cache->owner == &cache_last || !cache->owner);
             i++) {
            watermark_restart(&cache->watermarks[i]);
        }
    }
    bool shared = counter_get(&counters->peaks_shared) || sums.used > 1;
    counter_set(&counters->peaks_shared, shared);
    for (unsigned i = 0; i < WATERMARKS; i++) {
        counter_raise(&metrics[i]->peak, shared ? sums.of[i].live : sums.of[i].highest);
    }
    counter_raise(&counters->peak_upper, sums.of[WATERMARK_REQUESTED].highest);
}

/* With many caches a sum takes longer than most visits. */
static bool may_aggregate(const struct pool *pool) {
    return pool->peaks.updates - pool->peaks.summed_at >= pool->caches_owned / CACHES_PER_UPDATE;
}

void peaks_update_if_due(struct pool *pool) {
    pool->peaks.updates++;
    if (may_aggregate(pool)) {
        aggregate_peaks(pool);
    }
}

/* The peak may have risen since the last look. */
bool peaks_over_budget(struct pool *pool, uint64_t bytes) {
    struct source *source = &pool->source;
    if (budget_allows(source, bytes)) {
        return false;
    }
    if (!pool->peaks.budget_is_updated) {
        if (may_aggregate(pool)) {
            aggregate_peaks(pool);
        }
        budget_recompute(source);
        pool->peaks.budget_is_updated = true;
    }
    return !budget_allows(source, bytes);
}

void peaks_update(struct pool *pool) {
    struct source *source = &pool->source;
    /* One cache keeps its own peak until it is asked for. Of several the sum is only known while it
     * is looked at; but that takes their cache lines away from their threads. */
    bool few = pool->caches_owned > 1 && pool->caches_owned <= FEW_CACHES;
    uint64_t updates = ++pool->peaks.updates - pool->peaks.summed_at;
    bool unseen = pool->caches_owned > 1 && may_aggregate(pool) &&
                  pool->peaks.unaggregated_bytes > budget_unaggregated_most(source);
    bool changed = budget_has_changed(source);
    if (updates >= (few ? UPDATES_PER_SUM_OF_FEW : UPDATES_PER_SUM) || unseen ||
        (changed && may_aggregate(pool))) {
        aggregate_peaks(pool);
        source->budget_stale = true;
    }
    budget_update(source, changed);
    pool->peaks.budget_is_updated = false;
    decay_watch(pool);
}

void peaks_update_all(struct pool *pool) {
    struct source *source = &pool->source;
    aggregate_peaks(pool);
    budget_recompute(source);
    budget_count_reserve(source);
    peaks_update(pool);
}
