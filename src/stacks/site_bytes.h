/*
 * The bytes of each call site: live now, live at the peak of its device, and bytes x time.
 *
 * The peak of each site is exact, and no new peak copies all sites. Every peak of a device has a
 * number. A site that changes for the first time since peak N saves its live bytes for N. A site
 * that has not changed since peak N still has the same live bytes:
 *
 *      peak 7 (site a 5, site b 3)   a frees 2: a saves 5 for peak 7
 *      read peak 7: a 5 (saved), b 3 (its live bytes)
 *
 * At every change of a site, bytes x time grows by the live bytes times the time since the last
 * change. Each device has one lock. Readers take no lock: they read again if a writer interfered.
 */
#ifndef GPUCACHE_STACKS_SITE_BYTES_H
#define GPUCACHE_STACKS_SITE_BYTES_H

#include "stats/holders.h"

#include <stdbool.h>
#include <stdint.h>

void site_bytes_start(void);

/**
 * Adds a block to its site. `again`: the block was removed before, and its free failed. The total
 * of the site then stays.
 */
void site_bytes_add(uint32_t site, uint64_t bytes, bool again);
/** Removes a block from its site. */
void site_bytes_remove(uint32_t site, uint64_t bytes);
/** Makes the present live bytes of a device its peak. */
void site_bytes_reset_peak(int device);

/** Returns the live bytes and the peak of all sites of a device together. */
struct stats_held site_bytes_of_device(int device);
void site_bytes_read(uint32_t site, struct stats_holder *holder);

#endif
