/*
 * Streams: creation, end, waits, host functions and memory operations.
 *
 * A stream belongs to a context. Each context has a legacy stream, which is ordered with all its
 * blocking streams, and one per-thread stream for each thread that uses it. The handle of a
 * destroyed stream is invalid, but its queued work still runs.
 */
#include "driver.h"

#include <string.h>

#define LEAST_PRIORITY 0
#define GREATEST_PRIORITY (-5)

struct slab stream_slab = SLAB(struct stream);

struct stream *stream_new(struct context *context, unsigned flags, int priority) {
    struct stream *stream = slab_get(&stream_slab);

    stream->context = context;
    stream->flags = flags;
    stream->priority = priority > LEAST_PRIORITY      ? LEAST_PRIORITY
                       : priority < GREATEST_PRIORITY ? GREATEST_PRIORITY
                                                      : priority;
    stream->id = ++sim.next_id;
    stream->blocking = !(flags & CU_STREAM_NON_BLOCKING);
    stream->slot = -1;
    stream->lag = (unsigned)(sim_random() % 4);
    stream->previous = context->last_stream;
    if (context->last_stream)
        context->last_stream->next = stream;
    else
        context->streams = stream;
    context->last_stream = stream;
    return stream;
}

void stream_free(struct stream *stream) {
    struct context *context = stream->context;

    if (stream->next)
        stream->next->previous = stream->previous;
    else
        context->last_stream = stream->previous;
    if (stream->previous)
        stream->previous->next = stream->next;
    else
        context->streams = stream->next;
    slab_put(&stream_slab, stream);
}

static struct stream *own_stream(struct context *context) {
    struct thread *thread = thread_self();
    struct stream *stream = thread->own_stream;

    if (thread->own_stream_context == context && is_live(stream, &stream_slab) &&
        stream->context == context && stream->owner == thread->id)
        return stream;
    for (stream = context->streams; stream && stream->owner != thread->id; stream = stream->next)
        ;
    if (!stream) {
        stream = stream_new(context, CU_STREAM_DEFAULT, 0);
        stream->owner = thread->id;
    }
    thread->own_stream_context = context;
    thread->own_stream = stream;
    return stream;
}

CUresult stream_resolve(CUstream handle, bool per_thread, struct stream **stream) {
    if (handle == NULL)
        handle = per_thread ? CU_STREAM_PER_THREAD : CU_STREAM_LEGACY;
    if (handle == CU_STREAM_LEGACY || handle == CU_STREAM_PER_THREAD) {
        struct context *context = context_current();
        CUresult result = context_check(context);
        if (result == CUDA_SUCCESS)
            *stream = handle == CU_STREAM_LEGACY ? context->legacy : own_stream(context);
        return result;
    }
    *stream = (struct stream *)handle;
    if (!is_live(*stream, &stream_slab) || (*stream)->doomed)
        return CUDA_ERROR_INVALID_HANDLE;
    return context_check((*stream)->context);
}

CUresult submit(struct stream *stream, struct work work) {
    struct context *others[2] = {NULL, NULL};

    if (stream->capture)
        return capture_submit(stream, work);
    CUresult result = capture_implicit(stream);
    if (result != CUDA_SUCCESS) {
        work_dispose(&work);
        return result;
    }
    if (work.kind == WORK_COPY)
        copy_touches(&work.copy, stream->context, others);
    struct item *item = queue_push(stream, work);
    for (int i = 0; i < 2; i++)
        if (others[i])
            queue_touch(item, others[i]);
    return CUDA_SUCCESS;
}

CUresult stream_wait_all(struct stream *stream) {
    struct context *context = stream->context;

    queue_wait(&(struct waiting){.stream = stream, .up_to = queue_sequence()});
    pool_trim(context->device);
    memory_take_back(context->device);
    return context_check(context);
}

CUresult submit_and_wait(struct stream *stream, struct work work) {
    if (stream->capture) {
        work_dispose(&work);
        return capture_stream_call(stream);
    }
    CUresult result = submit(stream, work);
    return result == CUDA_SUCCESS ? stream_wait_all(stream) : result;
}

/* ---- life ------------------------------------------------------------------------------------ */

static CUresult create(CUstream *handle, unsigned flags, int priority) {
    if (!handle || (flags & ~(unsigned)CU_STREAM_NON_BLOCKING))
        return CUDA_ERROR_INVALID_VALUE;
    *handle = (CUstream)stream_new(context_current(), flags, priority);
    return CUDA_SUCCESS;
}

