/*
 * The program's own waits and records of whole contexts. When one of them reports a fault that ended the context, the driver
 * answers every later call with it, and so must we, who may not ask the driver at all. And a wait
 * for the whole context tells that everything freed before it is ready: an epoch that costs
 * nothing.
 */
#include "driver/context/application_events.h"
#include "driver/context/context.h"
#include "driver/context/fault.h"
#include "driver/limit/driver_pools.h"
#include "driver/table/entries.h"
#include "pool/pool.h"
#include "process/helper.h"
#include "process/process.h"

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

/* The context may be any; only of the current one is it known here that its pool is meant. */
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

/* --- the program orders its context by itself --- */

/*
 * The pool that may not order anything while the program does; held. What will be told to later pools is
 * said before it is looked up, so that one which begins meanwhile hears of it here or there.
 */
static struct pool *hold(struct pool *pool, bool records) {
    if (pool) {
        pool_hold(pool);
        pool_application_syncs(pool, records);
    }
    return pool;
}

/* NULL: it has none yet. */
static struct pool *hold_pool_of(CUcontext context, bool records) {
    if (!process_ready()) {
        return NULL;
    }
    application_events_note(records);
    return hold(context_pool_of(context), records);
}

/* A green context shares the order of its device's primary one. Which device that is the driver says. */
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

static CUresult let_go(struct pool *pool, CUresult r) {
    if (pool) {
        pool_release(pool);
    }
    return r;
}

CUresult hook_cuCtxRecordEvent(CUcontext ctx, CUevent event) {
    struct pool *pool = hold_pool_of(ctx, true);
    return let_go(pool, REAL(cuCtxRecordEvent)(ctx, event));
}

CUresult hook_cuCtxWaitEvent(CUcontext ctx, CUevent event) {
    struct pool *pool = hold_pool_of(ctx, false);
    return let_go(pool, REAL(cuCtxWaitEvent)(ctx, event));
}

CUresult hook_cuGreenCtxRecordEvent(CUgreenCtx green, CUevent event) {
    struct pool *pool = hold_pool_behind(green, true);
    return let_go(pool, REAL(cuGreenCtxRecordEvent)(green, event));
}

CUresult hook_cuGreenCtxWaitEvent(CUgreenCtx green, CUevent event) {
    struct pool *pool = hold_pool_behind(green, false);
    return let_go(pool, REAL(cuGreenCtxWaitEvent)(green, event));
}
