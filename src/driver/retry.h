/*
 * Calls that take memory of the device for the driver's own purposes: code, local memory of kernels, heaps, contexts, graphs, page
 * tables. Natively all that the program has freed would be there for them. So when the driver answers that it is out of memory, what
 * lies idle in the pools is given back, and the call is made once more.
 */
#ifndef GPUCACHE_DRIVER_RETRY_H
#define GPUCACHE_DRIVER_RETRY_H

#include "driver/device.h"
#include "driver/outside.h"
#include "process/process.h"

/* Made again on a device, which is looked for only then. */
#define RETRY_ON(place, call)                                                                      \
    __extension__({                                                                                \
        CUresult first = (call);                                                                   \
        __builtin_expect(first == CUDA_ERROR_OUT_OF_MEMORY, 0) && process_ready() &&               \
                outside_make_room(first, place, 0)                                                 \
            ? (call)                                                                               \
            : first;                                                                               \
    })

/* On the current context's. */
#define RETRY(call) RETRY_ON(device_current(), call)

#endif
