/*
 * Hooks that create and destroy streams. Called with no lock held.
 *
 * The pools learn the number of streams (pool_expect_streams): streams that work at the same time
 * need more memory, so the pools may grow further. The end of a stream also ends its capture.
 */
#include "driver/hooks/stream.h"

#include "driver/context/active_contexts.h"
#include "driver/context/context.h"
#include "driver/context/fault.h"
#include "driver/hooks/captures.h"
#include "driver/limit/retry.h"
#include "driver/table/entries.h"
#include "pool/pool.h"
#include "process/process.h"

static _Atomic int streams;

static CUresult count_created(CUresult answer) {
    if (answer == CUDA_SUCCESS && process_ready())
        pool_expect_streams((unsigned)(atomic_fetch_add(&streams, 1) + 1));
    return fault_notice(answer);
}

/* Counts a new stream of the current context. Drains barriers if the stream keeps the context
 * active: the context can now reach memory that was handed out behind a barrier of another context.
 * Returns `answer`. */
static CUresult account_created(CUresult answer) {
    if (answer == CUDA_SUCCESS && process_ready() && active_contexts_keep_current())
        context_drain_barriers();
    return count_created(answer);
}

/* Stops counting a stream. Returns `answer`. */
static CUresult account_destroyed(CUresult answer) {
    if (answer == CUDA_SUCCESS && process_is_started()) {
        /* Never below 0: stream_forget() may have forgotten the stream already. */
        int before = atomic_load(&streams);
        while (before > 0 && !atomic_compare_exchange_weak(&streams, &before, before - 1)) {
        }
        pool_expect_streams(before > 0 ? (unsigned)before - 1 : 0);
    }
    return fault_notice(answer);
}

/* The streams of a context end with it, without a call that account_destroyed() sees. Without any
 * context no stream exists, so the count restarts at 0. */
void stream_forget(const struct context *context) {
    (void)context;
    if (context_count() == 0) {
        atomic_store(&streams, 0);
        pool_expect_streams(0);
    }
}

CUresult hook_cuStreamCreate(CUstream *stream, unsigned int flags) {
    CUresult answer = RETRY(REAL(cuStreamCreate)(stream, flags));
    return account_created(answer);
}

CUresult hook_cuStreamCreateWithPriority(CUstream *stream, unsigned int flags, int priority) {
    CUresult answer = RETRY(REAL(cuStreamCreateWithPriority)(stream, flags, priority));
    return account_created(answer);
}

CUresult hook_cuGreenCtxStreamCreate(CUstream *stream, CUgreenCtx green, unsigned int flags,
                                     int priority) {
    CUresult answer = RETRY(REAL(cuGreenCtxStreamCreate)(stream, green, flags, priority));
    return count_created(answer);
}

CUresult hook_cuStreamDestroy(CUstream stream) {
    CUresult answer = capture_destroy_stream(REAL(cuStreamDestroy), stream);
    return account_destroyed(answer);
}

CUresult hook_cuStreamDestroy_v2(CUstream stream) {
    CUresult answer = capture_destroy_stream(REAL(cuStreamDestroy_v2), stream);
    return account_destroyed(answer);
}
