/*
 * The program's own waits and records of whole contexts. When one of them reports a fault that ended the context, the driver
 * answers every later call with it, and so must we, who may not ask the driver at all. And a wait
 * for the whole context tells that everything freed before it is ready: an epoch that costs
 * nothing.
 */
#include "driver/capture.h"
#include "driver/context.h"
#include "driver/entries.h"
#include "driver/mempool.h"
#include "pool/pool.h"
#include "process/process.h"

CUresult hook_cuCtxSynchronize(void) {
    struct pool *pool = process_ready() ? context_whole_pool() : NULL;
    uint64_t ticket = pool ? pool_sync_begin(pool) : 0;
    CUresult r = REAL(cuCtxSynchronize)();
    if (pool && r == CUDA_SUCCESS) {
        pool_sync_end(pool, ticket);
    }
    return context_notice(mempool_waited(r));
}

/* The context may be any; only of the current one is it known here that its pool is meant. */
CUresult hook_cuCtxSynchronize_v2(CUcontext ctx) {
    CUcontext current = NULL;
    REAL(cuCtxGetCurrent)(&current);
    struct pool *pool = ctx == current && process_ready() ? context_whole_pool() : NULL;
    uint64_t ticket = pool ? pool_sync_begin(pool) : 0;
    CUresult r = REAL(cuCtxSynchronize_v2)(ctx);
    if (pool && r == CUDA_SUCCESS) {
        pool_sync_end(pool, ticket);
    }
    return context_notice(mempool_waited(r));
}

CUresult hook_cuStreamSynchronize(CUstream stream) {
    return context_notice(mempool_waited(REAL(cuStreamSynchronize)(stream)));
}

CUresult hook_cuStreamSynchronize_ptsz(CUstream stream) {
    return context_notice(mempool_waited(REAL(cuStreamSynchronize_ptsz)(stream)));
}

CUresult hook_cuEventSynchronize(CUevent event) {
    return context_notice(mempool_waited(REAL(cuEventSynchronize)(event)));
}

/* --- the program orders its context by itself --- */

/* The pool that may not order anything while the program does; held. NULL: there is none. */
static struct pool *hold_pool_of(CUcontext context, CUgreenCtx green, bool records) {
    struct pool *pool = process_ready() ? context_pool_of(context, green) : NULL;
    if (pool) {
        pool_hold(pool);
        pool_program_orders(pool, records);
    }
    return pool;
}

static CUresult let_go(struct pool *pool, CUresult r) {
    if (pool) {
        pool_release(pool);
    }
    return r;
}

CUresult hook_cuCtxRecordEvent(CUcontext ctx, CUevent event) {
    struct pool *pool = hold_pool_of(ctx, NULL, true);
    return let_go(pool, REAL(cuCtxRecordEvent)(ctx, event));
}

CUresult hook_cuCtxWaitEvent(CUcontext ctx, CUevent event) {
    struct pool *pool = hold_pool_of(ctx, NULL, false);
    return let_go(pool, REAL(cuCtxWaitEvent)(ctx, event));
}

CUresult hook_cuGreenCtxRecordEvent(CUgreenCtx green, CUevent event) {
    struct pool *pool = hold_pool_of(NULL, green, true);
    return let_go(pool, REAL(cuGreenCtxRecordEvent)(green, event));
}

CUresult hook_cuGreenCtxWaitEvent(CUgreenCtx green, CUevent event) {
    struct pool *pool = hold_pool_of(NULL, green, false);
    return let_go(pool, REAL(cuGreenCtxWaitEvent)(green, event));
}
