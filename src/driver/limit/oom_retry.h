/*
 * Decides whether to retry a request for unpooled memory that the limit or the driver has refused.
 *
 * Before most retries the pools give idle memory back. Another thread may take that memory before
 * the retry and leave it idle again. Natively that memory would have been free all the time. A
 * request is therefore retried up to OTHERS_TRIES times (tuning.def) while memory moves: the driver
 * or the limit got some back, other threads took idle memory, or the program freed more. Without
 * such a change a refusal costs at most one retry.
 *
 * driver_pool_claim.c, unpooled.c, retry.h and hooks call this file. The state is in the caller's
 * struct oom_retry, so no lock is needed.
 */
#ifndef GPUCACHE_DRIVER_LIMIT_OOM_RETRY_H
#define GPUCACHE_DRIVER_LIMIT_OOM_RETRY_H

#include "driver/state/in_flight.h"

#include <stdbool.h>
#include <stdint.h>

struct device;

struct oom_retry {
    unsigned count;           /* retries so far */
    uint64_t device_returns;  /* device_wait_for_in_flight() at the last try; at the limit only */
    uint64_t process_returns; /* oom_retry_returns() at the last try; at the driver only */
    uint64_t idle; /* idle and deferred bytes at the last try; after a release, what stayed */
    bool gave;     /* the last try moved memory: back to the driver, or to other threads */
    bool counted;  /* this request is counted in oom_retries */
};

/** Returns how often the driver has got memory back, from any thread. Call before the first try. */
static inline uint64_t oom_retry_returns(void) {
    return atomic_load_explicit(&in_flight_returns, memory_order_relaxed);
}

/**
 * Returns whether to retry a request of `bytes` that the limit has refused. Returns true for the
 * first refusal, and later only if memory has moved. Waits for other threads that are allocating,
 * for one second at most, and gives idle memory back. If that is not enough, also waits as
 * pool_wait_for_events_in_free() does. Skips all this if `bytes` exceeds the limit: the one retry
 * then lets driver_pool_begin() try the reserve of the driver's pool. Call with no lock held.
 */
bool oom_retry_at_limit(struct device *device, uint64_t bytes, struct oom_retry *oom_retry);

/**
 * Returns whether to retry a call that the driver has refused and that takes at least `bytes`; 0:
 * unknown. Works as oom_retry_at_limit(), with these differences. Returns false if `bytes` exceeds
 * the device's memory. Trims the driver's own pools (driver_pool_trim()). Returns true for the
 * first refusal only in one of these cases: memory has moved, another request was in flight, or
 * idle memory was released. Releases none if all of it would not suffice. Returns true after any
 * release that makes `bytes` available. Counts returns on all devices. Counts the request in
 * oom_retries, which the caller of the other function does. Call with no lock held.
 */
bool oom_retry_at_driver(struct device *device, uint64_t bytes, struct oom_retry *oom_retry);

#endif
