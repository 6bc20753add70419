/*
 * Defines the part that both kinds of backend share: the pool's context, its device and its events.
 * The structs of both kinds (backend/) begin with struct device_backend. Once the pool exists,
 * fields change only under its lock, `returning` excepted. device_pool.c and backend/ call these
 * functions.
 */
#ifndef GPUCACHE_DRIVER_CONTEXT_DEVICE_BACKEND_H
#define GPUCACHE_DRIVER_CONTEXT_DEVICE_BACKEND_H

#include "source/backend.h"

#include <cuda.h>

struct device;

struct device_backend {
    struct backend backend; /* first: a pool's pointer to it is converted back */
    CUcontext context;
    struct device *device;
    CUevent events[BACKEND_SLOTS];
    CUevent probe; /* never recorded: a query of it shows the driver's answer during a capture */
    _Atomic uint64_t returning; /* released bytes that the driver may not have back yet */
};

/**
 * Sets up the backend for the current context, whose handle is `context`, and creates its events.
 * Returns 0, or the driver's code after it has destroyed the events again. Call with the pool's
 * lock if the pool exists already.
 */
int device_backend_start(struct device_backend *own, const struct backend_ops *ops,
                         CUcontext context, struct device *device);

/** Suspends the backend and destroys its events. For a context that goes on without a pool. Call
 * with the pool's lock if the pool exists already. */
void device_backend_stop(struct device_backend *own);

/** Suspends the backend after its context has ended, so that the pool does not grow any more. The
 * driver destroyed the events with the context. Call with the pool's lock. */
void device_backend_end(struct device_backend *own);

/** Subtracts `bytes` from the reserved bytes and the charge of the device, after they became free
 * for the driver. Takes no lock. */
void device_backend_count_return(struct device_backend *own, uint64_t bytes);

#endif
