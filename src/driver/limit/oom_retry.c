#include "driver/limit/oom_retry.h"

#include "driver/context/device_pool.h"
#include "driver/limit/charge.h"
#include "driver/limit/driver_pools.h"
#include "driver/reuse/deferred.h"
#include "driver/state/device.h"
#include "tuning/tuning.h"

/*
 * Gives idle memory back to the driver, with the short waits of pool_trim(). If that is not enough,
 * waits for events recorded in frees (pool_wait_for_events_in_free()), reclaims deferred frees and
 * gives back again. This wait comes second because the work may depend on this thread's next calls.
 * pool_trim() reclaims before its waits, and streams may reach more deferred frees during them. If
 * `bytes` is 0, the needed amount is unknown, and any returned memory is enough.
 */
static void release_idle(struct device *device, uint64_t bytes) {
    uint64_t returns = oom_retry_returns();
    device_pool_release_idle(device);
    bool enough = bytes > 0 ? bytes <= device_available(device) : oom_retry_returns() != returns;
    if (enough)
        return;
    bool waited = device_pool_wait_for_events_in_free(device);
    if (deferred_reclaim_now() || waited)
        device_pool_release_idle(device);
}

/*
 * Gives idle memory back if that may be enough for `bytes`, and returns whether it tried. Stores
 * the result in *oom_retry. Counts deferred frees as idle: release_idle() waits for the work before
 * barriers, which may delay the streams of these frees. Tries only in one of these cases:
 *
 *   moved             this is the first try, or memory has moved since the last one
 *   oom_retry->gave   memory came back in the last try, or other threads took idle memory
 *   more idle bytes   the program has freed more than the pools kept after the last try
 */
static bool release_if_enough(struct device *device, uint64_t bytes, struct oom_retry *oom_retry,
                              bool moved) {
    deferred_reclaim_now(); /* frees that streams have reached become idle */
    uint64_t idle = device_idle_bytes(device, NULL) + device_deferred_bytes(device);
    uint64_t returns = oom_retry_returns(), before = idle;
    bool try_release = (moved || oom_retry->gave || idle > oom_retry->idle) && idle > 0 &&
                       device_could_have(device, bytes);
    if (try_release) {
        release_idle(device, bytes);
        /* Counts only bytes that could not go back. Other threads may have freed more since. */
        idle = device_unreleasable_bytes(device) + device_deferred_bytes(device);
    }
    oom_retry->idle = idle;
    oom_retry->gave = try_release && (oom_retry_returns() != returns || idle < before);
    return try_release;
}

bool oom_retry_at_limit(struct device *device, uint64_t bytes, struct oom_retry *oom_retry) {
    uint64_t limit = atomic_load(&device->limit), device_returns = oom_retry->device_returns;
    bool first = oom_retry->count == 0;
    if (oom_retry->count == OTHERS_TRIES)
        return false;
    oom_retry->count++;
    if (limit && bytes > limit)
        return first;
    oom_retry->device_returns = device_wait_for_in_flight(device);
    bool moved = first || oom_retry->device_returns != device_returns;
    release_if_enough(device, bytes, oom_retry, moved);
    return moved || oom_retry->gave;
}

bool oom_retry_at_driver(struct device *device, uint64_t bytes, struct oom_retry *oom_retry) {
    bool first = oom_retry->count == 0;
    if (oom_retry->count == OTHERS_TRIES || bytes > device->total)
        return false;
    oom_retry->count++;
    bool others = in_flight_wait(&device->in_flight);
    bool moved = first || oom_retry_returns() != oom_retry->process_returns;
    /* A native free waits, and the driver then trims its own pools. Bytes that this trim gives back
     * count in oom_retry_returns(). */
    driver_pool_trim(device);
    bool tried_release = release_if_enough(device, bytes, oom_retry, moved);
    uint64_t returns = oom_retry_returns();
    bool again =
        returns != oom_retry->process_returns || (first && (others || tried_release)) ||
        (tried_release && (oom_retry->gave || (bytes > 0 && bytes <= device_available(device))));
    oom_retry->process_returns = returns;
    if (again && tried_release && !oom_retry->counted) {
        oom_retry->counted = true;
        device_count(device, &device->unpooled.oom_retries);
    }
    return again;
}
