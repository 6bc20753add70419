/* The options of one pool. They are set when the pool is made, and never change. */
#ifndef GPUCACHE_SOURCE_CONFIG_H
#define GPUCACHE_SOURCE_CONFIG_H

#include <stdbool.h>
#include <stdint.h>

/** How freed memory becomes safe (option GPUCACHE_REUSE). */
enum pool_reuse {
    POOL_BARRIER, /* by a barrier on the device, if one is allowed; otherwise by a CPU wait */
    POOL_WAIT,    /* by a CPU wait in the allocation that needs the memory */
    POOL_SYNC,    /* by a CPU wait in every free, as natively */
};

struct pool_config {
    enum pool_reuse reuse;
    uint64_t budget; /* reserved bytes up to which the pool grows rather than synchronises;
                        0: computed from the peak of live memory */
    bool decays;     /* the driver layer calls pool_tick() and pool_decay() after watch_idle() */
};

#endif
