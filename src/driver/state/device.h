/*
 * Keeps the limit, the charge and the counters of a device, for all contexts and kinds of memory.
 *
 * `charged` counts every byte that the process has on the device: the reserved bytes of the pools
 * and unpooled memory. Invariant: `charged` grows before the driver is asked for memory, and
 * shrinks after the driver has the memory back. Requests therefore never exceed the limit. Memory
 * that the driver took by itself is charged afterwards (device_charge_always). `charged` is atomic;
 * `lock` protects only `unpooled`. The lock of rank DEVICES orders the first use of a device and
 * changes of `limit` and `pools`. Backends, context/ and limit/ change the charge; reports read it.
 */
#ifndef GPUCACHE_DRIVER_STATE_DEVICE_H
#define GPUCACHE_DRIVER_STATE_DEVICE_H

#include "base/lock.h"
#include "driver/state/in_flight.h"
#include "stats/counters.h"
#include "stats/requesters.h"
#include "stats/stats.h"

#include <cuda.h>

#include <stdatomic.h>
#include <stdbool.h>

struct device_backend;
struct pool;

/* An entry of the list of a device's pools (device_pool.h). */
struct device_pool {
    struct pool *pool;
    struct device_backend *backend; /* of the pool; never changes */
    struct device_pool *next;
    atomic_bool unused; /* the pool's context has ended; the device's next context gets the pool */
};

struct device {
    CUdevice ordinal;
    atomic_bool used; /* the process has used the device, so the fields below are set */
    char name[64];
    char uuid[48];
    uint64_t total;                     /* bytes of the device's memory */
    _Atomic uint64_t limit;             /* bytes; 0: none */
    _Atomic(const char *) limit_source; /* variable or call that set `limit`, for reports */
    _Atomic uint64_t charged;           /* bytes */
    /* Bytes of `charged` that allocations in progress reserve for growths of the driver's own pools
     * (limit/driver_pool_claim.c); under the lock DRIVER_POOLS. */
    uint64_t claimed;
    _Atomic uint64_t pooled, pooled_peak; /* reserved bytes of all pools together, and their peak */
    struct in_flight in_flight;
    struct lock lock;         /* protects `unpooled` */
    struct counters unpooled; /* metrics of unpooled memory, and counters that belong to no pool */
    struct requester_row requesters[REQUESTERS]; /* bytes of large blocks and unpooled memory */
    _Atomic uint64_t requested_unpooled;  /* bytes of unpooled memory in `requesters`, without
                                           * native blocks */
    _Atomic(struct device_pool *) pools;  /* device_pool.h */
    atomic_bool uses_vmm;                 /* backend of the pools: pages (true) or segments */
    _Atomic(const char *) backend_reason; /* why `uses_vmm` has its value; NULL: not set yet */
};

/** Returns the device of an ordinal. The first call reads the device's name, UUID and size, sets
 * its first limit, and may call device_first_use. NULL: there is no such device. May acquire the
 * lock of rank DEVICES. */
struct device *device_get(CUdevice ordinal);

/** Returns the bit of a device in a set of devices; 0 for an ordinal from STATS_MAX_DEVICES on.
 * With so many devices no pool has the vmm backend (all_can_reach() in backend/vmm_support.c), and
 * only that backend needs the bit. */
static inline uint64_t device_bit(CUdevice ordinal) {
    return ordinal >= 0 && ordinal < STATS_MAX_DEVICES ? (uint64_t)1 << ordinal : 0;
}

/** Returns the highest ordinal of a device that this process has used, plus one. Takes no lock. */
int device_used_count(void);

/** Returns the device of an ordinal, or NULL if this process has not used it. Takes no lock. */
struct device *device_used(int ordinal);

/** Writes the UUID of a device in NVML's form, "GPU-...". Returns false, and writes nothing, if the
 * driver refuses. For a MIG device, NVML's own UUID has another prefix. */
bool device_uuid(CUdevice ordinal, char to[48]);

/** Marks all devices as unused, in the child of a fork. */
void device_forked(void);

/** A limit as the program asks for it, in bytes or as a share of the device's memory. */
struct device_limit {
    uint64_t bytes;  /* if `fraction` is 0; 0: no limit */
    double fraction; /* 0: `bytes` counts; 1: no limit */
};

