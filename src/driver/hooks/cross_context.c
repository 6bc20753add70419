#include "driver/hooks/cross_context.h"

#include "driver/context/device_pool.h"
#include "driver/state/capture.h"
#include "driver/table/entries.h"
#include "pool/pool.h"
#include "source/backend.h"

static bool in_pages(struct pool *pool) {
    return pool && backend_maps(pool_backend(pool));
}

/* The context that owns a pool's pages, if it lives and `here` is neither that one nor a view of it; else NULL. */
static CUcontext owner_of(struct pool *pool, CUcontext here) {
    if (!in_pages(pool) || pool_backend(pool)->suspended) {
        return NULL;
    }
    CUcontext owner = device_pool_context(pool);
    return owner != here && context_pool_of(here) != pool ? owner : NULL;
}

/* An event in the owner's null stream, which stands behind its blocking streams too; NULL: there can be none. Beside a capture
 * of a blocking stream there it would end the capture; the question does not (facts_order.cu, `across`). */
static CUevent event_in_null_stream_of(CUcontext owner) {
    CUcontext popped;
    CUstreamCaptureStatus status;
    CUevent event = NULL;
    if (REAL(cuCtxPushCurrent_v2)(owner) != CUDA_SUCCESS) {
        return NULL;
    }
    bool may = atomic_load(&capture_active) == 0 ||
               REAL(cuStreamIsCapturing)(CU_STREAM_LEGACY, &status) == CUDA_SUCCESS;
    if (may && REAL(cuEventCreate)(&event, CU_EVENT_DISABLE_TIMING) == CUDA_SUCCESS &&
        REAL(cuEventRecord)(event, CU_STREAM_LEGACY) != CUDA_SUCCESS) {
        REAL(cuEventDestroy_v2)(event);
        event = NULL;
    }
    REAL(cuCtxPopCurrent_v2)(&popped);
    return event;
}

/*
 * Natively the copy would stand in that stream, so this waits for nothing that it would not: the calling thread for what a copy
 * from or to the host waits for, and the device for what a copy between blocks does. What the context has to say of a fault of
 * its own is not this call's answer: it says so again.
 */
static void wait_for(CUcontext owner, bool on_device) {
    CUstreamCaptureMode mode = capture_relax();
    CUevent event = event_in_null_stream_of(owner);
    if (event) {
        if (!on_device || REAL(cuStreamWaitEvent)(CU_STREAM_LEGACY, event, 0) != CUDA_SUCCESS) {
            REAL(cuEventSynchronize)(event);
        }
        REAL(cuEventDestroy_v2)(event);
    }
    capture_restore(mode);
}

/* A copy that has an error to answer, since nothing is current or the context has had a fault, waits for nobody. */
__attribute__((noinline)) void cross_context_wait(struct pool *const pools[2]) {
    CUcontext here = NULL;
    int least, greatest;
    if ((!in_pages(pools[0]) && !in_pages(pools[1])) ||
        REAL(cuCtxGetCurrent)(&here) != CUDA_SUCCESS || !here) {
        return;
    }
    CUcontext to = owner_of(pools[0], here), from = owner_of(pools[1], here);
    if ((!to && !from) || REAL(cuCtxGetStreamPriorityRange)(&least, &greatest) != CUDA_SUCCESS) {
        return;
    }
    bool on_device = pools[0] && pools[1];
    if (to) {
        wait_for(to, on_device);
    }
    if (from && from != to) {
        wait_for(from, on_device);
    }
}
