#include "driver/hooks/captures.h"

#include "base/lock.h"
#include "driver/context/context.h"
#include "driver/context/device_backend.h"
#include "driver/hooks/hook.h"
#include "driver/limit/driver_pools.h"
#include "driver/reuse/deferred.h"
#include "driver/state/fast_path.h"
#include "heap/host.h"
#include "pool/pool.h"

/* A capture in progress. CU_STREAM_PER_THREAD is a different stream in each thread and context. */
struct capturing {
    CUstream stream;
    CUcontext context;  /* context of the stream: its end ends the capture */
    const void *thread; /* of CU_STREAM_PER_THREAD: &this_thread in its thread; else NULL */
    struct capturing *next;
};

static struct capturing *captures;
static unsigned unlisted; /* captures missing from the list, for lack of host memory */
static struct host_freelist freelist = {.object_bytes = sizeof(struct capturing)};
static struct lock lock = LOCK_INITIALIZER(CAPTURE);
/* Its address identifies the thread. */
static _Thread_local char this_thread __attribute__((tls_model("initial-exec")));

/* Returns the context of a stream, which may differ from the current one. */
static CUcontext context_of(CUstream stream) {
    CUcontext context = NULL;
    REAL(cuCtxGetCurrent)(&context);
    if (stream && stream != CU_STREAM_LEGACY) /* a query of that stream invalidates captures */
        REAL(cuStreamGetCtx)(stream, &context);
    return context;
}

/* Returns the key by which is_same() finds the capture of a stream. Only the key of the per-thread
 * stream has a context and a thread. `per_thread`: a NULL stream is the per-thread stream. */
static struct capturing identify(CUstream stream, bool per_thread) {
    if (stream != CU_STREAM_PER_THREAD && (stream || !per_thread))
        return (struct capturing){.stream = stream};
    return (struct capturing){.stream = CU_STREAM_PER_THREAD,
                              .context = context_of(CU_STREAM_PER_THREAD),
                              .thread = &this_thread};
}

/* Queries the pool's events, and normally records one for the memory that was freed so far. Runs
 * under REGISTRY. */
static void prepare_pool(struct context *context, void *unused) {
    (void)unused;
    pool_before_capture(context->pool);
}

/* Waits until the pool is not recording an event. Runs under REGISTRY. */
static void wait_for_records(struct context *context, void *unused) {
    (void)unused;
    pool_capture_announced(context->pool);
}

/*
 * Announces a capture, before the driver begins it. Call with no lock held.
 *
 *   1. Records events for freed memory, because no pool records an event during a capture.
 *   2. Blocks the fast path and counts the capture. Threads that see the count query events in
 *      relaxed capture mode, and do not query the driver's own pools.
 *   3. Waits for threads that wait for a whole context (capture_hold_off()).
 *   4. Acquires and releases each lock under which threads record or query. No record or query that
 *      began before the count is then in progress.
 */
static void announce(void) {
    context_each(prepare_pool, NULL);
    fast_path_block();
    atomic_fetch_add(&capture_active, 1);
    capture_wait_for_holders();
    context_each(wait_for_records, NULL);
    deferred_capture_announced();
    driver_pool_capture_announced();
}

/* Undoes step 2 of announce() for a capture that has ended or that the driver refused. Needs no
 * lock. */
static void uncount(void) {
    atomic_fetch_sub(&capture_active, 1);
    fast_path_unblock();
}

/* Adds a capture to the list. Called with `lock` held. */
static void list_add(struct capturing *capture) {
    capture->next = captures;
    captures = capture;
}

static bool is_same(const struct capturing *capture, const struct capturing *key) {
    return capture->stream == key->stream && capture->thread == key->thread &&
           (!key->thread || capture->context == key->context);
}

/* Removes the capture of an identify() key from the list; it stays counted. Returns the capture,
 * or NULL if the stream has none. Called with `lock` held. */
static struct capturing *list_remove(const struct capturing *key) {
    struct capturing **at = &captures;
    while (*at && !is_same(*at, key))
        at = &(*at)->next;
    struct capturing *found = *at;
    if (found)
        *at = found->next;
    return found;
}

/*
 * Stops counting the stream's capture, if it has one. `certain`: the driver has ended a capture
 * with success. If the list lacks that capture, it is one of the `unlisted` ones.
 */
static void end_capture(CUstream stream, bool per_thread, bool certain) {
    const struct capturing key = identify(stream, per_thread);
    lock_acquire(&lock);
    struct capturing *capture = list_remove(&key);
    bool ended = capture || (certain && unlisted > 0);
    if (capture)
        host_freelist_put(&freelist, capture);
    else if (ended)
        unlisted--;
    lock_release(&lock);
    if (ended)
        uncount();
}

/*
 * Removes the capture from the list before the driver destroys the stream. Afterwards a new stream
 * of another thread may have the same handle, and a capture of its own. The capture stays counted
 * until the driver has destroyed the stream. If the driver refuses, the capture is listed again.
 */
CUresult capture_destroy_stream(CUresult (*destroy)(CUstream), CUstream stream) {
    struct capturing *capture = NULL;
    if (atomic_load(&capture_active) > 0) {
        lock_acquire(&lock);
        capture = list_remove(&(struct capturing){.stream = stream});
        lock_release(&lock);
    }
    CUresult answer = destroy(stream);
    if (capture) {
        lock_acquire(&lock);
        if (answer != CUDA_SUCCESS) {
            list_add(capture);
        } else {
            host_freelist_put(&freelist, capture);
            uncount();
        }
        lock_release(&lock);
    }
    return answer;
}

