/* A wait for the work of a device that is allowed while a stream is being captured. */
#ifndef GPUCACHE_DRIVER_LIMIT_WAIT_BY_FREE_H
#define GPUCACHE_DRIVER_LIMIT_WAIT_BY_FREE_H

#include <cuda.h>

/**
 * Waits for all work of a context's device by freeing memory that nobody uses. Call it where
 * capture_hold_off() has refused: a capture forbids waits for a context, and allows this thread's
 * calls in relaxed mode. The context need not be current.
 *
 * The memory counts against the limit while it is there. Where the limit or the driver has none
 * left, pinned memory takes its place, whose free waits as well (tests/sim/probe-h200.txt).
 * CUDA_SUCCESS, or the driver's code.
 */
CUresult wait_by_free(CUcontext context);

#endif
