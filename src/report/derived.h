/* Values that reports compute from the counters of a device (walk.c). They need no lock. */
#ifndef GPUCACHE_REPORT_DERIVED_H
#define GPUCACHE_REPORT_DERIVED_H

#include "stats/stats.h"

#include <stdbool.h>
#include <stdint.h>

/** Values computed from the counters of a device. */
struct report_derived {
    struct stats_metric unpooled; /* unpooled device memory, the sum of all kinds */
    bool unpooled_peak_exact; /* false: the peak is the sum of the kinds' peaks, an upper bound */
    uint64_t idle;            /* reserved and not allocated: pending plus free */
    uint64_t largest_free;
    uint64_t calls_avoided; /* allocations plus frees, less the calls in which the pool took memory
                             * from the driver or gave it back; 0 if those were more */
    double internal_fragmentation, external_fragmentation;
    double peak_ratio; /* peak reserved over peak requested; 1 if nothing was requested */
};

void report_derive(const struct stats_device *device, struct report_derived *derived);

#endif