static CUresult destroy(CUstream handle) {
    struct stream *stream = (struct stream *)handle;

    if (handle == CU_STREAM_LEGACY || handle == CU_STREAM_PER_THREAD || !handle)
        return CUDA_ERROR_INVALID_HANDLE;
    if (!is_live(stream, &stream_slab) || stream->doomed)
        return CUDA_ERROR_INVALID_HANDLE;
    capture_forget_stream(stream);
    stream->doomed = true;
    if (!stream->head)
        stream_free(stream);
    return CUDA_SUCCESS;
}

ENTRY(cuStreamCreate, (CUstream * handle, unsigned flags), SUBMIT, create(handle, flags, 0))
ENTRY(cuStreamCreateWithPriority, (CUstream * handle, unsigned flags, int priority), SUBMIT,
      create(handle, flags, priority))
ENTRY(cuStreamDestroy, (CUstream handle), INITIALISED, destroy(handle))
ENTRY(cuStreamDestroy_v2, (CUstream handle), INITIALISED, destroy(handle))

/* ---- waiting --------------------------------------------------------------------------------- */

static CUresult synchronize(CUstream handle, bool per_thread) {
    struct stream *stream;
    CUresult result = stream_resolve(handle, per_thread, &stream);

    if (result == CUDA_SUCCESS)
        result = capture_stream_call(stream);
    if (result == CUDA_SUCCESS)
        result = stream_wait_all(stream);
    return result;
}

