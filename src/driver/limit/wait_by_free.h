/*
 * Waits for the work of a context's device even while a stream is being captured.
 * backend/common.c and ipc/ipc_pages.c call this file. It takes no lock.
 */
#ifndef GPUCACHE_DRIVER_LIMIT_WAIT_BY_FREE_H
#define GPUCACHE_DRIVER_LIMIT_WAIT_BY_FREE_H

#include <cuda.h>

/**
 * Waits for all work of a context's device by freeing memory that no work uses: the driver's free
 * waits. Call it if capture_hold_off() returned false: a capture forbids waits for a context, but
 * allows frees of this thread in relaxed mode. The context need not be current.
 *
 * Charges the memory against the limit until it is freed. If the limit or the driver has no memory
 * left, uses pinned memory instead, whose free waits too (tests/sim/probe-h200.txt). Returns
 * CUDA_SUCCESS or the driver's error code.
 */
CUresult wait_by_free(CUcontext context);

#endif
