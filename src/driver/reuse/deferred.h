/*
 * Frees in the order of a stream: cuMemFreeAsync of a block of the pool.
 *
 * Such a block is still in use by everything the stream was told to wait for, also by work that is
 * submitted only later (a stream may wait for a value in memory). So no event of the context will
 * do: the block is retired (pool.h) until an event of that very stream has finished.
 *
 *      line of a stream      free 1   free 2   free 3 ... free 9
 *      its events            |------- 0|------- 1|------------ 2, recorded again with every free
 *
 * Each stream has a line of its own: one that is stuck holds up no other. A line has a few events,
 * and each of them covers the frees up to its last record. When all are under way the newest is
 * recorded again, since it then captures all that it did before. The older ones stay as they are, so a
 * stream that is never idle still gives memory back. A free costs one record, whatever is pending.
 *
 * A stream's handle may come back as that of another one, on which an event must not be recorded again:
 * it would no longer tell of the first. So lines go by the stream's number, which the driver never uses
 * twice, and only exist while there is something in them. Events belong to a context and end with it:
 * lines, and events that are not in use, are kept by context.
 */
#ifndef GPUCACHE_DRIVER_REUSE_DEFERRED_H
#define GPUCACHE_DRIVER_REUSE_DEFERRED_H

#include <cuda.h>

#include <stdbool.h>

struct context;

/**
 * Frees `dptr`, which lies in a pool, once `stream` gets to this point. `current` is the current
 * context, NULL if that is not known. `record` is the driver's; by NULL it means the thread's own
 * stream if `per_thread`. CUDA_ERROR_INVALID_VALUE: no live block starts there.
 */
CUresult deferred_add(CUdeviceptr dptr, CUcontext current, CUstream stream, bool per_thread,
                      CUresult (*record)(CUevent, CUstream));

/** Gives back what streams have got to: all there is, or a little. `context` is the caller's own. True
 * if there was anything. */
bool deferred_reclaim(CUcontext context, bool all);

/** All that streams have got to, from a thread that may have any context current. With no lock held. */
void deferred_reclaim_now(void);

/** The context may be ending: nothing is asked of what belongs to it. Or it lives on. */
void deferred_suspend(const struct context *context, bool suspended);

/** A context has ended: its blocks are gone, its streams too, and what other contexts' blocks waited for
 * in them. */
void deferred_forget(const struct context *context);

/** Returns when nobody is in the middle of asking an event. */
void deferred_capture_announced(void);

#endif