static CUresult query(CUstream handle, bool per_thread) {
    struct stream *stream;
    CUresult result = stream_resolve(handle, per_thread, &stream);

    if (result == CUDA_SUCCESS)
        result = capture_stream_call(stream);
    if (result != CUDA_SUCCESS)
        return result;
    return stream_is_idle(stream, queue_sequence()) ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

ENTRY_PTSZ(cuStreamSynchronize, (CUstream handle), INITIALISED, synchronize(handle, per_thread))
ENTRY_PTSZ(cuStreamQuery, (CUstream handle), INITIALISED, query(handle, per_thread))

/* ---- questions ------------------------------------------------------------------------------- */

enum question { FLAGS, PRIORITY, ID, DEVICE };

static CUresult ask(CUstream handle, bool per_thread, enum question question, void *answer) {
    struct stream *stream;
    CUresult result = stream_resolve(handle, per_thread, &stream);

    if (result != CUDA_SUCCESS)
        return result;
    if (!answer)
        return CUDA_ERROR_INVALID_VALUE;
    switch (question) {
    case FLAGS:
        *(unsigned *)answer = stream->flags;
        break;
    case PRIORITY:
        *(int *)answer = stream->priority;
        break;
    case ID:
        *(unsigned long long *)answer = stream->id;
        break;
    case DEVICE:
        *(CUdevice *)answer = stream->context->device->ordinal;
        break;
    }
    return CUDA_SUCCESS;
}

/* A query of the legacy stream invalidates captures of blocking streams (driver 580 on an H100, in
 * every mode). */
static CUresult get_context(CUstream handle, bool per_thread, CUcontext *context,
                            CUgreenCtx *green) {
    struct stream *stream;
    CUresult result = stream_resolve(handle, per_thread, &stream);

    if (result == CUDA_SUCCESS)
        result = capture_implicit(stream);
    if (result != CUDA_SUCCESS)
        return result;
    if (!context)
        return CUDA_ERROR_INVALID_VALUE;
    *context = (CUcontext)stream->context;
    if (green) {
        *green = (CUgreenCtx)stream->green;
        *context = stream->green ? NULL : *context;
    }
    return CUDA_SUCCESS;
}

ENTRY_PTSZ(cuStreamGetFlags, (CUstream handle, unsigned *flags), INITIALISED,
           ask(handle, per_thread, FLAGS, flags))
ENTRY_PTSZ(cuStreamGetPriority, (CUstream handle, int *priority), INITIALISED,
           ask(handle, per_thread, PRIORITY, priority))
ENTRY_PTSZ(cuStreamGetId, (CUstream handle, unsigned long long *id), INITIALISED,
           ask(handle, per_thread, ID, id))
ENTRY_PTSZ(cuStreamGetDevice, (CUstream handle, CUdevice *device), INITIALISED,
           ask(handle, per_thread, DEVICE, device))
ENTRY_PTSZ(cuStreamGetCtx, (CUstream handle, CUcontext *context), INITIALISED,
           get_context(handle, per_thread, context, NULL))
ENTRY_PTSZ(cuStreamGetCtx_v2, (CUstream handle, CUcontext *context, CUgreenCtx *green), INITIALISED,
           get_context(handle, per_thread, context, green))

/* Attributes have no effect in the simulator. */
static CUresult attribute(CUstream handle, bool per_thread, void *value, size_t size) {
    struct stream *stream;
    CUresult result = stream_resolve(handle, per_thread, &stream);

    if (result == CUDA_SUCCESS && value)
        memset(value, 0, size);
    return result;
}

ENTRY_PTSZ(cuStreamCopyAttributes, (CUstream to, CUstream from), INITIALISED,
           ((void)from, attribute(to, per_thread, NULL, 0)))
ENTRY_PTSZ(cuStreamGetAttribute, (CUstream handle, CUstreamAttrID name, CUstreamAttrValue *value),
           INITIALISED, ((void)name, attribute(handle, per_thread, value, sizeof(*value))))
ENTRY_PTSZ(cuStreamSetAttribute,
           (CUstream handle, CUstreamAttrID name, const CUstreamAttrValue *value), INITIALISED,
           ((void)name, (void)value, attribute(handle, per_thread, NULL, 0)))
ENTRY_PTSZ(cuStreamAttachMemAsync,
           (CUstream handle, CUdeviceptr address, size_t length, unsigned flags), INITIALISED,
           ((void)address, (void)length, (void)flags, attribute(handle, per_thread, NULL, 0)))

/* ---- host functions and values --------------------------------------------------------------- */

static CUresult put(CUstream handle, bool per_thread, struct work work) {
    struct stream *stream;
    CUresult result = stream_resolve(handle, per_thread, &stream);

    return result == CUDA_SUCCESS ? submit(stream, work) : result;
}

static CUresult host_function(CUstream handle, bool per_thread, CUhostFn function, void *data) {
    struct work work = {.kind = WORK_HOST, .host = {.function = function, .data = data}};

    return function ? put(handle, per_thread, work) : CUDA_ERROR_INVALID_VALUE;
}

static CUresult add_callback(CUstream handle, bool per_thread, CUstreamCallback callback,
                             void *data, unsigned flags) {
    struct work work = {.kind = WORK_HOST,
                        .host = {.callback = callback, .stream = handle, .data = data}};
    struct stream *stream;
    CUresult result = stream_resolve(handle, per_thread, &stream);

    if (result != CUDA_SUCCESS)
        return result;
    if (!callback || flags)
        return CUDA_ERROR_INVALID_VALUE;
    result = capture_stream_call(stream); /* callbacks cannot be captured */
    return result == CUDA_SUCCESS ? submit(stream, work) : result;
}

static CUresult value(CUstream handle, bool per_thread, enum work_kind kind, unsigned size,
                      CUdeviceptr address, uint64_t number, unsigned flags) {
    struct work work = {
        .kind = kind, .value = {.address = address, .value = number, .flags = flags, .size = size}};

    if (address % size || !range_find(address))
        return CUDA_ERROR_INVALID_VALUE;
    return put(handle, per_thread, work);
}

ENTRY_PTSZ(cuLaunchHostFunc, (CUstream handle, CUhostFn function, void *data), SUBMIT,
           host_function(handle, per_thread, function, data))
ENTRY_PTSZ(cuStreamAddCallback,
           (CUstream handle, CUstreamCallback callback, void *data, unsigned flags), SUBMIT,
           add_callback(handle, per_thread, callback, data, flags))

#define VALUE_ENTRIES(symbol, type, kind, size)                                                    \
    ENTRY_PTSZ(symbol, (CUstream handle, CUdeviceptr address, type number, unsigned flags),        \
               SUBMIT, value(handle, per_thread, kind, size, address, number, flags))

VALUE_ENTRIES(cuStreamWaitValue32, cuuint32_t, WORK_WAIT_VALUE, 4)
VALUE_ENTRIES(cuStreamWaitValue32_v2, cuuint32_t, WORK_WAIT_VALUE, 4)
VALUE_ENTRIES(cuStreamWriteValue32, cuuint32_t, WORK_WRITE_VALUE, 4)
VALUE_ENTRIES(cuStreamWriteValue32_v2, cuuint32_t, WORK_WRITE_VALUE, 4)
VALUE_ENTRIES(cuStreamWaitValue64, cuuint64_t, WORK_WAIT_VALUE, 8)
VALUE_ENTRIES(cuStreamWaitValue64_v2, cuuint64_t, WORK_WAIT_VALUE, 8)
VALUE_ENTRIES(cuStreamWriteValue64, cuuint64_t, WORK_WRITE_VALUE, 8)
VALUE_ENTRIES(cuStreamWriteValue64_v2, cuuint64_t, WORK_WRITE_VALUE, 8)