/** Sets the limit of a device, and the capacity of its pools. Acquires the lock of rank DEVICES,
 * and then the pools' locks. */
void device_set_limit(struct device *device, const struct device_limit *limit);

/** Adds a pool to the device's list and sets the pool's capacity: the limit may have changed since
 * the pool was created. Acquires the lock of rank DEVICES, and then the pool's. */
void device_add_pool(struct device *device, struct device_pool *entry);

/** Sets the limit of all devices, now and at their first use. Acquires the lock of rank DEVICES,
 * and once more for each used device, as device_set_limit() does. */
void device_set_limits(const struct device_limit *limit);

/** Returns the limit of a device with `total` bytes of memory, in bytes. 0: none. The process may
 * not have used the device yet: the result is then the limit that the first use would set. May
 * acquire the lock of rank DEVICES. */
uint64_t device_limit_of(int ordinal, uint64_t total);

/** Returns the device of the current context. NULL without a current context, in the child of a
 * fork, or if the library is off. Starts the library for a thread with a context only: after failed
 * calls before cuInit(), the child of a fork may still use CUDA, and starts the library itself. May
 * acquire the lock of rank DEVICES. */
struct device *device_current(void);

/*
 * The charge of a device, which the limit bounds:
 *
 *      device_charge_once     before a driver call, if the limit allows it
 *      device_charge_or_trim  the same; if the limit refuses, trims the driver's own pools and
 *                             charges once more (limit/charge.h)
 *      device_charge_always   after a driver call, whatever the limit
 *      device_uncharge        the driver handed no memory out
 *      device_refund          the driver got memory back
 *
 * Requests that the limit refused are tried again after either of the last two, and requests that
 * the driver refused after a refund.
 */

/** Charges `bytes` if the limit allows them. Returns false, and charges nothing, if it does not. */
bool device_charge_once(struct device *device, uint64_t bytes);

/** Charges `bytes` that the driver has already handed out, whatever the limit. */
void device_charge_always(struct device *device, uint64_t bytes);

/** Subtracts `bytes` from the charge, after the driver got them back. */
void device_refund(struct device *device, uint64_t bytes);

/** Subtracts `bytes` from the charge, after the driver did not hand them out. */
void device_uncharge(struct device *device, uint64_t bytes);

/** Returns whether the process has managed memory, and its charge exceeds the device's memory less
 * a share for contexts and code (device.c). The driver gives out more managed memory than the
 * device has, and moves pages to the host. Natively these pages could have the idle memory of the
 * pools. Takes no lock. */
bool device_is_overcommitted(const struct device *device);

/** Returns a number that changes when another thread gives a charge or memory back. Waits first,
 * for one second at most, for the requests that other threads have in progress (in_flight_wait).
 * Call with no lock held. */
uint64_t device_wait_for_in_flight(struct device *device);

/** Adds `change` to the reserved bytes of the device's pools. */
void device_change_pooled(struct device *device, int64_t change);

/** Returns the size of the device's memory that the program sees, in bytes: the smaller one of
 * total and limit. */
uint64_t device_visible_total(const struct device *device);

/** Adds `change` to a metric of device->unpooled. Acquires the device's lock. */
void device_change_metric(struct device *device, struct metric *metric, int64_t change);

/** Adds one to a counter of device->unpooled. Acquires the device's lock. */
void device_count(struct device *device, stat_counter *counter);

/** Counts an allocation that failed after all retries. `at_limit`: the limit refused it. Acquires
 * the device's lock. */
void device_count_oom(struct device *device, bool at_limit);

/** Returns whether the limit allows `bytes` more than a charge of `charged` bytes. */
bool device_is_within_limit(const struct device *device, uint64_t charged, uint64_t bytes);

/**
 * Function that device_get() calls once, when the process first uses a device, with the number of
 * the machine's devices. The caller may hold locks of rows above DEVICES in base/lock.def, for
 * example REGISTRY or DRIVER_POOLS. Set when the process starts (control/lifecycle_hooks.c). NULL:
 * none.
 */
extern void (*device_first_use)(unsigned count);

#endif