void capture_forget(const struct context *context) {
    lock_acquire(&lock);
    for (struct capturing **at = &captures; *at;) {
        struct capturing *capture = *at;
        if (capture->context == context->handle) {
            *at = capture->next;
            host_freelist_put(&freelist, capture);
            uncount();
        } else {
            at = &capture->next;
        }
    }
    lock_release(&lock);
}

/* Queries the pool's probe event, which is never recorded. The driver gives the query the same
 * answer as an allocation (docs/design/captures.md). Asks under the pool's lock, and not while the
 * backend is suspended: the event may end with the context. */
CUresult capture_verdict(struct pool *pool) {
    const struct device_backend *own = (struct device_backend *)pool_backend(pool);
    CUresult answer = CUDA_SUCCESS;
    pool_lock(pool);
    if (!own->backend.suspended)
        answer = REAL(cuEventQuery)(own->probe);
    pool_unlock(pool);
    return answer == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED ? answer : CUDA_SUCCESS;
}

/* --- the hooks --- */

/* A call that begins a capture. */
struct begin_call {
    bool is_announced;        /* false: the library serves no calls in this process */
    struct capturing capture; /* the capture that the driver is about to begin */
};

/* Announces the capture if the library serves calls (process_ready). Returns the call. */
static struct begin_call enter_begin(CUstream stream, bool per_thread) {
    struct begin_call call = {.is_announced = process_ready()};
    if (call.is_announced) {
        call.capture = identify(stream, per_thread);
        call.capture.context = context_of(call.capture.stream);
        announce();
    }
    return call;
}

/* Lists the capture that the driver has begun, or stops counting it if the driver refused. Returns
 * `answer`. */
static CUresult account_begin(CUresult answer, const struct begin_call *call) {
    if (call->is_announced && answer != CUDA_SUCCESS) {
        uncount();
    } else if (call->is_announced) {
        lock_acquire(&lock);
        struct capturing *capture = host_freelist_get(&freelist);
        if (capture) {
            *capture = call->capture;
            list_add(capture);
        } else {
            unlisted++;
        }
        lock_release(&lock);
    }
    return fault_notice(answer);
}

/* Defines the hook of an entry that begins a capture of `stream`. */
#define BEGINS(symbol, per_thread, parameters, arguments)                                          \
    HOOK(hook_##symbol, parameters, struct begin_call call = enter_begin(stream, per_thread),      \
         real_entries.real_##symbol arguments, account_begin(answer, &call))

BEGINS(cuStreamBeginCapture, false, (CUstream stream), (stream))
BEGINS(cuStreamBeginCapture_ptsz, true, (CUstream stream), (stream))
BEGINS(cuStreamBeginCapture_v2, false, (CUstream stream, CUstreamCaptureMode mode), (stream, mode))
BEGINS(cuStreamBeginCapture_v2_ptsz, true, (CUstream stream, CUstreamCaptureMode mode),
       (stream, mode))
BEGINS(cuStreamBeginCaptureToGraph, false,
       (CUstream stream, CUgraph graph, const CUgraphNode *dependencies,
        const CUgraphEdgeData *edges, size_t count, CUstreamCaptureMode mode),
       (stream, graph, dependencies, edges, count, mode))
BEGINS(cuStreamBeginCaptureToGraph_ptsz, true,
       (CUstream stream, CUgraph graph, const CUgraphNode *dependencies,
        const CUgraphEdgeData *edges, size_t count, CUstreamCaptureMode mode),
       (stream, graph, dependencies, edges, count, mode))

BEGINS(cuStreamBeginRecaptureToGraph, false,
       (CUstream stream, CUstreamCaptureMode mode, CUgraph graph, CUgraphRecaptureCallback callback,
        void *data),
       (stream, mode, graph, callback, data))
BEGINS(cuStreamBeginRecaptureToGraph_ptsz, true,
       (CUstream stream, CUstreamCaptureMode mode, CUgraph graph, CUgraphRecaptureCallback callback,
        void *data),
       (stream, mode, graph, callback, data))

/* Stops counting a capture. A call that fails has also ended the capture, unless the driver still
 * reports the stream as capturing. Returns `answer`. */
static CUresult account_end(CUresult answer, CUstream stream, bool per_thread,
                            CUresult (*is_capturing)(CUstream, CUstreamCaptureStatus *)) {
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    if (answer != CUDA_SUCCESS)
        is_capturing(stream, &status);
    if (status == CU_STREAM_CAPTURE_STATUS_NONE)
        end_capture(stream, per_thread, answer == CUDA_SUCCESS);
    return fault_notice(answer);
}

CUresult hook_cuStreamEndCapture(CUstream stream, CUgraph *graph) {
    CUresult answer = REAL(cuStreamEndCapture)(stream, graph);
    return account_end(answer, stream, false, REAL(cuStreamIsCapturing));
}

CUresult hook_cuStreamEndCapture_ptsz(CUstream stream, CUgraph *graph) {
    CUresult answer = REAL(cuStreamEndCapture_ptsz)(stream, graph);
    return account_end(answer, stream, true, REAL(cuStreamIsCapturing_ptsz));
}
