/*
 * Records allocations and frees of the pool's blocks in the trace (trace/trace.h). hooks/memory.c
 * calls this file with no lock held. The file has no lock of its own.
 */
#ifndef GPUCACHE_DRIVER_OBSERVE_TRACING_H
#define GPUCACHE_DRIVER_OBSERVE_TRACING_H

#include "pool/pool.h"
#include "trace/trace.h"

#include <cuda.h>

/** Starts the trace if GPUCACHE_TRACE asks for one. Lifecycle hook (`start`). */
void tracing_start(void);

/**
 * Records that the pool has handed out a block to the calling thread. `stack` is the number of the
 * call stack (stacks/stacks.h), or 0 if it is unknown.
 */
void tracing_allocated(CUdeviceptr address, uint32_t stack);

/** Calls pool_free(), returns its result, and records the free if it succeeded. */
int tracing_free(CUdeviceptr address);

/**
 * Records a deferred free (cuMemFreeAsync) in two steps. tracing_free_begin() reads the block
 * before the free, because another thread may get the block afterwards. tracing_free_end() writes
 * the record after a successful free.
 */
struct tracing_freed {
    CUdeviceptr address;
    uint64_t ticks; /* trace clock at the begin */
    struct pool_description described;
    bool known; /* `described` is set: a live block begins at `address` */
};
struct tracing_freed tracing_free_begin(CUdeviceptr address);
void tracing_free_end(const struct tracing_freed *freed, CUstream stream);

#endif
