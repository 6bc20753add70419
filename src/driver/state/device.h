/*
 * A device as the limit and the books see it: one, whatever number of contexts and kinds of memory
 * the process has on it.
 *
 * `charged` is every byte the process holds there: the pools' reserve and all memory that passes by
 * them. It is raised before the driver is asked and lowered after the driver has taken back, so
 * that no moment exceeds the limit.
 */
#ifndef GPUCACHE_DRIVER_STATE_DEVICE_H
#define GPUCACHE_DRIVER_STATE_DEVICE_H

#include "driver/state/in_flight.h"
#include "process/lock.h"
#include "stats/counters.h"
#include "stats/stats.h"

#include <cuda.h>

#include <stdatomic.h>
#include <stdbool.h>

struct device_backend;
struct pool;

/* A pool of a device; device_pool.h has the list. */
struct device_pool {
    struct pool *pool;
    struct device_backend *backend; /* the pool's, for ever */
    struct device_pool *next;
    atomic_bool idle; /* its context is gone: free for the next one of this device */
};

struct device {
    CUdevice ordinal;
    atomic_bool used; /* the fields below are set */
    char name[64];
    char uuid[48];
    uint64_t total;
    _Atomic uint64_t limit; /* bytes; 0: none */
    _Atomic uint64_t charged;
    uint64_t claimed; /* of that: for allocations from the driver's pools under way (mempool.c) */
    _Atomic uint64_t pooled, pooled_peak; /* the reserve of all pools together */
    struct in_flight in_flight;
    struct lock lock;        /* for the books of outside memory */
    struct counters outside; /* only its OUTSIDE metrics and counters that belong to no pool */
    _Atomic(struct device_pool *) pools; /* device_pool.h */
    atomic_bool in_pages;                /* the pools' memory comes in pages, and not in segments */
    _Atomic(const char *) backend_reason; /* why; NULL: there was no pool yet */
};

/** The device of an ordinal, its identity read when it is used for the first time. NULL: there is
 * no such device. */
struct device *device_get(CUdevice ordinal);

/** The bit of a device in a set of devices. 0 for one beyond STATS_MAX_DEVICES. A process with so
 * many devices has no memory in pages (vmm_unavailable), so no set needs to hold it. */
static inline uint64_t device_bit(CUdevice ordinal) {
    return ordinal >= 0 && ordinal < STATS_MAX_DEVICES ? (uint64_t)1 << ordinal : 0;
}

/** Returns the highest ordinal of a device that this process has used, plus one. Takes no lock. */
int device_used_count(void);

/** The same as device_get(), but NULL if this process has not used it. */
struct device *device_used(int ordinal);

void device_reset_peaks(struct device *device);

/** In the child of a fork: none is used. */
void device_forked(void);

/** A limit as it is asked for: in bytes, 0 for none; or, if `fraction` is not 0, as a share of the device's memory, 1 for none. */
struct device_limit {
    uint64_t bytes;
    double fraction;
};

void device_set_limit(struct device *device, const struct device_limit *limit);

/** The same for all devices, those as well that are used later. */
void device_set_limits(const struct device_limit *limit);

/** In force for a device with so much memory, used or not; 0: none. */
uint64_t device_limit_of(int ordinal, uint64_t total);

/** The device of the current context, or NULL. */
struct device *device_current(void);

/** Takes `bytes` from what the limit allows. False, and nothing taken, if it does not allow them. */
bool device_take(struct device *device, uint64_t bytes);

/** The driver has taken `bytes` more already, whatever the limit. */
void device_charge_taken(struct device *device, uint64_t bytes);

/** The driver has taken `bytes` back. */
void device_refund(struct device *device, uint64_t bytes);

/** What was charged has not been taken. */
void device_uncharge(struct device *device, uint64_t bytes);

/** How often memory has come back so far: refunds, and growths in vain. Waits before, within limits, until other threads that
 * are asking have their answers. With no lock held. */
uint64_t device_given_back(struct device *device);

/** The pools' reserve on the device grew or shrank by `change` bytes. */
void device_pooled(struct device *device, int64_t change);

/** What the program may believe the device's memory to be: its total, or the limit if that is
 * smaller. */
uint64_t device_visible_total(const struct device *device);

/** Books memory of the process's own on the device. `metric` is one of device->outside. */
void device_book(struct device *device, struct metric *metric, int64_t change);

/** Adds one to a counter of device->outside. */
void device_count(struct device *device, stat_counter *counter);

/** Counts an allocation that failed in the end, and whether it was the limit that refused it. */
void device_count_oom(struct device *device, bool at_limit);

/** Whether a device whose charge is `charged` may be charged `bytes` more. */
bool device_is_within_limit(const struct device *device, uint64_t charged, uint64_t bytes);

/**
 * Called once, when the process first uses a device. `count`: the devices of the machine. Set when the
 * process starts (control/); NULL: nothing is to be done.
 */
extern void (*device_first_use)(unsigned count);

#endif
