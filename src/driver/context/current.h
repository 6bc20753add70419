/*
 * Queries the current context, and makes another one current on the calling thread temporarily.
 *
 * These functions call the driver, not the library's hooks: a context that only the library uses
 * does not count as active (active_contexts.h). This file has no state and no lock.
 */
#ifndef GPUCACHE_DRIVER_CONTEXT_CURRENT_H
#define GPUCACHE_DRIVER_CONTEXT_CURRENT_H

#include "driver/table/entries.h"

/**
 * Returns the driver's present answer to calls of the current context: the code of a fault or of a
 * missing context. CUDA_SUCCESS: the context works. Takes some ns.
 */
static inline CUresult current_health(void) {
    int least, greatest;
    return REAL(cuCtxGetStreamPriorityRange)(&least, &greatest); /* the cheapest call */
}

/** Makes a context or view current on the calling thread. Returns the driver's answer. After
 * CUDA_SUCCESS the caller must call current_pop() on the same thread. */
static inline CUresult current_push(CUcontext context) {
    return REAL(cuCtxPushCurrent_v2)(context);
}

/** Makes the context current again that was current before current_push(). */
static inline void current_pop(void) {
    CUcontext popped;
    REAL(cuCtxPopCurrent_v2)(&popped);
}

/** Returns the device of a context or view, or -1 if the driver refuses. */
static inline CUdevice current_device_of(CUcontext context) {
    CUdevice device = -1;
    if (current_push(context) == CUDA_SUCCESS) {
        if (REAL(cuCtxGetDevice)(&device) != CUDA_SUCCESS)
            device = -1;
        current_pop();
    }
    return device;
}

/** Waits for all work of a context. No capture may be in progress, or begin meanwhile
 * (capture_hold_off). Returns the driver's answer. */
static inline CUresult current_synchronize(CUcontext context) {
    CUresult r = current_push(context);
    if (r == CUDA_SUCCESS) {
        r = REAL(cuCtxSynchronize)();
        current_pop();
    }
    return r;
}

#endif
