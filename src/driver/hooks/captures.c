#include "driver/hooks/captures.h"

#include "driver/context/context.h"
#include "driver/context/device_backend.h"
#include "driver/reuse/deferred.h"
#include "heap/host.h"
#include "pool/pool.h"
#include "process/lock.h"
#include "process/process.h"

/* A stream as its capture knows it: the per-thread stream is another one in every thread. */
struct capturing {
    CUstream stream;
    CUcontext context;  /* whose end ends it */
    const void *thread; /* of a per-thread stream: something only that thread has; else NULL */
    struct capturing *next;
};

static struct capturing *captures;
static unsigned unlisted; /* captures that there was no host memory for */
static struct host_slab slab = {.object_bytes = sizeof(struct capturing)};
static struct lock lock = LOCK_INITIALIZER(CAPTURE);
static _Thread_local char this_thread __attribute__((tls_model("initial-exec")));

static struct capturing identify(CUstream stream, bool per_thread) {
    bool own = stream == CU_STREAM_PER_THREAD || (!stream && per_thread);
    return (struct capturing){.stream = own ? CU_STREAM_PER_THREAD : stream,
                              .thread = own ? &this_thread : NULL};
}

static void before(struct context *context, void *unused) {
    (void)unused;
    pool_before_capture(context->pool);
}

static void pass_by(struct context *context, void *unused) {
    (void)unused;
    pool_capture_announced(context->pool);
}

/* Before the driver begins: from here on no pool records, none is in the middle of it (they record under
 * their locks), and whoever asks an event knows that it has to be relaxed about it. */
static void enter(void) {
    context_each(before, NULL);
    atomic_fetch_add(&capture_unusual, 1);
    atomic_fetch_add(&capture_active, 1);
    capture_wait_for_holders();
    context_each(pass_by, NULL);
    deferred_capture_announced();
}

static void lower(void) {
    atomic_fetch_sub(&capture_active, 1);
    atomic_fetch_sub(&capture_unusual, 1);
}

/* Lock held. */
static void put_on(struct capturing *capture) {
    capture->next = captures;
    captures = capture;
}

/* Which need not be the current one. */
static CUcontext context_of(CUstream stream) {
    CUcontext context = NULL;
    REAL(cuCtxGetCurrent)(&context);
    if (stream) {
        REAL(cuStreamGetCtx)(stream, &context);
    }
    return context;
}

static CUresult begun(CUresult r, CUstream stream, bool per_thread, CUcontext context) {
    if (r != CUDA_SUCCESS) {
        lower();
        return r;
    }
    lock_acquire(&lock);
    struct capturing *capture = host_slab_get(&slab);
    if (capture) {
        *capture = identify(stream, per_thread);
        capture->context = context;
        put_on(capture);
    } else {
        unlisted++;
    }
    lock_release(&lock);
    return r;
}

/* Takes the stream's capture off the list; it goes on being counted. NULL: it has none. Lock held. */
static struct capturing *take_off(struct capturing which) {
    struct capturing **at = &captures;
    while (*at && ((*at)->stream != which.stream || (*at)->thread != which.thread)) {
        at = &(*at)->next;
    }
    struct capturing *found = *at;
    if (found) {
        *at = found->next;
    }
    return found;
}

/* The stream's capture is over, if it had one, as it had for certain if its end has succeeded. */
static void leave(CUstream stream, bool per_thread, bool certain) {
    lock_acquire(&lock);
    struct capturing *capture = take_off(identify(stream, per_thread));
    bool ended = capture || (certain && unlisted > 0);
    if (capture) {
        host_slab_put(&slab, capture);
    } else if (ended) {
        unlisted--;
    }
    lock_release(&lock);
    if (ended) {
        lower();
    }
}

/*
 * Off the list before the driver ends the stream: from then on another thread's new stream may have the same handle, and a capture of
 * its own.
 */
