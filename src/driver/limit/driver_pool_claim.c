/*
 * Charges and counts allocations and frees in the driver's own pools (driver_pools.h).
 *
 * With a limit, an allocation is charged before the driver call as if its pool had to grow. This
 * charge is the claim. After the call the growth that the driver reports replaces the claim. The
 * lock DRIVER_POOLS protects all fields. Invariant: device->claimed is the sum of the claims in
 * progress.
 */
#include "driver/context/context.h"
#include "driver/limit/driver_pool_state.h"
#include "driver/limit/driver_pools.h"
#include "driver/limit/oom_retry.h"
#include "driver/limit/unpooled.h"
#include "process/helper.h"

/*
 * Returns whether the charge of a device without the claims exceeds its limit. A query may
 * already have charged growth whose claim is still in progress. Call with the lock.
 */
static bool exceeds_limit(const struct device *device) {
    uint64_t limit = atomic_load(&device->limit);
    uint64_t charged = atomic_load(&device->charged);
    return limit && charged > device->claimed && charged - device->claimed > limit;
}

/*
 * Claims `bytes` for an allocation. Returns false if the limit refuses. After true, the thread is
 * in flight until driver_pool_end(). Acquires the lock.
 */
static bool try_claim(struct driver_pool *pool, uint64_t bytes, struct driver_pool_claim *claim) {
    struct device *device = pool->device;
    in_flight_enter(&device->in_flight);
    lock_acquire(&driver_pool_lock);
    bool allowed = device_charge_once(device, bytes);
    if (allowed) {
        device->claimed += bytes;
        claim->charged = bytes;
        pool->in_progress += claim->bytes;
    }
    lock_release(&driver_pool_lock);
    if (!allowed)
        in_flight_leave(&device->in_flight);
    return allowed;
}

/* Claims `bytes`, and if the limit refuses, again after a trim of the driver's pools. */
static bool claim_or_trim(struct driver_pool *pool, uint64_t bytes,
                          struct driver_pool_claim *claim) {
    return try_claim(pool, bytes, claim) ||
           (driver_pool_trim_for(pool->device, bytes) && try_claim(pool, bytes, claim));
}

/*
 * Returns whether the reserve may serve `bytes` without growth, and if so adds `bytes` to
 * `in_progress`. Only a query after the driver call tells whether the pool has grown. Acquires the
 * lock.
 */
static bool claim_from_reserve(struct driver_pool *pool, uint64_t bytes) {
    lock_acquire(&driver_pool_lock);
    driver_pool_query(pool);
    bool enough = pool->reserve >= pool->live + pool->in_progress + bytes;
    pool->in_progress += enough ? bytes : 0;
    lock_release(&driver_pool_lock);
    return enough;
}

bool driver_pool_begin(struct driver_pool *pool, uint64_t bytes, struct driver_pool_claim *claim) {
    struct device *device = pool->device;
    uint64_t limit = atomic_load(&device->limit);
    *claim = (struct driver_pool_claim){.pool = pool, .bytes = bytes};
    if (limit == 0) {
        lock_acquire(&driver_pool_lock);
        pool->in_progress += bytes;
        lock_release(&driver_pool_lock);
        return true;
    }
    uint64_t most = bytes > limit
                        ? bytes
                        : (bytes + DRIVER_POOL_UNIT - 1) / DRIVER_POOL_UNIT * DRIVER_POOL_UNIT;
    if (claim_or_trim(pool, most, claim))
        return true;
    struct oom_retry oom_retry = {0};
    while (oom_retry_at_limit(device, bytes, &oom_retry)) {
        if (claim_or_trim(pool, most, claim)) {
            device_count(device, &device->unpooled.oom_retries);
            return true;
        }
        if (claim_from_reserve(pool, bytes))
            return true;
    }
    device_count_oom(device, true);
    return false;
}

/*
 * Adds an allocation to the live bytes and to the ledger, in this order: once the row exists, the
 * end of its context may subtract the bytes (driver_pool_subtract). The bytes leave `in_progress`
 * in the same step: a claim of another thread must not see them twice. Acquires the lock.
 */
static void enter_allocation(const struct driver_pool_claim *claim, CUdeviceptr dptr) {
    struct driver_pool *pool = claim->pool;
    uint64_t bytes = claim->bytes;
    context_address_given(dptr, bytes);
    lock_acquire(&driver_pool_lock);
    pool->live += bytes;
    pool->in_progress -= bytes;
    lock_release(&driver_pool_lock);
    bool entered = unpooled_enter(UNPOOLED_STREAM_ORDERED, pool->device, context_current_resolved(),
                                  bytes, dptr, (uint64_t)pool);
    lock_acquire(&driver_pool_lock);
    pool->exists = pool->handle != NULL;
    pool->live -= entered ? 0 : bytes;
    if (pool->live > pool->reserve || atomic_load(&pool->device->limit))
        driver_pool_query(pool);
    lock_release(&driver_pool_lock);
}

bool driver_pool_end(CUresult answer, const struct driver_pool_claim *claim, CUdeviceptr dptr) {
    struct driver_pool *pool = claim->pool;
    struct device *device = pool->device;
    if (answer == CUDA_SUCCESS)
        enter_allocation(claim, dptr);
    lock_acquire(&driver_pool_lock);
    pool->in_progress -= answer == CUDA_SUCCESS ? 0 : claim->bytes;
    device_uncharge(device, claim->charged);
    device->claimed -= claim->charged;
    bool exceeded = answer == CUDA_SUCCESS && exceeds_limit(device);
    lock_release(&driver_pool_lock);
    if (exceeded) {
        driver_pool_trim_for(device, 0);
        lock_acquire(&driver_pool_lock);
        exceeded = exceeds_limit(device);
        lock_release(&driver_pool_lock);
    }
    if (claim->charged > 0)
        in_flight_leave(&device->in_flight);
    if (exceeded)
        device_count_oom(device, true);
    helper_start_requested();
    return !exceeded;
}

void driver_pool_subtract(struct driver_pool *pool, uint64_t bytes) {
    lock_acquire(&driver_pool_lock);
    pool->live -= bytes;
    pool->stale = true;
    driver_pool_count(pool);
    lock_release(&driver_pool_lock);
    atomic_store_explicit(&driver_pool_stale, true, memory_order_relaxed);
}
