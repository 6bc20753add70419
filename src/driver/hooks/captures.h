/* The list of captures under way, and the entries that begin and end them. */
#ifndef GPUCACHE_DRIVER_HOOKS_CAPTURES_H
#define GPUCACHE_DRIVER_HOOKS_CAPTURES_H

#include "driver/state/capture.h"

struct context;
struct pool;

/**
 * What the driver says of an allocation or free made now by this thread: CUDA_SUCCESS, or the error
 * that it has then also dealt out to the capture, as it does natively. Only asked while a capture
 * is under way.
 */
CUresult capture_verdict(struct pool *pool);

/** Lets the driver destroy a stream; a capture it had ends with it. */
CUresult capture_destroy_stream(CUresult (*destroy)(CUstream), CUstream stream);

/** A context has ended, and its captures with it. */
void capture_forget(const struct context *context);

#endif
