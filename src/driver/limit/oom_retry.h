/*
 * A request past the pools that is refused, by the limit or by the driver, and tried again.
 *
 * What lies idle in the pools is given back for it. But between that and the next try another thread may take it, and leave it idle in its
 * turn; natively the request would have been served all the while. So it is tried up to OTHERS_TRIES times, as long as memory moves:
 * something has come back since the last try, or was freed since what was idle then could not go. Where nothing moves a refusal costs one
 * more try at most.
 */
#ifndef GPUCACHE_DRIVER_LIMIT_OOM_RETRY_H
#define GPUCACHE_DRIVER_LIMIT_OOM_RETRY_H

#include "driver/state/in_flight.h"

#include <stdbool.h>
#include <stdint.h>

struct device;

struct oom_retry {
    unsigned count;
    uint64_t return_count; /* to the limit, by others, */
    uint64_t returns;      /* and to the driver, by anybody, before the last try */
    uint64_t idle;         /* what the pools had left then, */
    bool gave;             /* and whether any of it had just come back, or gone to others */
    bool counted;          /* among the retries that reports have */
};

/** How often the driver has got something back: before the first try. */
static inline uint64_t oom_retry_returns(void) {
    return atomic_load_explicit(&in_flight_returns, memory_order_relaxed);
}

/** The limit has refused. Whether to try once more: once in any case, after other threads have their answers and what is idle has
 * made room; then as long as something has moved meanwhile. What is more than the limit is not waited for. With no lock held. */
bool oom_retry_at_limit(struct device *device, uint64_t bytes, struct oom_retry *oom_retry);

/** The same where the driver has refused a call that takes `bytes` at least, but not even once if nothing has moved or made room. */
bool oom_retry_at_driver(struct device *device, uint64_t bytes, struct oom_retry *oom_retry);

#endif
