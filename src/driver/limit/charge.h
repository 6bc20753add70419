/*
 * Charges a device, and computes its available memory: the driver's free memory within the limit.
 * Idle memory of the pools and of the driver's own pools can serve a request too. Hooks,
 * backend/ and this folder call these functions.
 *
 * The charge is atomic. Functions acquire the lock DRIVER_POOLS (driver_pools.h) and locks of
 * pools. Invariant: a charge succeeds only if the device stays within its limit.
 */
#ifndef GPUCACHE_DRIVER_LIMIT_CHARGE_H
#define GPUCACHE_DRIVER_LIMIT_CHARGE_H

#include "driver/state/device.h"

struct device_backend;

/**
 * Charges `bytes` to the device if the limit allows them. If not, trims the driver's own pools and
 * tries again. Returns false, with nothing charged, if the limit still refuses. The caller may hold
 * a pool's remap lock, and no lock that follows it in base/lock.def.
 */
bool device_charge_or_trim(struct device *device, uint64_t bytes);

/**
 * Returns whether device_charge_or_trim() would succeed, and charges nothing. For callers that
 * charge the bytes in several steps. Locks: as device_charge_or_trim().
 */
bool device_allows(struct device *device, uint64_t bytes);

/**
 * Adjusts the driver's values for free and total memory to the memory that the program can get.
 * Adds the idle memory that can go back to the driver, and caps both values at the limit. First
 * reclaims deferred frees as pool_reclaim_own() does, with its wait. Call with no lock held.
 */
void device_visible_memory(const struct device *device, uint64_t *free_bytes,
                           uint64_t *total_bytes);

/**
 * Returns the unused bytes (pool_unused_bytes()), plus the bytes being returned to the driver, of
 * all pools of the device except the pool of `except` (NULL: no exception). Takes no lock.
 */
uint64_t device_idle_bytes(const struct device *device, const struct device_backend *except);

/** Returns the bytes of deferred frees in all pools of the device (pool_defer_free()). */
uint64_t device_deferred_bytes(const struct device *device);

/**
 * Returns an upper bound of the bytes that a request can get now: the driver's free memory within
 * the limit, plus unused reserve of the driver's pools. Does not count idle memory of the library's
 * pools. If the device of the current context is another one, uses the device's total memory
 * instead of its free memory. Locks: as device_charge_or_trim().
 */
uint64_t device_available(struct device *device);

/**
 * Gives idle memory of all pools except that of `except` back until the driver has `bytes` free.
 * With `wait`, waits for the work of these pools as pool_give_back() does. Returns whether any
 * memory went back, or enough was free before. Call with no lock held.
 */
bool device_release_others(struct device *device, const struct device_backend *except,
                           uint64_t bytes, bool wait);

/**
 * Returns whether `bytes` would be available if all idle memory and all deferred frees came back.
 * If not, waiting is useless. Call with no lock held.
 */
bool device_could_have(struct device *device, uint64_t bytes);

#endif
