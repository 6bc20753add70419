/* How a pool is to behave. */
#ifndef GPUCACHE_SOURCE_CONFIG_H
#define GPUCACHE_SOURCE_CONFIG_H

#include <stdbool.h>
#include <stdint.h>

/** How freed memory becomes usable again; see GPUCACHE_REUSE. */
enum pool_reuse { POOL_BARRIER, POOL_WAIT, POOL_SYNC };

struct pool_config {
    enum pool_reuse reuse;
    uint64_t budget; /* bytes of reserve up to which the pool grows rather than orders; 0: follows
                        the live memory */
    bool decays;     /* somebody calls pool_tick() and pool_decay() when the backend has said to */
};

#endif
