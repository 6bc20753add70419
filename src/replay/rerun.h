/*
 * A history through the library's own pool, on a device that is made up.
 *
 * The device lags behind: an event has finished so long after it was recorded, in the history's own
 * time. Memory has no contents and calls take no time. All else is the pool as programs have it,
 * with as many threads as the history has.
 */
#ifndef GPUCACHE_REPLAY_RERUN_H
#define GPUCACHE_REPLAY_RERUN_H

#include "pool/pool.h"
#include "replay/meter.h"

struct rerun_setting {
    bool pages;
    uint64_t delay_us;
    uint64_t budget;   /* 0: auto */
    uint64_t limit;    /* of what is reserved; 0: none */
    uint64_t capacity; /* of the device */
    uint64_t decay_us; /* 0: never */
    enum pool_reuse reuse;
};

/** Once for each process: the pool has no end. `meter` is started. */
void rerun(const struct rerun_setting *setting, struct meter *meter);

#endif
