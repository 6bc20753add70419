#include "driver/capture.h"

#include "driver/context.h"
#include "pool/pool.h"
#include "process/process.h"

#include <pthread.h>
#include <sched.h>

#define CAPTURES_MAX 256

/* A stream as its capture knows it: the per-thread stream is another one in every thread. */
struct capturing {
    CUstream stream;
    CUcontext context;  /* whose end ends it */
    const void *thread; /* of a per-thread stream: something only that thread has; else NULL */
};

_Atomic unsigned capture_active, capture_unusual;

static struct capturing captures[CAPTURES_MAX];
static unsigned capture_count;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static _Thread_local char this_thread __attribute__((tls_model("initial-exec")));

static struct capturing identify(CUstream stream, bool per_thread) {
    bool own = stream == CU_STREAM_PER_THREAD || (!stream && per_thread);
    struct capturing which = {.stream = own ? CU_STREAM_PER_THREAD : stream,
                              .thread = own ? &this_thread : NULL};
    REAL(cuCtxGetCurrent)(&which.context);
    return which;
}

static void pass_by(struct context *context, void *unused) {
    (void)unused;
    pool_hold(context->pool);
    pool_release(context->pool);
}

static _Atomic unsigned held_off;

bool capture_hold_off(void) {
    atomic_fetch_add(&held_off, 1);
    if (atomic_load(&capture_active) > 0) {
        atomic_fetch_sub(&held_off, 1);
        return false;
    }
    return true;
}

void capture_let_go(void) {
    atomic_fetch_sub(&held_off, 1);
}

/* Before the driver begins: from here on no pool records, and none is in the middle of it (they
 * record under their locks). */
static void enter(void) {
    atomic_fetch_add(&capture_unusual, 1);
    atomic_fetch_add(&capture_active, 1);
    while (atomic_load(&held_off) > 0) {
        sched_yield(); /* as long as a native free of another thread would have held this one up */
    }
    context_each(pass_by, NULL);
}

static CUresult begun(CUresult r, CUstream stream, bool per_thread) {
    if (r != CUDA_SUCCESS) {
        atomic_fetch_sub(&capture_active, 1);
        atomic_fetch_sub(&capture_unusual, 1);
        return r;
    }
    pthread_mutex_lock(&lock);
    if (capture_count < CAPTURES_MAX) {
        captures[capture_count++] = identify(stream, per_thread);
    }
    pthread_mutex_unlock(&lock);
    return r;
}

/* Lock held. */
static void end_capture(unsigned i) {
    captures[i] = captures[--capture_count];
    atomic_fetch_sub(&capture_active, 1);
    atomic_fetch_sub(&capture_unusual, 1);
}

/* The stream's capture is over, if it had one. */
static void leave(CUstream stream, bool per_thread) {
    struct capturing which = identify(stream, per_thread);
    pthread_mutex_lock(&lock);
    for (unsigned i = 0; i < capture_count; i++) {
        if (captures[i].stream == which.stream && captures[i].thread == which.thread) {
            end_capture(i);
            break;
        }
    }
    pthread_mutex_unlock(&lock);
}

/* Takes the stream's capture off the list, if it has one; it goes on being counted. */
static bool take_off(CUstream stream, struct capturing *taken) {
    bool found = false;
    pthread_mutex_lock(&lock);
    for (unsigned i = 0; i < capture_count && !found; i++) {
        if (captures[i].stream == stream && !captures[i].thread) {
            *taken = captures[i];
            captures[i] = captures[--capture_count];
            found = true;
        }
    }
    pthread_mutex_unlock(&lock);
    return found;
}

/*
 * Off the list before the driver ends the stream: from then on another thread's new stream may have the same handle, and a capture of
 * its own.
 */
CUresult capture_destroy_stream(CUresult (*destroy)(CUstream), CUstream stream) {
    struct capturing taken;
    bool capturing = atomic_load(&capture_active) > 0 && take_off(stream, &taken);
    CUresult r = destroy(stream);
    if (capturing && r != CUDA_SUCCESS) {
        pthread_mutex_lock(&lock);
        if (capture_count < CAPTURES_MAX) {
            captures[capture_count++] = taken;
        }
        pthread_mutex_unlock(&lock);
    } else if (capturing) {
        atomic_fetch_sub(&capture_active, 1);
        atomic_fetch_sub(&capture_unusual, 1);
    }
    return r;
}

void capture_forget(CUcontext context) {
    pthread_mutex_lock(&lock);
    for (unsigned i = capture_count; i-- > 0;) {
        if (captures[i].context == context) {
            end_capture(i);
        }
    }
    pthread_mutex_unlock(&lock);
}

CUresult capture_verdict(struct pool *pool) {
    struct segments *backend = (struct segments *)pool_backend(pool);
    CUresult r = REAL(cuEventQuery)(backend->probe);
    return r == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED ? r : CUDA_SUCCESS;
}

/* --- the hooks --- */

#define BEGIN(real, stream, per_thread, arguments)                                                 \
    do {                                                                                           \
        if (!process_ready()) {                                                                    \
            return (real)arguments;                                                                \
        }                                                                                          \
        enter();                                                                                   \
        return begun((real)arguments, stream, per_thread);                                         \
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
CUresult hook_cuStreamEndCapture(CUstream stream, CUgraph *graph) {
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    CUresult r = REAL(cuStreamEndCapture)(stream, graph);
    if (r != CUDA_SUCCESS) {
        REAL(cuStreamIsCapturing)(stream, &status);
    }
    if (status == CU_STREAM_CAPTURE_STATUS_NONE) {
        leave(stream, false);
    }
    return r;
}

CUresult hook_cuStreamEndCapture_ptsz(CUstream stream, CUgraph *graph) {
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    CUresult r = REAL(cuStreamEndCapture_ptsz)(stream, graph);
    if (r != CUDA_SUCCESS) {
        REAL(cuStreamIsCapturing_ptsz)(stream, &status);
    }
    if (status == CU_STREAM_CAPTURE_STATUS_NONE) {
        leave(stream, true);
    }
    return r;
}
