/*
 * Hooks of the program's waits, and of context events that the program records or waits for.
 *
 * A fault: when a wait reports one, the driver answers every later call with it. The pool answers
 * without the driver, so fault_notice() records the fault for the pool.
 *
 * A wait for the whole context: all memory freed before the wait is safe when the wait returns. The
 * pool learns that from pool_sync_begin() and pool_sync_end(), without an event of its own.
 *
 * A context event of the program: the hook holds the pool's lock (pool_hold) from before the driver
 * call until the call returns.
 */
#include "driver/context/application_events.h"
#include "driver/context/context.h"
#include "driver/context/fault.h"
#include "driver/limit/driver_pools.h"
#include "driver/table/entries.h"
#include "pool/pool.h"
#include "process/helper.h"
#include "process/process.h"

/* Tells the pool, unless it is NULL, that a wait for its whole context ended. Returns `r`. */
static CUresult waited(CUresult r, struct pool *pool, uint64_t ticket) {
    helper_start_wanted();
    if (pool && r == CUDA_SUCCESS) {
        pool_sync_end(pool, ticket);
    }
    return fault_notice(driver_pool_waited(r));
}

CUresult hook_cuCtxSynchronize(void) {
    struct pool *pool = process_ready() ? context_whole_pool() : NULL;
    uint64_t ticket = pool ? pool_sync_begin(pool) : 0;
    return waited(REAL(cuCtxSynchronize)(), pool, ticket);
}

/* Waits for any context. Only for the current one the pool is known, and told about the wait. */
CUresult hook_cuCtxSynchronize_v2(CUcontext ctx) {
    CUcontext current = NULL;
    REAL(cuCtxGetCurrent)(&current);
    struct pool *pool = ctx == current && process_ready() ? context_whole_pool() : NULL;
    uint64_t ticket = pool ? pool_sync_begin(pool) : 0;
    return waited(REAL(cuCtxSynchronize_v2)(ctx), pool, ticket);
}

CUresult hook_cuStreamSynchronize(CUstream stream) {
    return fault_notice(driver_pool_waited(REAL(cuStreamSynchronize)(stream)));
}

CUresult hook_cuStreamSynchronize_ptsz(CUstream stream) {
    return fault_notice(driver_pool_waited(REAL(cuStreamSynchronize_ptsz)(stream)));
}

CUresult hook_cuEventSynchronize(CUevent event) {
    return fault_notice(driver_pool_waited(REAL(cuEventSynchronize)(event)));
}

/* --- context events of the program --- */

/*
 * Takes the lock of a pool, unless it is NULL, and tells the pool about the program's context event
 * (pool_application_syncs). Returns the pool. The caller has called application_events_note()
 * before it looked up the pool. A pool that starts in between learns of the event from one of the
 * two.
 */
static struct pool *hold(struct pool *pool, bool records) {
    if (pool) {
        pool_hold(pool);
        pool_application_syncs(pool, records);
    }
    return pool;
}

/* Holds the pool of a context. Returns NULL if the context has no pool yet. */
static struct pool *hold_pool_of(CUcontext context, bool records) {
    if (!process_ready()) {
        return NULL;
    }
    application_events_note(records);
    return hold(context_pool_of(context), records);
}

/*
 * Holds the pool of the primary context on the device of a green context: both share the order of
 * context events. Returns NULL if there is no pool yet, or if the driver does not know the device.
 */
static struct pool *hold_pool_behind(CUgreenCtx green, bool records) {
    CUcontext view, popped;
    CUdevice device;
    if (!process_ready() || REAL(cuCtxFromGreenCtx)(&view, green) != CUDA_SUCCESS ||
        REAL(cuCtxPushCurrent_v2)(view) != CUDA_SUCCESS) {
        return NULL;
    }
    CUresult r = REAL(cuCtxGetDevice)(&device);
    REAL(cuCtxPopCurrent_v2)(&popped);
    application_events_note(records);
    return r == CUDA_SUCCESS ? hold(context_primary_pool(device), records) : NULL;
}

/* Releases the lock that hold() took. Returns `r`. */
static CUresult release(struct pool *pool, CUresult r) {
    if (pool) {
        pool_release(pool);
    }
    return r;
}

CUresult hook_cuCtxRecordEvent(CUcontext ctx, CUevent event) {
    struct pool *pool = hold_pool_of(ctx, true);
    return release(pool, REAL(cuCtxRecordEvent)(ctx, event));
}

CUresult hook_cuCtxWaitEvent(CUcontext ctx, CUevent event) {
    struct pool *pool = hold_pool_of(ctx, false);
    return release(pool, REAL(cuCtxWaitEvent)(ctx, event));
}

CUresult hook_cuGreenCtxRecordEvent(CUgreenCtx green, CUevent event) {
    struct pool *pool = hold_pool_behind(green, true);
    return release(pool, REAL(cuGreenCtxRecordEvent)(green, event));
}

CUresult hook_cuGreenCtxWaitEvent(CUgreenCtx green, CUevent event) {
    struct pool *pool = hold_pool_behind(green, false);
    return release(pool, REAL(cuGreenCtxWaitEvent)(green, event));
}
