/*
 * Trace records of the driver's hooks: allocations and frees of blocks (trace/trace.h). Takes no
 * lock of its own. Called by memory.c, with no lock held.
 *
 * While a trace is recorded, capture_unusual keeps allocations and frees off the fast path. Without
 * a trace, the fast path therefore checks nothing.
 */
#ifndef GPUCACHE_DRIVER_OBSERVE_TRACING_H
#define GPUCACHE_DRIVER_OBSERVE_TRACING_H

#include "pool/pool.h"
#include "trace/trace.h"

#include <cuda.h>

/** Starts the trace if GPUCACHE_TRACE asks for one. Called when the library starts. */
void tracing_start(void);

/**
 * Records that the pool has handed out a block to the calling thread. `stack` is the number of the
 * call stack (stacks/stacks.h), or 0 if it is unknown.
 */
void tracing_allocated(CUdeviceptr address, uint32_t stack);

/** Calls pool_free(), returns its result, and records the free if it succeeded. */
int tracing_free(CUdeviceptr address);

/**
 * Record a deferred free (cuMemFreeAsync). tracing_free_begin() reads the block before the free,
 * since the block may be handed out again afterwards. tracing_free_end() writes the record, once
 * the free is accepted.
 */
struct tracing_freed {
    CUdeviceptr address;
    uint64_t ticks;
    struct pool_look look;
    bool known;
};
struct tracing_freed tracing_free_begin(CUdeviceptr address);
void tracing_free_end(const struct tracing_freed *freed, CUstream stream);

#endif
