/*
 * Retries of a request for unpooled memory that the limit or the driver has refused.
 * driver_pool_claim.c, unpooled.c and retry.h call it, with no lock held.
 *
 * Each retry first gives idle memory of the pools back. Another thread may take that memory before
 * the retry and leave it idle again. Natively the request would have been served at any moment. A
 * request is therefore retried up to OTHERS_TRIES times (tuning.def) as long as memory moves:
 * memory has come back since the last try, or memory was freed that could not go back then. Without
 * such a change a refusal costs at most one retry.
 */
#ifndef GPUCACHE_DRIVER_LIMIT_OOM_RETRY_H
#define GPUCACHE_DRIVER_LIMIT_OOM_RETRY_H

#include "driver/state/in_flight.h"

#include <stdbool.h>
#include <stdint.h>

struct device;

struct oom_retry {
    unsigned count;        /* retries so far */
    uint64_t return_count; /* refunds of other threads, at the last try */
    uint64_t returns;      /* returns of any thread to the driver, at the last try */
    uint64_t idle;         /* idle bytes that the pools kept after the last try */
    bool gave;             /* in the last try, memory came back or other threads took idle memory */
    bool counted;          /* this request is counted in oom_retries */
};

/** Returns how often the driver has got memory back so far. Call before the first try. */
static inline uint64_t oom_retry_returns(void) {
    return atomic_load_explicit(&in_flight_returns, memory_order_relaxed);
}

/**
 * Returns whether to retry a request of `bytes` that the limit has refused. Returns true for the
 * first refusal, and later only if memory has moved. Waits, within limits, for other threads that
 * are allocating, and gives idle memory back. Skips both if `bytes` exceeds the limit. Call with no
 * lock held.
 */
bool oom_retry_at_limit(struct device *device, uint64_t bytes, struct oom_retry *oom_retry);

/**
 * Returns whether to retry a call that the driver has refused and that takes at least `bytes`.
 * Works as oom_retry_at_limit(), but returns false for the first refusal too if no memory has moved
 * or was released. Call with no lock held.
 */
bool oom_retry_at_driver(struct device *device, uint64_t bytes, struct oom_retry *oom_retry);

#endif
