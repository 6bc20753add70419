/*
 * Charging and making room on a device: what the driver and the limit have left, and which idle memory of
 * the pools, and of the driver's own pools, can serve a request.
 */
#ifndef GPUCACHE_DRIVER_LIMIT_ROOM_H
#define GPUCACHE_DRIVER_LIMIT_ROOM_H

#include "driver/state/device.h"

struct device_backend;

/** Takes `bytes` from what the limit allows. False, and nothing taken, if it does not allow them,
 * not even after the driver's own pools have given back what they only keep. Call with no lock held. */
bool device_charge(struct device *device, uint64_t bytes);

/** Whether device_charge() would take them; nothing is taken. For who is about to take them piece by piece. */
bool device_allows(struct device *device, uint64_t bytes);

/** The same for what a driver says is free and there in all: idle memory of the pools that could go back
 * counts as free, and both stay within the limit. */
void device_visible_memory(const struct device *device, uint64_t *free_bytes,
                           uint64_t *total_bytes);

/** Idle bytes in all pools of the device, or in all but one, and those on their way back to the driver. */
uint64_t device_idle_bytes(const struct device *device, const struct device_backend *but);

/** Bytes of blocks in all pools of the device that streams hold back (pool_defer_free()). */
uint64_t device_deferred_bytes(const struct device *device);

/** What the driver has and the limit allows at most, as far as that can be asked; what is idle not counted. With no lock
 * held. */
uint64_t device_room(struct device *device);

/** Has all pools but one give back what is idle, until the driver has `bytes`; with `wait`, after waiting for
 * their work, within limits. True if there was any, or enough already. With no lock held. */
bool device_release_others(struct device *device, const struct device_backend *but, uint64_t bytes,
                           bool wait);

/**
 * Whether `bytes` would be there if all that is idle came back, and all that streams hold back: if
 * not, nothing is to be waited for.
 */
bool device_could_have(struct device *device, uint64_t bytes);

#endif
