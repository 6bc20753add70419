/*
 * Calls that take memory of the device for the driver's own purposes: code, local memory of kernels, heaps, contexts, graphs, page
 * tables. Natively all that the program has freed would be there for them. So when the driver answers that it is out of memory, what
 * lies idle in the pools is given back, and the call is made again; more than once only where others move memory meanwhile. So it is with
 * calls that take memory for the program, past the pool.
 */
#ifndef GPUCACHE_DRIVER_LIMIT_RETRY_H
#define GPUCACHE_DRIVER_LIMIT_RETRY_H

#include "driver/limit/oom_retry.h"
#include "driver/state/device.h"
#include "process/process.h"

/* `call`, and again while the driver has no memory for it but others come and go. The device is looked for only then; `least` is what
 * the call takes at least. */
#define RETRY_FOR(least, place, call)                                                              \
    __extension__({                                                                                \
        uint64_t before = oom_retry_returns();                                                     \
        CUresult answered = (call);                                                                \
        if (__builtin_expect(answered == CUDA_ERROR_OUT_OF_MEMORY, 0) && process_ready()) {        \
            struct oom_retry oom_retry = {.returns = before};                                      \
            struct device *refused_on = (place);                                                   \
            while (retry_after(answered, refused_on, least, &oom_retry)) {                         \
                answered = (call);                                                                 \
            }                                                                                      \
        }                                                                                          \
        answered;                                                                                  \
    })

#define RETRY_ON(place, call) RETRY_FOR(0, place, call)

/* On the current context's. */
#define RETRY(call) RETRY_ON(device_current(), call)

/* True if the driver had no memory for a call on `device`, which may be NULL, and it is to be made again. */
static inline bool retry_after(CUresult answer, struct device *device, uint64_t bytes,
                               struct oom_retry *oom_retry) {
    return answer == CUDA_ERROR_OUT_OF_MEMORY && device &&
           oom_retry_at_driver(device, bytes, oom_retry);
}

#endif
