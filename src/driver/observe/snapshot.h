/*
 * The snapshot of a device's statistics, as reports and the live page read it (stats/stats.h).
 */
#ifndef GPUCACHE_DRIVER_OBSERVE_SNAPSHOT_H
#define GPUCACHE_DRIVER_OBSERVE_SNAPSHOT_H

#include "stats/stats.h"

struct device;

/** Answers stats_read() and the other calls of stats/stats.h. */
extern const struct stats_provider snapshot_provider;

/** Sets the peaks of the device and its pools to the current values. Takes the device's lock. */
void device_reset_peaks(struct device *device);

#endif
