/*
 * The captures in progress, and the hooks that begin and end a capture.
 *
 * A lock of its own (CAPTURE in base/lock.def) protects the list of captures. Invariant:
 * `capture_active` (state/capture.h) counts a capture from before the driver begins it until after
 * the driver has ended it. While it is not 0, pools record no events.
 */
#ifndef GPUCACHE_DRIVER_HOOKS_CAPTURES_H
#define GPUCACHE_DRIVER_HOOKS_CAPTURES_H

#include "driver/state/capture.h"

struct context;
struct pool;

/**
 * Returns what the driver would answer to an allocation or free by the calling thread:
 * CUDA_SUCCESS, or CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED. With that error the driver has also
 * invalidated the capture, as it does natively. Call only while a capture is in progress, with no
 * lock held. Acquires the pool's lock.
 */
CUresult capture_verdict(struct pool *pool);

/**
 * Destroys a stream by `destroy`, and ends a capture of the stream. Returns the driver's answer.
 */
CUresult capture_destroy_stream(CUresult (*destroy)(CUstream), CUstream stream);

/** Removes the captures of a context that has ended, or of a view. Called under REGISTRY. */
void capture_forget(const struct context *context);

#endif
