/*
 * The pools of a device: made once, and used again by later contexts.
 *
 *      struct device -> pools -> struct device_pool -> next -> ...
 *
 * A pool has a context while that lives. When it ends, the pool is emptied and waits for the next context
 * of the device. It is never removed, so that its history stays in the reports, and whoever walks the
 * list takes no lock. Entries are added and change hands under the registry's lock (context.c).
 */
#ifndef GPUCACHE_DRIVER_CONTEXT_DEVICE_POOL_H
#define GPUCACHE_DRIVER_CONTEXT_DEVICE_POOL_H

#include "driver/state/device.h"

#include <cuda.h>

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct context;
struct device;
struct pool;
struct device_backend;

/** A kind of backend: what device_pool.c needs of it. The kinds stand above this file (backend/). */
struct backend_kind {
    size_t bytes; /* of the backend's state, which begins with a struct device_backend */

    /** Sets up the backend as device_backend_start(); the devices in `reached_by` have access. */
    int (*start)(struct device_backend *own, CUcontext context, struct device *device,
                 uint64_t reached_by);

    /** Gives one more device access to all memory. NULL: the driver does that by itself. */
    CUresult (*grant_access)(struct device_backend *own, CUdevice device);

    /** Returns why a device cannot have this kind, in words, or NULL. NULL: every device can. */
    const char *(*unavailable)(struct device *device);

    /** Returns why its memory could have no IPC handles, in words, or NULL. NULL: it can. */
    const char *(*not_exportable)(const struct device *device);
};

/** Sets the two kinds, when the process starts. */
void device_pool_set_kinds(const struct backend_kind *segments, const struct backend_kind *vmm);

/** A pool for the current context, whose handle is `context`; `reached_by`: the devices that have access to
 * its memory, a bit for each. NULL: it cannot have one. */
struct device_pool *device_pool_start(CUcontext context, struct device *device,
                                      uint64_t reached_by);

/** One more device has access to the pool's memory, all that it has and will have. With no lock held. */
CUresult device_pool_grant_access(struct device_pool *entry, CUdevice by);

/** From now on no call of the context's pool names what belongs to it, or they may again. */
void device_pool_suspend(const struct context *context, bool suspended);

/** The context has ended, and its pool's memory with it. */
void device_pool_forget(const struct context *context);

/** Returns when the work has finished behind which memory of the device was handed out. With no lock held. */
void device_pool_drain_barriers(struct device *device);

/** pool_finish() of each pool of a device. With no lock held. */
bool device_pool_finish(struct device *device);

/** Gives the idle memory of all pools of a device back to the driver. 0, or why some could not be. With no
 * lock held. */
int device_pool_release_idle(struct device *device);

/** What that left, and what is on its way back. */
uint64_t device_pool_left(struct device *device);

/** The device of a pool whose context lives, and the context. */
struct device *device_pool_owner(struct pool *pool);
CUcontext device_pool_context(struct pool *pool);

#endif
