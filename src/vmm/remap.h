/*
 * Growth and release of a pool whose backend maps handles (vmm backend). A segment is one handle.
 *
 * One thread at a time maps or unmaps for a pool: the holder of the remap lock
 * (`source.remap.lock`), which is taken before the pool's lock. Callers of vmm_policy's functions
 * hold the pool's lock alone; callers of end() hold both locks, which end() keeps. The other
 * functions release the pool's lock while they take the remap lock, and around calls of the driver.
 */
#ifndef GPUCACHE_VMM_REMAP_H
#define GPUCACHE_VMM_REMAP_H

#include "source/memory_policy.h"

extern const struct memory_policy vmm_policy;

#endif
