/*
 * A wait for the work of a context's device that is allowed while a stream is being captured.
 * src/backend/common.c and ipc_pages.c call it. It takes no lock.
 */
#ifndef GPUCACHE_DRIVER_LIMIT_WAIT_BY_FREE_H
#define GPUCACHE_DRIVER_LIMIT_WAIT_BY_FREE_H

#include <cuda.h>

/**
 * Waits for all work of a context's device by freeing memory that no work uses. Call it if
 * capture_hold_off() has refused: a capture forbids waits for a context, but allows this thread's
 * calls in relaxed mode. The context need not be current.
 *
 * Charges the memory against the limit until it is freed. If the limit or the driver has no memory
 * left, uses pinned memory instead, whose free waits too (tests/sim/probe-h200.txt). Returns
 * CUDA_SUCCESS or the driver's error code.
 */
CUresult wait_by_free(CUcontext context);

#endif
