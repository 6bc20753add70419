/*
 * Growth and release of a pool whose backend maps memory (vmm). A segment is one handle there.
 *
 * One thread at a time maps or unmaps for a pool: it holds the remap lock (`source.remap.lock`).
 * That lock is taken before the pool lock. Except for remap_growth() and remap_end(), every
 * function is called with the pool lock alone. It releases the pool lock while it takes the remap
 * lock, and around calls of the driver. Called by source.c, grow.c, try.c and lifetime.c.
 */
#ifndef GPUCACHE_VMM_REMAP_H
#define GPUCACHE_VMM_REMAP_H

#include "source/state.h"

/** Computes what a free range of `bytes` bytes needs. Keeps the pool lock. All fields are bytes:
 *
 *      bytes       new memory to map
 *      idle        idle segments that may make room for it: all but those next to the gap
 *      available   those of them that can move or be released now, without a wait; counted only
 *                  as far as needed to stay within `budget`
 */
struct growth {
    uint64_t bytes, idle, available;
};
struct growth remap_growth(const struct source *source, const struct arena *arena, uint64_t bytes,
                           uint64_t budget);

/**
 * Grow a pool for a request: `grow_within_budget` of the two memory policies (memory_policy.h). In
 * grow.c.
 */
int grow_segments(struct source *source, struct alloc_request *request, bool over_budget);
int grow_vmm(struct source *source, struct alloc_request *request, bool over_budget);

#endif
