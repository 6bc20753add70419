/* All that a pool has, block by block: for reports. */
#ifndef GPUCACHE_MEMORY_SURVEY_H
#define GPUCACHE_MEMORY_SURVEY_H

#include "stats/counters.h"
#include "stats/stats.h"

#include <stdatomic.h>
#include <stdint.h>

struct pool;

/* Live blocks by requested size, while a report is written. */
#define LIVE_SIZES 256
struct live_sizes {
    struct stats_live rows[LIVE_SIZES], spare[LIVE_SIZES];
    unsigned used;
    atomic_bool busy;
};

/** The sizes of what is live, in `sizes` for as long as that takes, and behind what the map holds already (NULL: it is not
 * wanted) the pool's memory; `vmm_bytes` counts it, if it lies in lines (else NULL). As long as there are blocks, but holds nobody up. */
void survey_take(const struct pool *pool, struct live_sizes *sizes, const stat_counter *vmm_bytes,
                 struct stats_device *stats, struct segment_map *map);

#endif
