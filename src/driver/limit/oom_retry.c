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
    uint64_t returns = tries_returns();
    device_pool_release_idle(device);
    bool enough = bytes > 0 ? bytes <= device_room(device) : tries_returns() != returns;
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
static bool make_room(struct device *device, uint64_t bytes, struct tries *tries, bool moved) {
    deferred_settle_now(); /* what streams have freed by now is idle, too */
    uint64_t idle = device_idle_bytes(device, NULL) + device_deferred_bytes(device);
    uint64_t returns = tries_returns(), before = idle;
    bool may = (moved || tries->gave || idle > tries->idle) && idle > 0 &&
               device_could_have(device, bytes);
    if (may) {
        give_back(device, bytes);
        idle = device_pool_left(device) +
               device_deferred_bytes(device); /* not what others have freed since */
    }
    tries->idle = idle;
    tries->gave = may && (tries_returns() != returns || idle < before);
    return may;
}

bool tries_at_limit(struct device *device, uint64_t bytes, struct tries *tries) {
    uint64_t limit = atomic_load(&device->limit), return_count = tries->return_count;
    bool first = tries->count == 0;
    if (tries->count == OTHERS_TRIES) {
        return false;
    }
    tries->count++;
    if (limit && bytes > limit) {
        return first;
    }
    tries->return_count = device_given_back(device);
    bool moved = first || tries->return_count != return_count;
    make_room(device, bytes, tries, moved);
    return moved || tries->gave;
}

bool tries_at_driver(struct device *device, uint64_t bytes, struct tries *tries) {
    bool first = tries->count == 0;
    if (tries->count == OTHERS_TRIES || bytes > device->total) {
        return false;
    }
    tries->count++;
    bool others = askers_wait(&device->askers);
    bool moved = first || tries_returns() != tries->returns;
    bool made_room = make_room(device, bytes, tries, moved);
    uint64_t returns = tries_returns();
    bool again = returns != tries->returns || (first && (others || made_room)) ||
                 (made_room && (tries->gave || (bytes > 0 && bytes <= device_room(device))));
    tries->returns = returns;
    if (again && made_room && !tries->counted) {
        tries->counted = true;
        device_count(device, &device->outside.oom_retries);
    }
    return again;
}
