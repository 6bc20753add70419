#include "driver/limit/oom_retry.h"

#include "driver/context/device_pool.h"
#include "driver/limit/room.h"
#include "driver/reuse/deferred.h"
#include "driver/state/device.h"
#include "tuning/tuning.h"

/*
 * What may go at once goes first: the work behind the rest may be waiting for what this thread does next, and none of it may be needed. How
 * much is enough is not known for all calls.
 */
static void give_back(struct device *device, uint64_t bytes) {
    uint64_t returns = oom_retry_returns();
    device_pool_release_idle(device);
    bool enough = bytes > 0 ? bytes <= device_room(device) : oom_retry_returns() != returns;
    if (!enough && device_pool_finish(device)) {
        device_pool_release_idle(device);
    }
}

/*
 * Gives idle memory back, if that may be enough. Blocks that streams hold back count as idle: a barrier may be all that
 * keeps a stream from saying that it has got to the free, and give_back() waits for barriers. What did not go back the
 * last time is not asked for again, unless something has `moved` since then. Returns whether anything was asked for;
 * the result stands in *tries.
 */
static bool make_room(struct device *device, uint64_t bytes, struct oom_retry *oom_retry,
                      bool moved) {
    deferred_reclaim_now(); /* what streams have freed by now is idle, too */
    uint64_t idle = device_idle_bytes(device, NULL) + device_deferred_bytes(device);
    uint64_t returns = oom_retry_returns(), before = idle;
    bool may = (moved || oom_retry->gave || idle > oom_retry->idle) && idle > 0 &&
               device_could_have(device, bytes);
    if (may) {
        give_back(device, bytes);
        idle = device_pool_left(device) +
               device_deferred_bytes(device); /* not what others have freed since */
    }
    oom_retry->idle = idle;
    oom_retry->gave = may && (oom_retry_returns() != returns || idle < before);
    return may;
}

bool oom_retry_at_limit(struct device *device, uint64_t bytes, struct oom_retry *oom_retry) {
    uint64_t limit = atomic_load(&device->limit), return_count = oom_retry->return_count;
    bool first = oom_retry->count == 0;
    if (oom_retry->count == OTHERS_TRIES) {
        return false;
    }
    oom_retry->count++;
    if (limit && bytes > limit) {
        return first;
    }
    oom_retry->return_count = device_given_back(device);
    bool moved = first || oom_retry->return_count != return_count;
    make_room(device, bytes, oom_retry, moved);
    return moved || oom_retry->gave;
}

bool oom_retry_at_driver(struct device *device, uint64_t bytes, struct oom_retry *oom_retry) {
    bool first = oom_retry->count == 0;
    if (oom_retry->count == OTHERS_TRIES || bytes > device->total) {
        return false;
    }
    oom_retry->count++;
    bool others = in_flight_wait(&device->in_flight);
    bool moved = first || oom_retry_returns() != oom_retry->returns;
    bool made_room = make_room(device, bytes, oom_retry, moved);
    uint64_t returns = oom_retry_returns();
    bool again = returns != oom_retry->returns || (first && (others || made_room)) ||
                 (made_room && (oom_retry->gave || (bytes > 0 && bytes <= device_room(device))));
    oom_retry->returns = returns;
    if (again && made_room && !oom_retry->counted) {
        oom_retry->counted = true;
        device_count(device, &device->outside.oom_retries);
    }
    return again;
}
