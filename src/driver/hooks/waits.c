/*
 * Hooks of the program's waits, and of context events that the program records or waits for.
 *
 * A fault: when a wait reports one, the driver answers every later call with it. The pool answers
 * without the driver, so fault_notice() records the fault for the pool.
 *
 * A wait for the whole context: all memory freed before the wait is safe when the wait returns. The
 * pool learns that from pool_sync_begin() and pool_sync_end(), without an event of its own.
 *
 * A context event of the program: the hook holds the pool's lock (pool_lock) from before the driver
 * call until the call returns. The pool records no event in that time. If the context has no pool
 * yet, the hook holds no lock; application_events_tell() tells a later pool.
 */
#include "driver/context/application_events.h"
#include "driver/context/context.h"
#include "driver/context/current.h"
#include "driver/context/fault.h"
#include "driver/limit/driver_pools.h"
#include "driver/table/entries.h"
#include "pool/pool.h"
#include "process/helper.h"
#include "process/process.h"

/* Tells the pool, unless it is NULL, that a wait for its whole context ended. Returns `answer`. */
static CUresult account_context_wait(CUresult answer, struct pool *pool, uint64_t ticket) {
    helper_start_requested();
    if (pool && answer == CUDA_SUCCESS)
        pool_sync_end(pool, ticket);
    return fault_notice(driver_pool_waited(answer));
}

CUresult hook_cuCtxSynchronize(void) {
    struct pool *pool = context_whole_pool();
    uint64_t ticket = pool ? pool_sync_begin(pool) : 0;
    CUresult answer = REAL(cuCtxSynchronize)();
    return account_context_wait(answer, pool, ticket);
}

/* Waits for any context. Tells the pool about the wait only if `ctx` is the current context: the
 * pool of another context is not looked up. */
CUresult hook_cuCtxSynchronize_v2(CUcontext ctx) {
    CUcontext current = NULL;
    REAL(cuCtxGetCurrent)(&current);
    struct pool *pool = ctx == current && process_ready() ? context_whole_pool() : NULL;
    uint64_t ticket = pool ? pool_sync_begin(pool) : 0;
    CUresult answer = REAL(cuCtxSynchronize_v2)(ctx);
    return account_context_wait(answer, pool, ticket);
}

CUresult hook_cuStreamSynchronize(CUstream stream) {
    CUresult answer = REAL(cuStreamSynchronize)(stream);
    return fault_notice(driver_pool_waited(answer));
}

CUresult hook_cuStreamSynchronize_ptsz(CUstream stream) {
    CUresult answer = REAL(cuStreamSynchronize_ptsz)(stream);
    return fault_notice(driver_pool_waited(answer));
}

CUresult hook_cuEventSynchronize(CUevent event) {
    CUresult answer = REAL(cuEventSynchronize)(event);
    return fault_notice(driver_pool_waited(answer));
}

/* --- context events of the program --- */

/*
 * Takes the lock of a pool, unless it is NULL, and tells the pool about the program's context event
 * (pool_application_syncs). Returns the pool. The caller has called application_events_note()
 * before it looked up the pool: a pool that starts in between learns of the event from one of the
 * two calls.
 */
static struct pool *enter_pool(struct pool *pool, bool records) {
    if (pool) {
        pool_lock(pool);
        pool_application_syncs(pool, records);
    }
    return pool;
}

/* Holds the pool of a context. Returns NULL if the context has no pool yet. */
static struct pool *enter_pool_of(CUcontext context, bool records) {
    if (!process_ready())
        return NULL;
    application_events_note(records);
    return enter_pool(context_pool_of(context), records);
}

/*
 * Holds the pool of the primary context on the device of a green context: both share the order of
 * context events. Returns NULL if there is no pool yet, or if the driver does not know the device.
 */
static struct pool *enter_pool_behind(CUgreenCtx green, bool records) {
    CUcontext view;
    if (!process_ready() || REAL(cuCtxFromGreenCtx)(&view, green) != CUDA_SUCCESS)
        return NULL;
    CUdevice device = current_device_of(view);
    application_events_note(records);
    return device >= 0 ? enter_pool(context_primary_pool(device), records) : NULL;
}

/* Releases the lock that enter_pool() took, and notices a fault. Returns `answer`. */
static CUresult account_released(CUresult answer, struct pool *pool) {
    if (pool)
        pool_unlock(pool);
    return fault_notice(answer);
}

CUresult hook_cuCtxRecordEvent(CUcontext ctx, CUevent event) {
    struct pool *pool = enter_pool_of(ctx, true);
    CUresult answer = REAL(cuCtxRecordEvent)(ctx, event);
    return account_released(answer, pool);
}

CUresult hook_cuCtxWaitEvent(CUcontext ctx, CUevent event) {
    struct pool *pool = enter_pool_of(ctx, false);
    CUresult answer = REAL(cuCtxWaitEvent)(ctx, event);
    return account_released(answer, pool);
}

CUresult hook_cuGreenCtxRecordEvent(CUgreenCtx green, CUevent event) {
    struct pool *pool = enter_pool_behind(green, true);
    CUresult answer = REAL(cuGreenCtxRecordEvent)(green, event);
    return account_released(answer, pool);
}

CUresult hook_cuGreenCtxWaitEvent(CUgreenCtx green, CUevent event) {
    struct pool *pool = enter_pool_behind(green, false);
    CUresult answer = REAL(cuGreenCtxWaitEvent)(green, event);
    return account_released(answer, pool);
}