CUresult capture_destroy_stream(CUresult (*destroy)(CUstream), CUstream stream) {
    struct capturing *capture = NULL;
    if (atomic_load(&capture_active) > 0) {
        lock_acquire(&lock);
        capture = take_off(identify(stream, false));
        lock_release(&lock);
    }
    CUresult r = destroy(stream);
    if (capture) {
        lock_acquire(&lock);
        if (r != CUDA_SUCCESS) {
            put_on(capture);
        } else {
            host_slab_put(&slab, capture);
            lower();
        }
        lock_release(&lock);
    }
    return r;
}

void capture_forget(const struct context *context) {
    lock_acquire(&lock);
    for (struct capturing **at = &captures; *at;) {
        struct capturing *capture = *at;
        if (capture->context == context->handle) {
            *at = capture->next;
            host_slab_put(&slab, capture);
            lower();
        } else {
            at = &capture->next;
        }
    }
    lock_release(&lock);
}

CUresult capture_verdict(struct pool *pool) {
    const struct device_backend *backend = (struct device_backend *)pool_backend(pool);
    CUresult r = REAL(cuEventQuery)(backend->probe);
    return r == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED ? r : CUDA_SUCCESS;
}

/* --- the hooks --- */

#define BEGIN(real, stream, per_thread, arguments)                                                 \
    do {                                                                                           \
        if (!process_ready()) {                                                                    \
            return (real)arguments;                                                                \
        }                                                                                          \
        CUcontext context = context_of(stream);                                                    \
        enter();                                                                                   \
        return begun((real)arguments, stream, per_thread, context);                                \
    } while (0)

CUresult hook_cuStreamBeginCapture(CUstream stream) {
    BEGIN(REAL(cuStreamBeginCapture), stream, false, (stream));
}

CUresult hook_cuStreamBeginCapture_ptsz(CUstream stream) {
    BEGIN(REAL(cuStreamBeginCapture_ptsz), stream, true, (stream));
}

CUresult hook_cuStreamBeginCapture_v2(CUstream stream, CUstreamCaptureMode mode) {
    BEGIN(REAL(cuStreamBeginCapture_v2), stream, false, (stream, mode));
}

CUresult hook_cuStreamBeginCapture_v2_ptsz(CUstream stream, CUstreamCaptureMode mode) {
    BEGIN(REAL(cuStreamBeginCapture_v2_ptsz), stream, true, (stream, mode));
}

CUresult hook_cuStreamBeginCaptureToGraph(CUstream stream, CUgraph graph,
                                          const CUgraphNode *dependencies,
                                          const CUgraphEdgeData *edges, size_t count,
                                          CUstreamCaptureMode mode) {
    BEGIN(REAL(cuStreamBeginCaptureToGraph), stream, false,
          (stream, graph, dependencies, edges, count, mode));
}

CUresult hook_cuStreamBeginCaptureToGraph_ptsz(CUstream stream, CUgraph graph,
                                               const CUgraphNode *dependencies,
                                               const CUgraphEdgeData *edges, size_t count,
                                               CUstreamCaptureMode mode) {
    BEGIN(REAL(cuStreamBeginCaptureToGraph_ptsz), stream, true,
          (stream, graph, dependencies, edges, count, mode));
}

/* An end that fails has ended the capture all the same, unless the driver still says otherwise. */
static CUresult ended(CUresult r, CUstream stream, bool per_thread,
                      CUresult (*is_capturing)(CUstream, CUstreamCaptureStatus *)) {
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    if (r != CUDA_SUCCESS) {
        is_capturing(stream, &status);
    }
    if (status == CU_STREAM_CAPTURE_STATUS_NONE) {
        leave(stream, per_thread, r == CUDA_SUCCESS);
    }
    return r;
}

CUresult hook_cuStreamEndCapture(CUstream stream, CUgraph *graph) {
    return ended(REAL(cuStreamEndCapture)(stream, graph), stream, false, REAL(cuStreamIsCapturing));
}

CUresult hook_cuStreamEndCapture_ptsz(CUstream stream, CUgraph *graph) {
    return ended(REAL(cuStreamEndCapture_ptsz)(stream, graph), stream, true,
                 REAL(cuStreamIsCapturing_ptsz));
}
