/*
 * The backend of a pool, as the rest of the driver layer knows it: its context, its device and its
 * events. Both kinds (backend/) begin with it. The pool's lock protects the fields except `returning`.
 */
#ifndef GPUCACHE_DRIVER_CONTEXT_DEVICE_BACKEND_H
#define GPUCACHE_DRIVER_CONTEXT_DEVICE_BACKEND_H

#include "source/backend.h"

#include <cuda.h>

struct device;

struct device_backend {
    struct backend backend; /* first: a pool has a pointer to it */
    CUcontext context;
    struct device *device;
    CUevent events[BACKEND_SLOTS];
    CUevent probe; /* never recorded; its query tells what the driver answers during a capture */
    _Atomic uint64_t returning; /* bytes released, which the driver may not have yet */
};

/**
 * Sets up the backend for the current context, whose handle is `context`: creates its events.
 * Returns 0, or the driver's code; then no object of the driver is left behind. Called with the
 * pool lock, if the pool exists already.
 */
int device_backend_start(struct device_backend *own, const struct backend_ops *ops,
                         CUcontext context, struct device *device);

/** Destroys the events. For a context that lives on, but gets no pool. */
void device_backend_stop(struct device_backend *own);

/** Suspends the backend after its context has ended. The driver destroyed the events with it.
 * Called with the pool lock. */
void device_backend_end(struct device_backend *own);

/** Takes `bytes` from the pools' reserve and from the charge of the device: the driver has them
 * back. */
void device_backend_count_return(struct device_backend *own, uint64_t bytes);

#endif
