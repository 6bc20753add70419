/*
 * The program's streams. How many there are tells the pools how much room keeps them side by side; and the end of a stream is the
 * end of its capture.
 */
#include "driver/context/active_contexts.h"
#include "driver/context/context.h"
#include "driver/hooks/captures.h"
#include "driver/limit/retry.h"
#include "driver/table/entries.h"
#include "pool/pool.h"
#include "process/process.h"

static _Atomic int streams;

static CUresult created(CUresult r) {
    if (r == CUDA_SUCCESS && process_ready()) {
        pool_expect_streams((unsigned)(atomic_fetch_add(&streams, 1) + 1));
        if (active_contexts_stay()) {
            context_drain_barriers();
        }
    }
    return r;
}

static CUresult destroyed(CUresult r) {
    if (r == CUDA_SUCCESS && atomic_load(&process_state) == PROCESS_STARTED) {
        int left = atomic_fetch_sub(&streams, 1) - 1;
        pool_expect_streams(left > 0 ? (unsigned)left : 0);
    }
    return r;
}

CUresult hook_cuStreamCreate(CUstream *stream, unsigned int flags) {
    return created(RETRY(REAL(cuStreamCreate)(stream, flags)));
}

CUresult hook_cuStreamCreateWithPriority(CUstream *stream, unsigned int flags, int priority) {
    return created(RETRY(REAL(cuStreamCreateWithPriority)(stream, flags, priority)));
}

CUresult hook_cuStreamDestroy(CUstream stream) {
    return destroyed(capture_destroy_stream(REAL(cuStreamDestroy), stream));
}

CUresult hook_cuStreamDestroy_v2(CUstream stream) {
    return destroyed(capture_destroy_stream(REAL(cuStreamDestroy_v2), stream));
}
