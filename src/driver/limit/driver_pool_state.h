/*
 * Defines the state of one of the driver's own pools. driver_pools.c and driver_pool_claim.c share
 * it. An allocation without a limit normally takes no lock here. The fields therefore have these
 * rules:
 *
 *   live, calls, stale        change with and without the lock DRIVER_POOLS
 *   exists, reserve, counted  change under the lock; other threads read them without it
 *   device                    never changes, so readers need no lock
 *   all other fields          read and written under the lock
 *
 * A change of `live` without the lock comes before the reads of `exists`, `reserve` and `counted`.
 * driver_pool_count() writes `counted` before it reads `live` again. One of the two threads
 * therefore sees the other's change. Invariant: `counted` bytes of each pool are charged to
 * `device`.
 */
#ifndef GPUCACHE_DRIVER_LIMIT_DRIVER_POOL_STATE_H
#define GPUCACHE_DRIVER_LIMIT_DRIVER_POOL_STATE_H

#include "base/lock.h"
#include "driver/state/device.h"

#include <cuda.h>

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* Bytes by which a pool grows, even for 2000 bytes, on an H200 (tests/sim/probe-h200.txt). */
#define DRIVER_POOL_UNIT ((uint64_t)32 << 20)

struct driver_pool {
    CUmemoryPool handle;   /* NULL: destroyed, or graph memory */
    struct device *device; /* NULL: host memory, or an unknown pool */
    bool is_graph_memory;  /* the graph memory of `device`, not a pool with a handle */
    atomic_bool exists; /* the driver may be asked: the pool certainly exists; not graph memory */
    atomic_bool stale;  /* a free came after the last driver_pool_query_stale() */
    /* Allocations between driver_pool_begin() and driver_pool_end(). They keep the entry: add() in
     * driver_pools.c does not reuse it. */
    _Atomic unsigned calls;
    _Atomic uint64_t live;    /* bytes of live allocations, as requested */
    uint64_t in_progress;     /* bytes of the claims of `calls`; 0 without a limit */
    _Atomic uint64_t reserve; /* bytes, from the last query */
    _Atomic uint64_t counted; /* bytes charged: larger of live and reserve at the last count */
    struct driver_pool *next;
};

extern struct lock driver_pool_lock;

/**
 * Charges and counts the larger of live bytes and reserve. Call with the lock. A thread that
 * changes `live` without the lock compares it with `reserve` and `counted` afterwards, and calls
 * this function if they differ from what is charged.
 */
void driver_pool_count(struct driver_pool *pool);

/**
 * Queries the reserve of a pool, and charges and counts it. Asks the driver nothing about a pool
 * that does not certainly exist. During a capture uses the last result, because the query would
 * invalidate the capture. A capture that begins during the query waits for the
 * lock (driver_pool_capture_announced). Call with the lock.
 */
void driver_pool_query(struct driver_pool *pool);

#endif
