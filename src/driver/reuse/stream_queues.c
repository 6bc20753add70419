#include "driver/reuse/stream_queues.h"

#include "driver/context/current.h"
#include "driver/state/capture.h"
#include "driver/table/entries.h"

#include <limits.h>

/* Bounds of a reclaim without `all`. */
#define QUEUES_MOST 8  /* queues whose events are queried */
#define FREES_MOST 256 /* frees reclaimed */

/* --- queues --- */

static struct stream_queue **bucket_of(struct stream_queues *queues,
                                       struct stream_identity stream) {
    return &queues->buckets[(stream.number ^ (uintptr_t)stream.kind) % DEFERRED_BUCKETS];
}

static void append_queue(struct stream_queues *queues, struct stream_queue *queue) {
    queue->next = NULL;
    *(queues->first ? &queues->last->next : &queues->first) = queue;
    queues->last = queue;
}

/* Removes and returns the first queue of the list. If it was the only one, `last` is invalid. */
static struct stream_queue *take_first(struct stream_queues *queues) {
    struct stream_queue *queue = queues->first;
    queues->first = queue->next;
    return queue;
}

struct stream_queue *stream_queue_of(struct stream_queues *queues, struct stream_identity stream) {
    struct stream_queue **bucket = bucket_of(queues, stream), *queue = *bucket;
    while (queue && (queue->stream.number != stream.number || queue->stream.kind != stream.kind))
        queue = queue->next_in_bucket;
    if (!queue &&
        ((queue = queues->idle) || (queue = host_freelist_get(&queues->queue_freelist)))) {
        queues->idle = queue == queues->idle ? queue->next : queues->idle;
        queue->stream = stream;
        queue->next_in_bucket = *bucket;
        *bucket = queue;
        append_queue(queues, queue);
    }
    return queue;
}

/*
 * Makes a queue without frees idle. Its events may still be pending, but no free depends on them.
 * The next stream of the queue records them again.
 */
static void make_idle(struct stream_queues *queues, struct stream_queue *queue) {
    struct stream_queue **at = bucket_of(queues, queue->stream);
    while (*at != queue)
        at = &(*at)->next_in_bucket;
    *at = queue->next_in_bucket;
    queue->count = 0;
    queue->next = queues->idle;
    queues->idle = queue;
}

static void reclaim_oldest(struct stream_queues *queues, struct stream_queue *queue) {
    struct deferred_free *deferred = queue->oldest;
    queue->oldest = deferred->next;
    pool_reclaim(&deferred->block);
    host_freelist_put(&queues->deferred_freelist, deferred);
}

/* Appends a deferred free, whose `next` is NULL, to a queue. */
static void append(struct stream_queue *queue, struct deferred_free *deferred) {
    *(queue->oldest ? &queue->newest->next : &queue->oldest) = deferred;
    queue->newest = deferred;
}

void stream_queue_add(struct stream_queue *queue, struct deferred_free *deferred) {
    deferred->number = queue->recorded;
    append(queue, deferred);
}

/* --- events --- */

/* Creates an event in `context`, which is current during the call. Returns the driver's answer. */
static CUresult make_event(CUcontext context, CUevent *event) {
    CUcontext current = NULL;
    REAL(cuCtxGetCurrent)(&current);
    if (current == context)
        return REAL(cuEventCreate)(event, CU_EVENT_DISABLE_TIMING);
    CUresult r = current_push(context);
    if (r == CUDA_SUCCESS) {
        r = REAL(cuEventCreate)(event, CU_EVENT_DISABLE_TIMING);
        current_pop();
    }
    return r;
}

/*
 * Returns whether all work that the event captured has completed. If the driver does not know the
 * event, its context and all work there have ended: returns true and clears *event. Reclaims skip
 * suspended contexts: after the context's end the query can crash (tests/gpu/facts_release.cu).
 *
 * During a stream capture, queries in relaxed capture mode: in other modes the query invalidates
 * the capture. No capture begins between the test and the query: deferred_capture_announced() waits
 * for the lock of the queues, which the caller holds.
 */
