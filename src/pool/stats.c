/*
 * Adds the counters and metrics of a pool to a snapshot (stats/stats.h). Reports call it, also in
 * signal handlers: nothing here waits for a lock, except pool_reset_peaks() and pool_list_memory().
 */
#include "pool/internal.h"

static void add_metric(struct stats_metric *to, const struct metric *from) {
    to->current += counter_get(&from->current);
    to->peak += counter_get(&from->peak);
    to->total += counter_get(&from->total);
    to->freed += counter_get(&from->freed);
}

/* Adds the numbers of allocations or frees, by size class of the statistics, to `counts`. */
static void count_classes(const struct pool *pool, bool frees,
                          uint64_t counts[STATS_SIZE_CLASSES]) {
    for (struct cache *cache = atomic_load(&pool->caches); cache; cache = cache->next_in_pool) {
        for (unsigned i = 0; i < SMALL_CLASSES; i++) {
            const struct bin *bin = &cache->bins[i];
            counts[stats_size_class(size_class_bytes(i))] +=
                counter_get(frees ? &bin->frees : &bin->allocs);
        }
        for (unsigned i = 0; i < STATS_SIZE_CLASSES; i++)
            counts[i] += counter_get(frees ? &cache->large_frees[i] : &cache->large_allocs[i]);
    }
}

/* Reads allocations before frees, as peaks_sums() does: `live` is never too large. */
static void add_classes(const struct pool *pool, struct stats_device *stats) {
    uint64_t allocs[STATS_SIZE_CLASSES] = {0}, frees[STATS_SIZE_CLASSES] = {0};
    count_classes(pool, false, allocs);
    atomic_thread_fence(memory_order_acquire);
    count_classes(pool, true, frees);
    for (unsigned i = 0; i < STATS_SIZE_CLASSES; i++) {
        stats->size_classes[i].total += allocs[i];
        stats->size_classes[i].live += allocs[i] > frees[i] ? allocs[i] - frees[i] : 0;
    }
}

/*
 * Adds a metric that the caches count; `from` holds its peak of the last aggregation. `shared`:
 * several caches have counted, so the sum of their peaks is only an upper bound. Returns the peak.
 */
static uint64_t add_sum(struct stats_metric *to, const struct metric *from, struct peaks_sum sum,
                        bool shared) {
    uint64_t last = counter_get(&from->peak), now = shared ? sum.live : sum.highest;
    to->current += sum.live;
    to->total += sum.taken;
    to->freed += sum.taken - sum.live;
    to->peak += now > last ? now - last : 0; /* add_metric() has added `last` */
    return now > last ? now : last;
}

void pool_read(struct pool *pool, struct stats_device *stats) {
    struct source *source = &pool->source;
    const struct counters *counters = &source->counters;
    /*
     * A signal handler may interrupt the thread that holds the lock, so the lock is only tried.
     * Without the lock, the largest free block is that of the last update. The counts that an
     * ending thread's cache moves to the common cache may be read twice or not at all.
     */
    bool locked = lock_try(&source->lock);
    if (locked)
        budget_count_reserve(source);
    uint64_t largest = counter_get(&counters->largest_free_bytes),
             largest_of_others = stats->largest_free_bytes;
#define METRIC(field, json, label) add_metric(&stats->field, &counters->field);
#define UNPOOLED(field, json) add_metric(&stats->field, &counters->field);
#define GAUGE(field) stats->field += counter_get(&counters->field);
#define COUNTER(field) stats->field += counter_get(&counters->field);
#include "stats/fields.def"
    stats->largest_free_bytes = largest > largest_of_others ? largest : largest_of_others;
    add_classes(pool, stats);
    struct peaks_sums sums = peaks_sums(pool, false);
    if (locked)
        lock_release(&source->lock);
    bool shared = counter_get(&counters->peaks_shared) || sums.used > 1;
    add_sum(&stats->allocations, &counters->allocations, sums.of[WATERMARK_BLOCKS], shared);
    add_sum(&stats->allocated, &counters->allocated, sums.of[WATERMARK_ALLOCATED], shared);
    uint64_t peak =
        add_sum(&stats->requested, &counters->requested, sums.of[WATERMARK_REQUESTED], shared);
    if (shared) {
        uint64_t upper = counter_get(&counters->peak_upper),
                 now = sums.of[WATERMARK_REQUESTED].highest;
        upper = upper > now ? upper : now;
        now = counter_get(&counters->active.peak); /* active covers all live memory */
        upper = upper < now ? upper : now;
        stats->peaks_exact = false;
        stats->peak_error_bytes += upper > peak ? upper - peak : 0;
    }
}

uint64_t unused_bytes(const struct pool *pool, uint64_t reserved) {
    uint64_t live = peaks_sums(pool, true).of[WATERMARK_ALLOCATED].live;
    uint64_t in_use = live + atomic_load(&pool->deferred_bytes);
    return (reserved > in_use ? reserved - in_use : 0) +
           atomic_load(&pool->source.remap.unmapping_bytes);
}

uint64_t pool_unused_bytes(struct pool *pool) {
    return unused_bytes(pool, counter_get(&pool->source.counters.reserved.current));
}

void pool_reset_peaks(struct pool *pool) {
    struct source *source = &pool->source;
    lock_acquire(&source->lock);
    counters_reset_peaks(&source->counters);
    counter_set(&source->counters.requested.peak, 0); /* aggregate_peaks() adds the caches' share */
    counter_set(&source->counters.allocated.peak, 0);
    counter_set(&source->counters.allocations.peak, 0);
    for (struct cache *cache = atomic_load(&pool->caches); cache; cache = cache->next_in_pool) {
        cache_seize(cache);
        for (unsigned i = 0; i < WATERMARKS; i++)
            watermark_restart(&cache->watermarks[i]);
        cache_return(cache);
    }
    slow_path_recompute(pool);
    lock_release(&source->lock);
}

void pool_list_memory(struct pool *pool, struct memory_list *to) {
    struct source *source = &pool->source;
    lock_acquire(&source->lock);
    survey_list(&source->large, to);
    survey_list(&source->small, to);
    lock_release(&source->lock);
}

void pool_survey(struct pool *pool, struct stats_device *stats, struct segment_map *map) {
    const stat_counter *reserved = &pool->source.counters.reserved.current;
    survey_take(pool, &pool->live_sizes, pool->source.policy->has_handles ? reserved : NULL, stats,
                map);
}
