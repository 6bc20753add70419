/*
 * Provides snapshots of a device's statistics to reports and the live page (stats/stats.h).
 */
#ifndef GPUCACHE_DRIVER_OBSERVE_SNAPSHOT_H
#define GPUCACHE_DRIVER_OBSERVE_SNAPSHOT_H

#include "stats/stats.h"

struct device;

/** Implements stats_read() and the other calls of stats/stats.h. */
extern const struct stats_provider snapshot_provider;

/** Sets the peaks of a device and its pools to the current values. Acquires their locks in turn. */
void device_reset_peaks(struct device *device);

#endif
