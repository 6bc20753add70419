/*
 * What each site holds: now, at the peak of its device, and over time.
 *
 * The peak is exact without a copy of all sites at every new one. Each has a number; a site that changes for the first time
 * since the peak of that number saves what it held then, and what has not changed since holds it still:
 *
 *      peak 7 (site a 5, site b 3)    a frees 2: a saves 5 at 7    at the peak: a 5 (saved), b 3 (as it is)
 *
 * Bytes x time grows by what a site holds, for as long as it has held that, whenever it changes. One lock for each
 * device; readers take none.
 */
#ifndef GPUCACHE_STACKS_HOLDING_H
#define GPUCACHE_STACKS_HOLDING_H

#include "stats/holders.h"

#include <stdbool.h>
#include <stdint.h>

void holding_start(void);

/** `again`: it was removed, and has not gone after all. */
void holding_add(uint32_t site, uint64_t bytes, bool again);
void holding_remove(uint32_t site, uint64_t bytes);
void holding_reset_peak(int device);

/** What the sites of a device held together. */
struct stats_held holding_of_device(int device);
void holding_read(uint32_t site, struct stats_holder *holder);

#endif
