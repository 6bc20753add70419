#include "driver/hooks/cross_context.h"

#include "driver/context/current.h"
#include "driver/context/device_pool.h"
#include "driver/state/capture.h"
#include "driver/table/entries.h"
#include "pool/pool.h"
#include "source/backend.h"

static bool is_vmm(struct pool *pool) {
    return pool && backend_maps(pool_backend(pool));
}

/*
 * Returns the context of a vmm pool, or NULL for any other pool. Returns NULL if the context may be
 * ending. Returns NULL if `here` is that context or a view of it: the driver then orders the copy.
 */
static CUcontext other_context_of(struct pool *pool, CUcontext here) {
    if (!is_vmm(pool) || pool_backend(pool)->suspended)
        return NULL;
    CUcontext owner = context_of_pool(pool);
    return owner != here && context_pool_of(here) != pool ? owner : NULL;
}

/*
 * Records an event in the owner's null stream, which also waits for the owner's blocking streams.
 * Returns NULL if the driver refuses. Also returns NULL while a blocking stream of the owner is
 * being captured: the record would end the capture. cuStreamIsCapturing() of the null stream
 * reports such a capture without ending it (tests/gpu/facts_order.cu, section `across`).
 */
static CUevent event_in_null_stream_of(CUcontext owner) {
    CUstreamCaptureStatus status;
    CUevent event = NULL;
    if (current_push(owner) != CUDA_SUCCESS)
        return NULL;
    bool may = atomic_load(&capture_active) == 0 ||
               REAL(cuStreamIsCapturing)(CU_STREAM_LEGACY, &status) == CUDA_SUCCESS;
    if (may && REAL(cuEventCreate)(&event, CU_EVENT_DISABLE_TIMING) == CUDA_SUCCESS &&
        REAL(cuEventRecord)(event, CU_STREAM_LEGACY) != CUDA_SUCCESS) {
        REAL(cuEventDestroy_v2)(event);
        event = NULL;
    }
    current_pop();
    return event;
}

/*
 * Makes the device, or else the calling thread, wait for the owner's null stream. Natively the copy
 * runs after the same work, so the wait cannot hang where the native copy would not. Ignores a
 * fault of the owner: the fault is no answer to this copy, and the owner reports it again.
 */
static void wait_for(CUcontext owner, bool on_device) {
    CUstreamCaptureMode mode = capture_relax();
    CUevent event = event_in_null_stream_of(owner);
    if (event) {
        if (!on_device || REAL(cuStreamWaitEvent)(CU_STREAM_LEGACY, event, 0) != CUDA_SUCCESS)
            REAL(cuEventSynchronize)(event);
        REAL(cuEventDestroy_v2)(event);
    }
    capture_restore(mode);
}

/* Does not wait if no context is current or the current one has a fault: the copy will fail. */
__attribute__((noinline)) void cross_context_wait(struct pool *const pools[2]) {
    CUcontext here = NULL;
    if ((!is_vmm(pools[0]) && !is_vmm(pools[1])) || REAL(cuCtxGetCurrent)(&here) != CUDA_SUCCESS ||
        !here)
        return;
    CUcontext to = other_context_of(pools[0], here), from = other_context_of(pools[1], here);
    if ((!to && !from) || current_health() != CUDA_SUCCESS)
        return;
    bool on_device = pools[0] && pools[1];
    if (to)
        wait_for(to, on_device);
    if (from && from != to)
        wait_for(from, on_device);
}
