/*
 * Retries driver calls that run out of device memory. Some calls take memory for the driver itself:
 * code, local memory of kernels, heaps, contexts, graphs, page tables. Others take unpooled memory
 * for the program. Natively both kinds of calls could use all memory that the program has freed.
 *
 * After CUDA_ERROR_OUT_OF_MEMORY the pools therefore give idle memory back, and the call is
 * repeated. Further retries follow only while memory moves (oom_retry.h). Hooks use these
 * macros with no lock held.
 */
#ifndef GPUCACHE_DRIVER_LIMIT_RETRY_H
#define GPUCACHE_DRIVER_LIMIT_RETRY_H

#include "base/likely.h"
#include "driver/limit/oom_retry.h"
#include "driver/state/device.h"
#include "process/process.h"

/*
 * Runs `call`, and repeats it after CUDA_ERROR_OUT_OF_MEMORY as oom_retry_at_driver() allows.
 * Returns the last answer. `place` is an expression for the device, evaluated only after a refusal.
 * `least` is the least number of bytes that the call takes; 0: unknown.
 */
#define RETRY_FOR(least, place, call)                                                              \
    __extension__({                                                                                \
        uint64_t before = oom_retry_returns();                                                     \
        CUresult answered = (call);                                                                \
        if (unlikely(answered == CUDA_ERROR_OUT_OF_MEMORY) && process_ready()) {                   \
            struct oom_retry oom_retry = {.process_returns = before};                              \
            struct device *refused_on = (place);                                                   \
            while (retry_after(answered, refused_on, least, &oom_retry)) {                         \
                answered = (call);                                                                 \
            }                                                                                      \
        }                                                                                          \
        answered;                                                                                  \
    })

/* The same for a call with an unknown need of memory. */
#define RETRY_ON(place, call) RETRY_FOR(0, place, call)

/* The same on the current context's device. */
#define RETRY(call) RETRY_ON(device_current(), call)

/*
 * Returns whether to repeat a call that got `answer` on `device`, which may be NULL. `bytes` as
 * `least` above. Call with no lock held.
 */
static inline bool retry_after(CUresult answer, struct device *device, uint64_t bytes,
                               struct oom_retry *oom_retry) {
    return answer == CUDA_ERROR_OUT_OF_MEMORY && device &&
           oom_retry_at_driver(device, bytes, oom_retry);
}

#endif
