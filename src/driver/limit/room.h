/*
 * Charging a device, and its available memory: what the driver and the limit have left. Idle memory
 * of the pools and of the driver's own pools can serve a request too. Backends, hooks and the files
 * of this folder call it.
 *
 * The charge is atomic and needs no lock; driver_pools.c takes the lock MEMPOOL. Invariant: a
 * charge succeeds only if the device stays within its limit.
 */
#ifndef GPUCACHE_DRIVER_LIMIT_ROOM_H
#define GPUCACHE_DRIVER_LIMIT_ROOM_H

#include "driver/state/device.h"

struct device_backend;

/**
 * Charges `bytes` to the device if the limit allows them. If not, trims the driver's own pools and
 * tries again. Returns false, with nothing charged, if the limit still refuses. Call with no lock
 * held.
 */
bool device_charge(struct device *device, uint64_t bytes);

/**
 * Returns whether device_charge() would succeed, and charges nothing. Serves callers that charge
 * the bytes in several steps. Call with no lock held.
 */
bool device_allows(struct device *device, uint64_t bytes);

/**
 * Adjusts the driver's values for free and total memory to what the program can get. Adds the idle
 * memory that can go back to the driver, and caps both at the limit.
 */
void device_visible_memory(const struct device *device, uint64_t *free_bytes,
                           uint64_t *total_bytes);

/**
 * Returns the idle bytes, and the bytes being returned to the driver, in all pools of the device
 * except that of `but` (NULL: all).
 */
uint64_t device_idle_bytes(const struct device *device, const struct device_backend *but);

/** Returns the bytes of deferred frees in all pools of the device (pool_defer_free()). */
uint64_t device_deferred_bytes(const struct device *device);

/**
 * Returns an upper bound of the bytes that a request can get now: free memory of the driver, at
 * most what the limit leaves, plus unused reserve of the driver's pools. Idle memory of the
 * library's pools is not counted. Without a current context of the device, uses its total memory.
 * Call with no lock held.
 */
uint64_t device_room(struct device *device);

/**
 * Gives idle memory of all pools except that of `but` back until the driver has `bytes`. With
 * `wait`, waits for the work of these pools, within limits. Returns whether any memory went back,
 * or enough was free before. Call with no lock held.
 */
bool device_release_others(struct device *device, const struct device_backend *but, uint64_t bytes,
                           bool wait);

/**
 * Returns whether `bytes` would be available if all idle memory and all deferred frees came back.
 * If not, waiting is useless. Call with no lock held.
 */
bool device_could_have(struct device *device, uint64_t bytes);

#endif
