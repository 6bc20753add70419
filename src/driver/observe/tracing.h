/*
 * What the driver's entries tell the trace (trace/trace.h). While one is recorded the short ways through
 * allocations and frees are not taken (capture_unusual), so that without one they have nothing to ask.
 */
#ifndef GPUCACHE_DRIVER_OBSERVE_TRACING_H
#define GPUCACHE_DRIVER_OBSERVE_TRACING_H

#include "pool/pool.h"
#include "trace/trace.h"

#include <cuda.h>

/** When the library starts. */
void tracing_start(void);

/** The pool has just handed out a block, to that call stack (stacks/stacks.h); 0: not known. */
void tracing_allocated(CUdeviceptr address, uint32_t stack);

/** pool_free(), and its record. */
int tracing_free(CUdeviceptr address);

/** A free in the order of a stream: before it, and when it has been accepted. */
struct tracing_freed {
    CUdeviceptr address;
    uint64_t ticks;
    struct pool_look look;
    bool known;
};
struct tracing_freed tracing_free_begin(CUdeviceptr address);
void tracing_free_end(const struct tracing_freed *freed, CUstream stream);

#endif
