/*
 * Frees blocks of a pool in stream order (cuMemFreeAsync).
 *
 * The stream may have to wait for work that still uses the block. Such work may even be submitted
 * after the free, because a stream may wait for a value in memory. An event of the context would
 * not capture such work. The free is therefore deferred (pool.h) until an event of its stream
 * completes.
 *
 * Each stream has a queue of deferred frees (stream_queues.h). A lock of rank DEFERRED protects
 * the queues of one context. Invariant: a free's memory is reclaimed once, after the stream has
 * reached the free, or after the context of the stream has ended. Hooks, oom_retry.c,
 * backend/common.c and the context callbacks call this file.
 */
#ifndef GPUCACHE_DRIVER_REUSE_DEFERRED_H
#define GPUCACHE_DRIVER_REUSE_DEFERRED_H

#include <cuda.h>

#include <stdbool.h>

struct context;

/**
 * Frees `dptr`, which lies in a pool, once `stream` reaches this point. `current` is the current
 * context; NULL: unknown. `record` is the driver's record function. With `per_thread`, a NULL
 * stream means the thread's own stream. Uses the queues of `current`, or those of the stream's own
 * context if the driver refuses `current` or `current` is a view. Acquires their lock; call with no
 * lock held. Returns CUDA_SUCCESS, CUDA_ERROR_INVALID_VALUE if no live block starts at `dptr`,
 * CUDA_ERROR_OUT_OF_MEMORY without host memory, CUDA_ERROR_INVALID_HANDLE if no context is current,
 * or the driver's error code.
 */
CUresult deferred_add(CUdeviceptr dptr, CUcontext current, CUstream stream, bool per_thread,
                      CUresult (*record)(CUevent, CUstream));

/**
 * Reclaims deferred frees that their streams have reached: all, or without `all` a bounded number.
 * `context` is that of the calling pool, or the current one. With `all`, waits for the lock of
 * `context`; only tries all other locks. Reclaiming acquires locks of pools: call with no lock
 * held. Returns whether any free was reclaimed.
 */
bool deferred_reclaim(CUcontext context, bool all);

/**
 * Does deferred_reclaim() with `all` for the thread's current context, if any. Returns whether any
 * free was reclaimed. Call with no lock held.
 */
bool deferred_reclaim_now(void);

/**
 * Suspends or resumes a context. The events of a suspended context are not queried.
 * Acquires the lock of the context's queues; does nothing if it has none yet.
 */
void deferred_suspend(const struct context *context, bool suspended);

/**
 * Forgets a context that has ended. Drops the deferred frees of its blocks. Reclaims the frees of
 * other contexts' blocks in its streams, which have ended too. Waits for the locks of all contexts,
 * one after another. Called under the lock REGISTRY, as deferred_suspend() is.
 */
void deferred_forget(const struct context *context);

/**
 * Acquires and releases each lock, so no thread still queries an event that it began to query
 * before the call. Call when a capture is announced, before it begins.
 */
void deferred_capture_announced(void);

#endif
