/*
 * Frees in stream order: cuMemFreeAsync of a block of the pool.
 *
 * Work that the stream was told to wait for may still use the block. This work may even be
 * submitted after the free, since a stream may wait for a value in memory. An event of the context
 * would not capture it. The free is therefore deferred (pool.h) until an event of that stream has
 * completed.
 *
 * The frees of a context's streams stand in lines (deferred_lines.h), under a lock of rank DEFERRED
 * for each context. Invariant: memory of a free is reclaimed once, after the stream has reached the
 * free, or after the context of the stream has ended.
 */
#ifndef GPUCACHE_DRIVER_REUSE_DEFERRED_H
#define GPUCACHE_DRIVER_REUSE_DEFERRED_H

#include <cuda.h>

#include <stdbool.h>

struct context;

/**
 * Frees `dptr`, which lies in a pool, once `stream` reaches this point. `current` is the current
 * context, or NULL if it is not known. `record` is the driver's record function; for a NULL stream
 * it records in the thread's own stream if `per_thread`. Returns CUDA_SUCCESS,
 * CUDA_ERROR_INVALID_VALUE if no live block starts at `dptr`, CUDA_ERROR_OUT_OF_MEMORY without host
 * memory, or the driver's error code. Takes the lock.
 */
CUresult deferred_add(CUdeviceptr dptr, CUcontext current, CUstream stream, bool per_thread,
                      CUresult (*record)(CUevent, CUstream));

/**
 * Reclaims the deferred frees that their streams have reached: all of them, or a bounded number.
 * `context` is the caller's own context. With `all`, waits for the lock of that context; only tries
 * the other locks. Returns whether any free was reclaimed.
 */
bool deferred_reclaim(CUcontext context, bool all);

/**
 * Reclaims all deferred frees that their streams have reached, in a thread with any current
 * context. Call with no lock held.
 */
void deferred_reclaim_now(void);

/**
 * Suspends or resumes a context. While the context may be ending, none of its events is queried.
 */
void deferred_suspend(const struct context *context, bool suspended);

/**
 * Forgets a context that has ended: deferred frees of its blocks are dropped. Its streams ended
 * too, so the frees of other contexts' blocks in them are reclaimed.
 */
void deferred_forget(const struct context *context);

/**
 * Waits until no thread is querying events, by taking and releasing each lock. Call when a capture
 * is announced, before it begins.
 */
void deferred_capture_announced(void);

#endif
