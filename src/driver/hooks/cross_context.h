/*
 * Synchronous copies of memory in pages that is another context's.
 *
 * Memory of cuMemAlloc belongs to a context, and the driver carries a synchronous copy of it out behind the null stream of
 * that context, whichever one is current. Pages belong to nobody: there it goes by the current one alone
 * (tests/gpu/facts_order.cu, section `across`). So what is in the owner's null stream comes first: the calling thread waits for it,
 * or the device, where both sides are blocks and the call does not wait natively.
 * Copies in a stream, fills, and copies of the per-thread streams go by that stream, whosever memory it is.
 */
#ifndef GPUCACHE_DRIVER_HOOKS_CROSS_CONTEXT_H
#define GPUCACHE_DRIVER_HOOKS_CROSS_CONTEXT_H

#include "driver/context/context.h"

struct pool;

void cross_context_wait(struct pool *const pools[2]);

/** Before a synchronous copy of blocks of these pools, one for each side, or NULL. */
static inline void cross_context_look(struct pool *const pools[2]) {
    if (__builtin_expect(context_count() > 1, 0)) {
        cross_context_wait(pools);
    }
}

#endif
