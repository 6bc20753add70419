/*
 * Charges and counts allocations and frees in the driver's own pools (driver_pools.h).
 *
 * With a limit, driver_pool_begin() charges an allocation before the driver call, as if its pool
 * had to grow. A retry may rely on the pool's reserve instead. driver_pool_end() replaces this
 * charge by the growth that the driver reports. Without a limit a claim charges nothing. The
 * functions then acquire the lock DRIVER_POOLS only if the charge may change, or if the pool is not
 * known to exist (driver_pool_state.h). Invariant: device->claimed is the sum of claim->charged
 * over all claims in progress. hooks/bypass.c begins and ends claims; ledger_row.c subtracts freed
 * bytes.
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
 * Charges `bytes` for an allocation of claim->bytes: the size by which the pool may have to grow.
 * Returns false if the limit refuses. After true, the thread is in flight until driver_pool_end().
 * Acquires the lock.
 */
static bool try_claim(struct driver_pool *pool, uint64_t bytes, struct driver_pool_claim *claim) {
    struct device *device = pool->device;
    in_flight_enter(&device->in_flight);
    lock_acquire(&driver_pool_lock);
    bool allowed = device_charge_once(device, bytes);
    if (allowed) {
        device->claimed += bytes;
        claim->charged = bytes;
        claim->in_progress = claim->bytes;
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
 * Returns whether the reserve may serve the bytes of a claim without growth, and if so adds them to
 * `in_progress`. Only a query after the driver call tells whether the pool has grown. Acquires the
 * lock.
 */
static bool claim_from_reserve(struct driver_pool *pool, struct driver_pool_claim *claim) {
    lock_acquire(&driver_pool_lock);
    driver_pool_query(pool);
    bool enough = pool->reserve >= pool->live + pool->in_progress + claim->bytes;
    claim->in_progress = enough ? claim->bytes : 0;
    pool->in_progress += claim->in_progress;
    lock_release(&driver_pool_lock);
    return enough;
}

/* Claims the bytes of an allocation, and retries after a refusal. Returns false, and counts an out
 * of memory, if the limit refuses them. */
static bool claim_under_limit(struct driver_pool *pool, uint64_t limit,
                              struct driver_pool_claim *claim) {
    struct device *device = pool->device;
    uint64_t bytes = claim->bytes;
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
        if (claim_from_reserve(pool, claim))
            return true;
    }
    return false;
}

bool driver_pool_begin(struct driver_pool *pool, uint64_t bytes, struct driver_pool_claim *claim) {
    uint64_t limit = atomic_load(&pool->device->limit);
    *claim = (struct driver_pool_claim){.pool = pool, .bytes = bytes};
    atomic_fetch_add(&pool->calls, 1);
    bool allowed = limit == 0 || claim_under_limit(pool, limit, claim);
    if (!allowed)
        atomic_fetch_sub(&pool->calls, 1);
    return allowed;
}

/* Moves the bytes of a claim to the live bytes of its pool. With a limit, does so in one step: a
 * claim of another thread must not see the bytes twice. */
static void count_live(const struct driver_pool_claim *claim) {
    struct driver_pool *pool = claim->pool;
    if (claim->in_progress > 0)
        lock_acquire(&driver_pool_lock);
    atomic_fetch_add(&pool->live, claim->bytes);
    if (claim->in_progress > 0) {
        pool->in_progress -= claim->in_progress;
        lock_release(&driver_pool_lock);
    }
}

/*
 * Adds an allocation to the live bytes and to the ledger, in this order: once the row exists, the
 * end of its context may subtract the bytes (driver_pool_subtract). Without host memory for the
 * row, takes the bytes back: no free would subtract them. Queries the pool if the allocation may
 * have made it grow. A success of the driver also shows that the pool exists. Acquires the lock
 * unless the pool is known to exist, there is no limit and the reserve covers the live bytes.
 */
static void enter_allocation(const struct driver_pool_claim *claim, CUdeviceptr dptr) {
    struct driver_pool *pool = claim->pool;
    context_address_given(dptr, claim->bytes);
    count_live(claim);
    if (!unpooled_enter(UNPOOLED_STREAM_ORDERED, pool->device, context_current_resolved(),
                        claim->bytes, dptr, (uint64_t)pool))
        driver_pool_subtract(pool, claim->bytes);
    if (pool->exists && pool->live <= pool->reserve && atomic_load(&pool->device->limit) == 0)
        return;
    lock_acquire(&driver_pool_lock);
    pool->exists = pool->handle != NULL;
    if (pool->live > pool->reserve || atomic_load(&pool->device->limit))
        driver_pool_query(pool);
    lock_release(&driver_pool_lock);
}

/*
 * Ends a claim after the driver's answer. Returns whether the device exceeds its limit although the
 * driver's pools were trimmed, and counts that as out of memory. The claim is empty if the limit
 * was set during the driver call. Acquires the lock.
 */
static bool end_claim(CUresult answer, const struct driver_pool_claim *claim) {
    struct driver_pool *pool = claim->pool;
    struct device *device = pool->device;
    lock_acquire(&driver_pool_lock);
    pool->in_progress -= answer == CUDA_SUCCESS ? 0 : claim->in_progress;
    if (claim->charged > 0) /* device_uncharge() makes refused requests retry, even for 0 bytes */
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
    return exceeded;
}

bool driver_pool_end(CUresult answer, const struct driver_pool_claim *claim, CUdeviceptr dptr) {
    struct driver_pool *pool = claim->pool;
    bool exceeded = false;
    if (answer == CUDA_SUCCESS)
        enter_allocation(claim, dptr);
    if (claim->in_progress > 0 || atomic_load(&pool->device->limit))
        exceeded = end_claim(answer, claim);
    if (answer == CUDA_ERROR_OUT_OF_MEMORY)
        device_count_oom(pool->device, false);
    atomic_fetch_sub(&pool->calls, 1);
    helper_start_requested();
    return !exceeded;
}

/* Sets a flag. Does not write if it is set: other threads read the same cache line. */
static void set_if_clear(atomic_bool *flag) {
    if (!atomic_load(flag))
        atomic_store(flag, true);
}

void driver_pool_subtract(struct driver_pool *pool, uint64_t bytes) {
    atomic_fetch_sub(&pool->live, bytes);
    set_if_clear(&pool->stale);
    if (pool->counted > pool->reserve) { /* live bytes are charged, which have become fewer */
        lock_acquire(&driver_pool_lock);
        driver_pool_count(pool);
        lock_release(&driver_pool_lock);
    }
    set_if_clear(&driver_pool_stale);
}
