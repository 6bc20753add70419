/*
 * Charges the driver's own pools of stream-ordered memory (cuMemAllocAsync), and graph memory.
 *
 * The charge of a pool is the larger of its live bytes and its reserve. Freed memory stays in the
 * reserve until a synchronisation finds the reserve above the release threshold. A query of the
 * reserve (CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT) costs a driver call.
 *
 *   | case            | a query is made                                                           |
 *   | --------------- | ------------------------------------------------------------------------- |
 *   | without a limit | when the live bytes exceed the last result, at the first wait after a     |
 *   |                 | free, after the program trims a pool, after out of memory, when the       |
 *   |                 | program asks the driver how much memory is in use or sets a limit, and    |
 *   |                 | when a pool of the library asks for its available memory                  |
 *   | with a limit    | also after every allocation, and before an allocation is refused          |
 *
 * During a capture no query is made. Reports and gpucache_get_stats() use the last result.
 * Functions acquire the lock DRIVER_POOLS, unless their comment says otherwise. Hooks, control/,
 * backend/vmm.c and this folder call them.
 */
#ifndef GPUCACHE_DRIVER_LIMIT_DRIVER_POOLS_H
#define GPUCACHE_DRIVER_LIMIT_DRIVER_POOLS_H

#include "base/likely.h"
#include "driver/state/device.h"
#include "process/process.h"

#include <cuda.h>

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct context;
struct driver_pool;

/** Returns the current device's pool, which cuMemAllocAsync uses. NULL: the pool is not known. */
struct driver_pool *driver_pool_current(void);

/** Returns the pool of a handle. NULL: the pool has no device memory, or its device is unknown. */
struct driver_pool *driver_pool_of(CUmemoryPool handle);

/** Returns the device of a pool. NULL: host memory, or unknown. Takes no lock. */
struct device *driver_pool_device(const struct driver_pool *pool);

/** An allocation in progress, from before the driver call until after its answer. */
struct driver_pool_claim {
    struct driver_pool *pool;
    uint64_t bytes;       /* requested bytes */
    uint64_t charged;     /* bytes charged in advance */
    uint64_t in_progress; /* bytes of this claim in the pool's `in_progress`; 0 without a limit */
};

/**
 * Returns whether the limit allows `bytes` more in the pool. If so, driver_pool_end() must follow.
 *
 * With a limit, charges the bytes as if the pool had to grow for them, in units of 32 MiB. If the
 * limit refuses, trims the driver's pools and retries. A retry also succeeds, without a charge, if
 * the pool's reserve may serve the bytes. Counts a final refusal as out of memory. Call with no
 * lock held.
 */
bool driver_pool_begin(struct driver_pool *pool, uint64_t bytes, struct driver_pool_claim *claim);

/**
 * Replaces the charge of driver_pool_begin() by the growth of the pool. Enters the allocation at
 * `dptr` if `answer` is CUDA_SUCCESS. Returns false if the device now exceeds its limit. The caller
 * then frees the allocation, between unpooled_free_begin() and unpooled_free_end(). Call with no
 * lock held.
 */
bool driver_pool_end(CUresult answer, const struct driver_pool_claim *claim, CUdeviceptr dptr);

/**
 * Subtracts `bytes` of a freed allocation from the live bytes, after the driver's free. Acquires
 * the lock only if the live bytes are charged, because they exceed the reserve. Marks the pool as
 * stale, so that a wait of the program queries the reserve. The caller may hold locks that precede
 * DRIVER_POOLS in base/lock.def, for example REGISTRY.
 */
void driver_pool_subtract(struct driver_pool *pool, uint64_t bytes);

/**
 * Adds the pool for graph memory of a device, once. Call before a graph may allocate there. Does
 * nothing for NULL. The pool grows at a launch; the next query of its reserve counts the growth.
 */
void driver_pool_add_graph_memory(struct device *device);

/** Queries the reserve of each pool of a device. During a capture, uses the last results. */
void driver_pool_query_all(struct device *device);

/** Queries the reserve of each pool with a free since the last call, and of graph memory. */
void driver_pool_query_stale(void);
extern atomic_bool driver_pool_stale; /* driver_pool_query_stale() has something to query */

/**
 * Returns `r`, the driver's answer to a wait of the program. Calls driver_pool_query_stale() after
 * a successful wait, because the driver then releases memory above the release thresholds.
 */
static inline CUresult driver_pool_waited(CUresult r) {
    if (unlikely(atomic_load_explicit(&driver_pool_stale, memory_order_relaxed)) &&
        r == CUDA_SUCCESS && process_is_started())
        driver_pool_query_stale();
    return r;
}

/**
 * Trims the driver's pools of a device until `bytes` more fit under its limit. Returns whether any
 * memory was released. Does nothing during a capture, or if `bytes` exceeds the limit. The caller
 * may hold a pool's remap lock, and no lock that follows it in base/lock.def.
 */
bool driver_pool_trim_for(struct device *device, uint64_t bytes);

/**
 * Trims the driver's pools of a device to their release thresholds. Call after the driver has
 * refused memory: natively cuMemAlloc does the same trim, and so does a free that waits. Does
 * nothing during a capture. Returns whether any memory was released. Locks: as
 * driver_pool_trim_for().
 */
bool driver_pool_trim(const struct device *device);

/**
 * Acquires and releases the lock, so no thread still runs a query or trim that it began before the
 * call. Call when a capture is announced, before it begins.
 */
void driver_pool_capture_announced(void);

/** Queries the driver's pools of a device. Returns the reserved bytes beyond their live bytes.
 * During a capture, returns those of the last results. */
uint64_t driver_pool_kept(struct device *device);

/**
 * Adds a pool that the program has created. `device` NULL: host memory, or not known. `on_device`:
 * the driver may be asked about the pool. Marks an older pool of the handle as destroyed.
 */
void driver_pool_created(CUmemoryPool handle, struct device *device, bool on_device);

/**
 * Lets the driver destroy a pool, and returns the driver's answer. Holds the lock during the call:
 * no thread may ask the driver about a destroyed pool.
 */
CUresult driver_pool_destroy(CUmemoryPool handle);

/** Queries the reserve of the pool of a handle, if the pool is known. */
void driver_pool_query_handle(CUmemoryPool handle);

/** Forgets the current pool of a device. The next use of the pool asks the driver. */
void driver_pool_forget_current(int ordinal);

/**
 * Marks pools of the driver as not certainly existing, after `context` has ended. If it was a
 * primary context, marks the pools of its device. If it was another context and the last one of the
 * process, marks the pools of all devices. Else does nothing. The program's next allocation from a
 * pool shows that the pool still exists. Runs under REGISTRY, after the rows of the ledger have
 * ended.
 */
void driver_pools_invalidate(const struct context *context);

#endif
