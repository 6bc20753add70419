#include "driver/across.h"

#include "driver/capture.h"
#include "driver/device_pool.h"
#include "driver/entries.h"
#include "pool/backend.h"
#include "pool/pool.h"

static bool in_pages(struct pool *pool) {
    return pool && backend_maps(pool_backend(pool));
}

/* The context that owns a pool's pages, if it lives and `here` is neither that one nor a view of it; else NULL. */
static CUcontext owner_of(struct pool *pool, CUcontext here) {
    if (!in_pages(pool) || pool_backend(pool)->quiet) {
        return NULL;
    }
    CUcontext owner = device_pool_context(pool);
    return owner != here && context_pool_of(here) != pool ? owner : NULL;
}

/*
 * Natively the copy would stand in that stream, so this waits for nothing that it would not. What the context has to say of a
 * fault of its own is not this call's answer: it says so again. Beside a capture of a blocking stream there a wait for the null
 * stream would end the capture; the question would not (cuda.h).
 */
static void wait_for(CUcontext owner) {
    CUcontext popped;
    CUstreamCaptureStatus status;
    CUstreamCaptureMode mode = capture_relax();
    if (REAL(cuCtxPushCurrent_v2)(owner) == CUDA_SUCCESS) {
        if (atomic_load(&capture_active) == 0 ||
            REAL(cuStreamIsCapturing)(CU_STREAM_LEGACY, &status) == CUDA_SUCCESS) {
            REAL(cuStreamSynchronize)(CU_STREAM_LEGACY);
        }
        REAL(cuCtxPopCurrent_v2)(&popped);
    }
    capture_restore(mode);
}

/* A copy that has an error to answer, since nothing is current or the context has had a fault, waits for nobody. */
__attribute__((noinline)) void across_wait(struct pool *const pools[2]) {
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
    if (to) {
        wait_for(to);
    }
    if (from && from != to) {
        wait_for(from);
    }
}
