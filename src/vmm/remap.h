/*
 * The vmm backend's memory: growth and release of a pool whose backend maps handles. A segment is
 * one handle there.
 *
 * One thread at a time maps or unmaps for a pool: it holds the remap lock (`source.remap.lock`),
 * which is taken before the pool's lock. The functions of the policy are called with the pool's lock
 * alone. They release it while they take the remap lock, and around calls of the driver.
 */
#ifndef GPUCACHE_VMM_REMAP_H
#define GPUCACHE_VMM_REMAP_H

#include "source/memory_policy.h"

extern const struct memory_policy vmm_policy;

#endif
