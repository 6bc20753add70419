/*
 * Starts, suspends and ends the pools of a device. Gives the idle memory of these pools back.
 *
 *      struct device -> pools -> struct device_pool -> next -> ...
 *
 * When a context ends, its pool becomes empty and unused. It serves the next context of the device.
 * Invariant: an entry is never removed. Reports therefore keep its history, and readers of the list
 * take no lock. Entries are added, and get another context, under the registry's lock (registry.h).
 * Most folders of driver/ and the backends call this file. decay.c, limit/charge.c, state/device.c
 * and reports read the list.
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

/** The functions of one kind of backend. The kinds are defined in backend/, a layer above this
 * one. */
struct backend_kind {
    size_t bytes; /* size of the backend's state, which begins with a struct device_backend */

    /** Sets up the backend; see device_backend_start(). `peer_devices` get access. */
    int (*start)(struct device_backend *own, CUcontext context, struct device *device,
                 uint64_t peer_devices);

    /** Gives one more device access to the pool's memory. NULL: the driver does so by itself. */
    CUresult (*grant_access)(struct device_backend *own, CUdevice device);

    /** Returns the reason, in words, why a device cannot have this kind. NULL: it can. Called
     * for the vmm kind only, which has the function. */
    const char *(*unavailable)(struct device *device);

    /** Returns the reason, in words, why the memory cannot have IPC handles. NULL: it can.
     * Called for the vmm kind only, which has the function. */
    const char *(*not_exportable)(const struct device *device);
};

/** Sets the two kinds, once, when the process starts. */
void device_pool_set_kinds(const struct backend_kind *segments, const struct backend_kind *vmm);

/** Returns a pool for the current context, whose handle is `context`: an unused one of the device,
 * or a new one. `peer_devices` has a bit for each device with access to its memory. NULL: the
 * context gets no pool. Call with the registry's lock. */
struct device_pool *device_pool_start(CUcontext context, struct device *device,
                                      uint64_t peer_devices);

/** Gives one more device access to the pool's memory, present and future. Returns 0 or the driver's
 * code. Call with no lock held. */
CUresult device_pool_grant_access(struct device_pool *entry, CUdevice by);

/** Stops (true) or allows again (false) the driver calls of the context's pool. Acquires the pool
 * lock, so no call that is made under the lock is in progress afterwards. Calls that block are made
 * without the lock (source/backend.h) and may still be in progress. */
void device_pool_suspend(const struct context *context, bool suspended);

/** Empties the pool of a context that has ended. The pool becomes unused. Makes no driver call for
 * segments, which ended with the context. Unmaps and releases the handles of the vmm backend, which
 * belong to no context. Call with the registry's lock. Acquires the pool's locks. */
void device_pool_forget(const struct context *context);

/** Waits until the work before all barriers of the device's pools has finished. Call with no lock
 * held. */
void device_pool_drain_barriers(struct device *device);

/** Calls pool_wait_for_events_in_free() for each pool of a device. Returns whether one of them
 * waited for an event. Call with no lock held. */
bool device_pool_wait_for_events_in_free(struct device *device);

/** Gives the idle memory of all pools of a device back to the driver. Waits as pool_trim() does,
 * for each pool. Returns 0, or an error of pool_trim() if a pool keeps idle memory. Call with no
 * lock held. */
int device_pool_release_idle(struct device *device);

/** Returns the idle bytes that device_pool_release_idle() could not give back, plus the bytes that
 * were released but may not be free for the driver yet. */
uint64_t device_unreleasable_bytes(struct device *device);

/** Returns whether idle memory takes much of the space that managed memory needs: the device is
 * overcommitted, and the idle memory that can go back is more than a share of the device. Pending
 * memory counts, also if its work has not ended. Takes no lock. */
bool device_pool_displaces_managed(const struct device *device);

/** Returns the device of a pool. A pool never changes its device. Takes no lock. */
struct device *device_of_pool(struct pool *pool);

/** Returns the context of a pool whose context has not ended. Takes no lock. */
CUcontext context_of_pool(struct pool *pool);

#endif
