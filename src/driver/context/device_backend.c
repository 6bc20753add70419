/* Sets up, stops and ends the part that both kinds of backend share. */
#include "driver/context/device_backend.h"

#include "driver/state/device.h"
#include "driver/table/entries.h"

#include <string.h>

void device_backend_count_return(struct device_backend *own, uint64_t bytes) {
    device_change_pooled(own->device, -(int64_t)bytes);
    device_refund(own->device, bytes);
}

int device_backend_start(struct device_backend *own, const struct backend_ops *ops,
                         CUcontext context, struct device *device) {
    /* Other threads read these fields without the lock. A later context of the device that reuses
     * the pool must therefore not write them. */
    if (own->backend.ops != ops || own->device != device) {
        own->backend.ops = ops;
        own->device = device;
        own->backend.requesters = device->requesters;
    }
    own->context = context;
    memset(own->events, 0, sizeof own->events);
    own->probe = NULL;
    atomic_store(&own->returning, 0);
    atomic_store(&own->backend.suspended, false);
    own->backend.capacity = device_visible_total(device);
    own->backend.has_events = HAS(cuCtxRecordEvent) && HAS(cuCtxWaitEvent);
    own->backend.release_waits = false;
    own->backend.refused = 1; /* as if a record was refused: the first free then records an event */
    CUresult r = REAL(cuEventCreate)(&own->probe, CU_EVENT_DISABLE_TIMING);
    for (unsigned i = 0; i < BACKEND_SLOTS && r == CUDA_SUCCESS && own->backend.has_events; i++)
        r = REAL(cuEventCreate)(&own->events[i], CU_EVENT_DISABLE_TIMING);
    if (r != CUDA_SUCCESS)
        device_backend_stop(own);
    else
        own->backend.ended = false;
    return (int)r;
}

void device_backend_stop(struct device_backend *own) {
    own->backend.suspended = true;
    if (own->probe)
        REAL(cuEventDestroy_v2)(own->probe);
    for (unsigned i = 0; i < BACKEND_SLOTS; i++)
        if (own->events[i])
            REAL(cuEventDestroy_v2)(own->events[i]);
}

void device_backend_end(struct device_backend *own) {
    own->backend.suspended = own->backend.ended = true;
    /* Also for 0 bytes: a refused request of another context then tries again. */
    device_backend_count_return(own, atomic_exchange(&own->returning, 0));
}
