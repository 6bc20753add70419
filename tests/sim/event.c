/*
 * Events of streams and of contexts.
 *
 * A record puts a marker into a queue. The marker is done when the queue reaches it. An event
 * refers to the marker of its latest record, and so does every wait that began before the next
 * record.
 *
 * A context event goes into a queue of its own. Its head is done when it is the oldest unfinished
 * work of the whole context: then all work submitted before it is finished. A wait of a context is
 * a barrier: a number that all later work of the context must see passed. The barrier also stands
 * behind all earlier records of the context, for any event (measured, tests/gpu/facts_order.cu). It
 * therefore waits for the latest record too.
 */
#include "driver.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

struct slab event_slab = SLAB(struct event);

/* Ends the process (EVENTS_GO): a real driver may read freed memory there, and crash. */
static void event_gone(void) {
    fprintf(stderr, "sim: a call names an event that has gone\n");
    fflush(NULL);
    _exit(SIM_GONE_STATUS);
}

CUresult event_check(CUevent handle, struct event **event) {
    *event = (struct event *)handle;
    if (sim.options.events_go && *event && (*event)->object.slab == &event_slab &&
        !(*event)->object.live)
        event_gone();
    return is_live(*event, &event_slab) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

static CUresult create(CUevent *handle, unsigned flags) {
    if (!handle || flags > 7)
        return CUDA_ERROR_INVALID_VALUE;
    if ((flags & CU_EVENT_INTERPROCESS) && !(flags & CU_EVENT_DISABLE_TIMING))
        return CUDA_ERROR_INVALID_VALUE;
    struct event *event = slab_get(&event_slab);
    event->context = context_owner(context_current());
    event->flags = flags;
    *handle = (CUevent)event;
    return CUDA_SUCCESS;
}

static void forget_record(struct event *event) {
    marker_unref(event->marker);
    event->marker = NULL;
    free(event->tips);
    event->tips = NULL;
    event->tip_count = 0;
    event->capture_id = 0;
}

/* Returns a kernel's fault as an H200 does (probe-h200.txt). Whether the event then still exists is
 * not known; here it does not. */
static CUresult destroy(CUevent handle) {
    struct event *event;
    CUresult result = event_check(handle, &event);

    if (result != CUDA_SUCCESS)
        return result;
    result = sim.fault;
    forget_record(event);
    slab_put(&event_slab, event);
    return result;
}

void event_forget_context(const struct context *context) {
    for (unsigned i = 0; i < event_slab.count; i++) {
        struct event *event = (struct event *)event_slab.all[i];
        if (event->object.live && event->context == context)
            destroy((CUevent)event);
    }
}

ENTRY(cuEventCreate, (CUevent * handle, unsigned flags), SUBMIT, create(handle, flags))
ENTRY(cuEventDestroy, (CUevent handle), INITIALISED, destroy(handle))
ENTRY(cuEventDestroy_v2, (CUevent handle), INITIALISED, destroy(handle))

/* ---- records --------------------------------------------------------------------------------- */

static void record_in(struct event *event, struct stream *stream) {
    struct item *item = queue_push(stream, (struct work){.kind = WORK_NOTHING});

    forget_record(event);
    event->marker = marker_new();
    item->signals = marker_ref(event->marker);
}

static CUresult record(CUevent handle, CUstream stream_handle, bool per_thread) {
    struct stream *stream;
    struct event *event;
    CUresult result = event_check(handle, &event);

    if (result == CUDA_SUCCESS)
        result = stream_resolve(stream_handle, per_thread, &stream);
    if (result != CUDA_SUCCESS)
        return result;
    if (context_owner(stream->context) != event->context)
        return CUDA_ERROR_INVALID_HANDLE;
    if (stream->capture) {
        forget_record(event);
        return capture_record(stream, event);
    }
    result = capture_implicit(stream);
    if (result == CUDA_SUCCESS)
        record_in(event, stream);
    return result;
}

ENTRY_PTSZ(cuEventRecord, (CUevent event, CUstream stream), INITIALISED | HELD_UP,
           record(event, stream, per_thread))
ENTRY_PTSZ(cuEventRecordWithFlags, (CUevent event, CUstream stream, unsigned flags),
           INITIALISED | HELD_UP,
           flags > 1 ? CUDA_ERROR_INVALID_VALUE : record(event, stream, per_thread))

/* Looks a context up. NULL is an error, and not the current context. */
static CUresult context_of(CUcontext handle, struct context **context) {
    *context = (struct context *)handle;
    if (!is_live(*context, &context_slab))
        return CUDA_ERROR_INVALID_CONTEXT;
    return context_check(*context);
}

CUresult context_record(CUcontext context_handle, CUevent handle) {
    struct context *context;
    struct event *event;
    CUresult result = context_of(context_handle, &context);

    if (result == CUDA_SUCCESS)
        result = event_check(handle, &event);
    if (result == CUDA_SUCCESS && event->context != context_owner(context))
        result = CUDA_ERROR_INVALID_HANDLE;
    if (result == CUDA_SUCCESS)
        result = capture_context_call(context);
    if (result == CUDA_SUCCESS) {
        record_in(event, context->marks);
        marker_unref(context->latest_mark);
        context->latest_mark = marker_ref(event->marker);
    }
    return result;
}

static CUresult put_up_barrier(struct context *context, struct marker *marker) {
    if (!marker || marker->done)
        return CUDA_SUCCESS;
    struct barrier *barrier = calloc(1, sizeof(*barrier));
    if (!barrier)
        return CUDA_ERROR_OUT_OF_MEMORY;
    barrier->marker = marker_ref(marker);
    if (context->last_barrier)
        context->last_barrier->next = barrier;
    else
        context->barriers = barrier;
    context->last_barrier = barrier;
    context->barriers_issued++;
    return CUDA_SUCCESS;
}

void event_copy_barriers(struct context *to, const struct context *from) {
    for (const struct barrier *barrier = from->barriers; barrier; barrier = barrier->next)
        put_up_barrier(to, barrier->marker);
}

/* Adds a barrier to all streams of a context. A barrier of a primary context holds for its green
 * contexts too. */
static CUresult put_up_barriers(struct context *context, struct marker *marker) {
    CUresult result = put_up_barrier(context, marker);

    for (unsigned i = 0; i < context_slab.count && result == CUDA_SUCCESS; i++) {
        struct context *view = (struct context *)context_slab.all[i];
        if (view->object.live && view->alive && view->behind == context)
            result = put_up_barrier(view, marker);
    }
    return result;
}

CUresult context_wait_event(CUcontext context_handle, CUevent handle) {
    struct context *context;
    struct event *event;
    CUresult result = context_of(context_handle, &context);

    if (result == CUDA_SUCCESS)
        result = event_check(handle, &event);
    if (result == CUDA_SUCCESS)
        result = capture_context_call(context);
    if (result != CUDA_SUCCESS || !event->marker)
        return result;
    result = put_up_barriers(context, context->latest_mark);
    return result == CUDA_SUCCESS ? put_up_barriers(context, event->marker) : result;
}

ENTRY(cuCtxRecordEvent, (CUcontext context, CUevent event), INITIALISED | HELD_UP,
      context_record(context, event))
ENTRY(cuCtxWaitEvent, (CUcontext context, CUevent event), INITIALISED,
      context_wait_event(context, event))

/* ---- waits ----------------------------------------------------------------------------------- */

static CUresult stream_wait(CUstream stream_handle, bool per_thread, CUevent handle,
                            unsigned flags) {
    struct stream *stream;
    struct event *event;
    bool handled = false;
    CUresult result = event_check(handle, &event);

    if (result == CUDA_SUCCESS)
        result = stream_resolve(stream_handle, per_thread, &stream);
    if (result != CUDA_SUCCESS)
        return result;
    if (flags > 1)
        return CUDA_ERROR_INVALID_VALUE;
    result = capture_wait(stream, event, &handled);
    if (handled || !event->marker)
        return result;
    result = capture_implicit(stream);
    /* A wait for a complete event does nothing (tests/gpu/facts_held.cu, section idle). */
    if (result == CUDA_SUCCESS && !event->marker->done)
        queue_push(stream, (struct work){.kind = WORK_NOTHING})->waits = marker_ref(event->marker);
    return result;
}

ENTRY_PTSZ(cuStreamWaitEvent, (CUstream stream, CUevent event, unsigned flags), INITIALISED,
           stream_wait(stream, per_thread, event, flags))

/* Looks up an event whose work a call is about. An event of a capture is an error. */
static CUresult recorded(CUevent handle, struct event **event) {
    CUresult result = event_check(handle, event);
    return result == CUDA_SUCCESS ? capture_event_call(*event) : result;
}

static CUresult query(CUevent handle) {
    struct event *event;
    CUresult result = recorded(handle, &event);

    if (result != CUDA_SUCCESS)
        return result;
    if (sim.fault != CUDA_SUCCESS)
        return sim.fault;
    if (event->marker && !event->marker->done)
        queue_complete_records(event->context);
    return event->marker && !event->marker->done ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS;
}

static CUresult synchronize(CUevent handle) {
    struct event *event;
    CUresult result = recorded(handle, &event);

    if (result != CUDA_SUCCESS)
        return result;
    struct context *context = event->context;
    struct marker *marker = marker_ref(event->marker);
    if (marker)
        queue_wait(&(struct waiting){.marker = marker, .context = context});
    marker_unref(marker);
    pool_trim(context->device);
    memory_take_back(context->device);
    return context_check(context);
}

static CUresult elapsed(float *milliseconds, CUevent start_handle, CUevent end_handle) {
    struct event *start, *end;
    CUresult result = event_check(start_handle, &start);

    if (result == CUDA_SUCCESS)
        result = event_check(end_handle, &end);
    if (result != CUDA_SUCCESS)
        return result;
    if (!milliseconds)
        return CUDA_ERROR_INVALID_VALUE;
    if (!start->marker || !end->marker || ((start->flags | end->flags) & CU_EVENT_DISABLE_TIMING))
        return CUDA_ERROR_INVALID_HANDLE;
    if (!start->marker->done || !end->marker->done)
        return CUDA_ERROR_NOT_READY;
    *milliseconds = (float)((double)end->marker->when - (double)start->marker->when) / 1000.0f;
    return CUDA_SUCCESS;
}

ENTRY(cuEventQuery, (CUevent event), INITIALISED, query(event))
ENTRY(cuEventSynchronize, (CUevent event), INITIALISED, synchronize(event))
ENTRY(cuEventElapsedTime, (float *milliseconds, CUevent start, CUevent end), INITIALISED,
      elapsed(milliseconds, start, end))
ENTRY(cuEventElapsedTime_v2, (float *milliseconds, CUevent start, CUevent end), INITIALISED,
      elapsed(milliseconds, start, end))
