/*
 * Reads a pool block by block: live blocks by size and the map of its memory, for reports; segments
 * and live blocks, for memory snapshots.
 */
#ifndef GPUCACHE_HEAP_SURVEY_H
#define GPUCACHE_HEAP_SURVEY_H

#include "stats/counters.h"
#include "stats/memory_list.h"
#include "stats/stats.h"

#include <stdatomic.h>
#include <stdint.h>

struct arena;
struct pool;

/*
 * Table of live blocks by requested size, for one report at a time. `busy` is set while a report
 * uses the table. The pool owns the table because it is too large for a signal stack.
 */
#define LIVE_SIZES 256
struct live_sizes {
    struct stats_live rows[LIVE_SIZES], spare[LIVE_SIZES];
    unsigned used;
    atomic_bool busy;
};

/**
 * Adds the pool's largest groups of live blocks to stats->live. Appends the pool's memory to `map`,
 * if that is not NULL. `vmm_bytes` counts the reserved bytes of a pool on the vmm backend, and is
 * NULL on the segments backend. Takes time proportional to the number of blocks, and holds no lock.
 * Does nothing if another report uses `sizes`.
 */
void survey_take(const struct pool *pool, struct live_sizes *sizes, const stat_counter *vmm_bytes,
                 struct stats_device *stats, struct segment_map *map);

/**
 * Adds the segments and live blocks of an arena to a list. The caller holds the pool's lock, so
 * segments and ranges agree. Thread caches hand blocks out and take them back without that lock:
 * the list may contain a block that was freed during the call.
 */
void survey_list(const struct arena *arena, struct memory_list *to);

#endif