static bool has_completed(CUevent *event) {
    bool captures = atomic_load(&capture_active) > 0;
    CUstreamCaptureMode mode = captures ? capture_relax() : CU_STREAM_CAPTURE_MODE_GLOBAL;
    CUresult r = *event ? REAL(cuEventQuery)(*event) : CUDA_SUCCESS;
    if (captures)
        capture_restore(mode);
    if (r == CUDA_ERROR_INVALID_HANDLE || r == CUDA_ERROR_CONTEXT_IS_DESTROYED) {
        *event = NULL;
        r = CUDA_SUCCESS;
    }
    return r == CUDA_SUCCESS;
}

/* Records an event in `stream`. Creates it first if *event is NULL. Returns the driver's answer. */
static CUresult record_event(CUcontext context, CUevent *event, CUstream stream,
                             CUresult (*record)(CUevent, CUstream)) {
    bool existed = *event != NULL;
    CUresult r = existed ? CUDA_SUCCESS : make_event(context, event);
    r = r == CUDA_SUCCESS ? record(*event, stream) : r;
    if (r == CUDA_ERROR_INVALID_HANDLE && existed && has_completed(event) && !*event) {
        /* The event's handle was invalid, not the stream's: creates a new event. */
        return record_event(context, event, stream, record);
    }
    return r;
}

CUresult stream_queue_record(CUcontext context, struct stream_queue *queue, CUstream stream,
                             CUresult (*record)(CUevent, CUstream)) {
    bool is_unused = queue->count < DEFERRED_EVENTS;
    unsigned at = (queue->first + queue->count - !is_unused) % DEFERRED_EVENTS;
    CUresult r = record_event(context, &queue->events[at].event, stream, record);
    if (r == CUDA_SUCCESS) {
        queue->events[at].covers = ++queue->recorded;
        queue->count += is_unused;
    }
    return r;
}

/* --- reclaiming --- */

/*
 * Reclaims at most *frees_left frees of a queue, and subtracts their number. Returns whether any
 * free was reclaimed.
 */
static bool reclaim_queue(struct stream_queues *queues, struct stream_queue *queue,
                          unsigned *frees_left) {
    bool any = false;
    while (queue->oldest && has_completed(&queue->events[queue->first].event)) {
        uint64_t covered = queue->events[queue->first].covers;
        while (queue->oldest && queue->oldest->number <= covered && *frees_left > 0) {
            reclaim_oldest(queues, queue);
            any = true;
            --*frees_left;
        }
        if (queue->oldest && queue->oldest->number <= covered)
            break;
        queue->first = (queue->first + 1) % DEFERRED_EVENTS;
        queue->count--;
    }
    return any;
}

bool stream_queues_reclaim(struct stream_queues *queues, bool all) {
    bool any = false;
    unsigned queues_left = all ? UINT_MAX : QUEUES_MOST, frees_left = all ? UINT_MAX : FREES_MOST;
    for (const struct stream_queue *last = queues->last, *previous = NULL;
         queues->first && previous != last && queues_left > 0; queues_left--) {
        struct stream_queue *queue = take_first(queues);
        any |= reclaim_queue(queues, queue, &frees_left);
        previous = queue;
        if (queue->oldest)
            append_queue(queues, queue);
        else
            make_idle(queues, queue);
    }
    return any;
}

/* --- ends --- */

/* Drops the frees of a pool's blocks from a queue. */
static void forget_in(struct stream_queues *queues, struct stream_queue *queue,
                      const struct pool *pool) {
    struct deferred_free *rest = queue->oldest;
    queue->oldest = NULL;
    while (rest) {
        struct deferred_free *deferred = rest;
        rest = deferred->next;
        if (deferred->block.pool == pool) {
            host_freelist_put(&queues->deferred_freelist, deferred);
        } else {
            deferred->next = NULL;
            append(queue, deferred);
        }
    }
}

void stream_queues_forget(struct stream_queues *queues, const struct pool *pool) {
    for (struct stream_queue *queue = queues->first; queue; queue = queue->next)
        forget_in(queues, queue, pool);
}

void stream_queues_end(struct stream_queues *queues) {
    while (queues->first) {
        struct stream_queue *queue = take_first(queues);
        while (queue->oldest)
            reclaim_oldest(queues, queue);
        make_idle(queues, queue);
    }
    while (queues->idle) { /* the events of these queues ended with the context */
        struct stream_queue *queue = queues->idle;
        queues->idle = queue->next;
        host_freelist_put(&queues->queue_freelist, queue);
    }
}
