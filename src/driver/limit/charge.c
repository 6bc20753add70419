#include "driver/limit/charge.h"

#include "driver/context/device_backend.h"
#include "driver/context/device_pool.h"
#include "driver/limit/driver_pools.h"
#include "driver/table/entries.h"
#include "pool/pool.h"

bool device_charge_or_trim(struct device *device, uint64_t bytes) {
    return device_charge_once(device, bytes) ||
           (driver_pool_trim_for(device, bytes) && device_charge_once(device, bytes));
}

bool device_allows(struct device *device, uint64_t bytes) {
    return device_is_within_limit(device, atomic_load(&device->charged), bytes) ||
           (driver_pool_trim_for(device, bytes) &&
            device_is_within_limit(device, atomic_load(&device->charged), bytes));
}

/*
 * Returns the bytes that can go back to the driver once all work has completed. Excludes free
 * memory next to live blocks: a request for all free bytes would not get that memory. First
 * reclaims deferred frees, which may wait for a barrier (pool_reclaim_own()).
 */
static uint64_t releasable_bytes(const struct device *device) {
    uint64_t bytes = 0;
    for (struct device_pool *p = atomic_load(&device->pools); p; p = p->next) {
        pool_reclaim_own(p->pool);
        uint64_t stuck = p->unused ? 0 : pool_stuck_bytes(p->pool),
                 idle = pool_unused_bytes(p->pool);
        bytes += (idle > stuck ? idle - stuck : 0) + atomic_load(&p->backend->returning);
    }
    return bytes;
}

void device_visible_memory(const struct device *device, uint64_t *free_bytes,
                           uint64_t *total_bytes) {
    uint64_t idle = releasable_bytes(device), limit = atomic_load(&device->limit);
    *free_bytes += idle;
    if (limit) {
        uint64_t charged = atomic_load(&device->charged);
        charged = charged > idle ? charged - idle : 0;
        uint64_t allowed = limit > charged ? limit - charged : 0;
        *free_bytes = *free_bytes > allowed ? allowed : *free_bytes;
        *total_bytes = *total_bytes > limit ? limit : *total_bytes;
    }
    *free_bytes = *free_bytes > *total_bytes ? *total_bytes : *free_bytes;
}

uint64_t device_idle_bytes(const struct device *device, const struct device_backend *except) {
    uint64_t bytes = 0;
    for (struct device_pool *p = atomic_load(&device->pools); p; p = p->next)
        if (p->backend != except)
            bytes += pool_unused_bytes(p->pool) + atomic_load(&p->backend->returning);
    return bytes;
}

uint64_t device_deferred_bytes(const struct device *device) {
    uint64_t bytes = 0;
    for (struct device_pool *p = atomic_load(&device->pools); p; p = p->next)
        bytes += pool_deferred_bytes(p->pool);
    return bytes;
}

/*
 * Returns the driver's free bytes within the limit. The driver answers only for the current
 * context's device; for another device the total replaces the free bytes.
 */
static uint64_t free_now(struct device *device) {
    size_t total, free_bytes = device->total;
    uint64_t limit = atomic_load(&device->limit), charged = atomic_load(&device->charged);
    if (device_current() == device)
        REAL(cuMemGetInfo_v2)(&free_bytes, &total);
    uint64_t available = free_bytes, allowed = limit > charged ? limit - charged : 0;
    return limit && allowed < available ? allowed : available;
}

/*
 * Counts the unused reserve of the driver's own pools, which the driver uses for its other calls
 * too. The part next to live allocations stays, so the result is an upper bound.
 */
uint64_t device_available(struct device *device) {
    return free_now(device) + driver_pool_kept(device);
}

bool device_release_others(struct device *device, const struct device_backend *except,
                           uint64_t bytes, bool wait) {
    bool any = false, is_enough = free_now(device) >= bytes;
    struct device_pool *p = atomic_load(&device->pools);
    for (; p && free_now(device) < bytes; p = p->next)
        any |= p->backend != except && !p->unused && pool_give_back(p->pool, bytes, wait) == 0;
    return any || is_enough;
}

bool device_could_have(struct device *device, uint64_t bytes) {
    return bytes <= device_available(device) + device_idle_bytes(device, NULL) +
                        device_deferred_bytes(device);
}
