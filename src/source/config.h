/* The options of one pool. They are set when the pool is made, and never change. */
#ifndef GPUCACHE_SOURCE_CONFIG_H
#define GPUCACHE_SOURCE_CONFIG_H

#include "options/reuse.h"

#include <stdbool.h>
#include <stdint.h>

struct pool_config {
    enum reuse reuse;
    bool decays;     /* the driver layer calls pool_tick() and pool_decay() after watch_idle() */
    uint64_t budget; /* 0: computed from the peak of live memory. Else 1 plus the reserved bytes up
                        to which the pool grows instead of synchronising (device_pool.c) */
};

#endif
