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

extern const struct memory_policy vmm_policy;

#endif
