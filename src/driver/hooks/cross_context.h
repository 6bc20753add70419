/*
 * Synchronous copies of pooled memory that belongs to another context than the current one.
 *
 * The driver runs a synchronous copy of cuMemAlloc memory after the null stream of the memory's
 * context, even if another context is current. Memory mapped by the VMM API belongs to no context:
 * its copy waits only for the current context (measured: tests/gpu/facts_order.cu, section
 * `across`). A copy of a block of the vmm backend therefore first waits for the null stream of the
 * pool's context. The thread waits if one side is host memory. The device waits if both sides are
 * blocks, because such a copy does not block natively.
 *
 * Copies in a stream, fills, and copies of the per-thread streams need no wait: natively they are
 * ordered by their stream alone. Acquires REGISTRY; call with no lock held. The hooks of the rows
 * ORDERED call this file (copies.c).
 */
#ifndef GPUCACHE_DRIVER_HOOKS_CROSS_CONTEXT_H
#define GPUCACHE_DRIVER_HOOKS_CROSS_CONTEXT_H

#include "base/likely.h"
#include "driver/context/context.h"

struct pool;

/** Waits as the head of this file says. `pools`: of destination and source; NULL: in no pool. */
void cross_context_wait(struct pool *const pools[2]);

/** Waits before a synchronous copy, if the process has several contexts. */
static inline void cross_context_wait_if_any(struct pool *const pools[2]) {
    if (unlikely(context_count() > 1))
        cross_context_wait(pools);
}

#endif
