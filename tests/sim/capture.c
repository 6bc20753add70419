/*
 * Stream capture: what is submitted becomes a graph instead of work.
 *
 * A capture begins in one stream and spreads to others that wait for an event recorded inside it.
 * Each captured stream has a list of the nodes on which its next node will depend. During a capture
 * some calls are errors and destroy it. The codes are measured (probe.c):
 *
 *   | code | call                                                                               |
 *   | ---- | ---------------------------------------------------------------------------------- |
 *   | 900  | a call on the whole context or on a captured stream; a call that may block or free |
 *   |      | memory, unless the mode of the capture and of the thread is relaxed                |
 *   | 901  | the end of a capture that was destroyed                                            |
 *   | 903  | the end in another stream than the one of the beginning                            |
 *   | 904  | the end with a branch that is not joined                                           |
 *   | 905  | a wait for an event from outside                                                   |
 *   | 906  | a use of the legacy stream while a blocking stream is captured                     |
 *   | 907  | a query of an event from inside                                                    |
 */
#include "graph.h"

#include <stdlib.h>
#include <string.h>

struct capture {
    struct object object;
    CUstreamCaptureMode mode;
    uint64_t thread, id;
    struct stream *origin;
    struct context *context;
    struct graph *graph;
    bool given; /* the program's own graph */
    bool invalid;
    struct stream **streams;
    size_t stream_count;
};

static struct slab capture_slab = SLAB(struct capture);
static struct capture **captures; /* captures that have not ended */
static size_t capture_count, capture_room;

static void invalidate(struct capture *capture) {
    capture->invalid = true;
}

static struct capture *capture_by_id(uint64_t id) {
    for (size_t i = 0; i < capture_count; i++)
        if (captures[i]->id == id)
            return captures[i];
    return NULL;
}

/* ---- what a capture forbids ------------------------------------------------------------------ */

static bool forbids(const struct capture *capture, const struct thread *thread) {
    bool own = capture->thread == thread->id;

    switch (thread->capture_mode) {
    case CU_STREAM_CAPTURE_MODE_GLOBAL:
        return own ? capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED
                   : capture->mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
    case CU_STREAM_CAPTURE_MODE_THREAD_LOCAL:
        return own && capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED;
    default:
        return false;
    }
}

bool capture_forbids(void) {
    const struct thread *thread = thread_self();
    bool forbidden = false;

    for (size_t i = 0; i < capture_count; i++) {
        if (forbids(captures[i], thread)) {
            invalidate(captures[i]);
            forbidden = true;
        }
    }
    return forbidden;
}

CUresult capture_context_call(struct context *context) {
    CUresult result = CUDA_SUCCESS;

    for (size_t i = 0; i < capture_count; i++) {
        if (captures[i]->context == context || captures[i]->context->behind == context) {
            invalidate(captures[i]);
            result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
        }
    }
    return result;
}

/* Returns the error of a call in the legacy stream during a capture. A query has the same
 * answer, but invalidates no capture (cuda.h, cuStreamIsCapturing). */
static CUresult implicit(struct stream *stream, bool question) {
    CUresult result = CUDA_SUCCESS;

    if (stream != stream->context->legacy)
        return CUDA_SUCCESS;
    for (size_t i = 0; i < capture_count; i++) {
        struct capture *capture = captures[i];
        for (size_t j = 0; j < capture->stream_count; j++) {
            if (capture->context == stream->context && capture->streams[j]->blocking) {
                if (!question)
                    invalidate(capture);
                result = CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
            }
        }
    }
    return result;
}

CUresult capture_implicit(struct stream *stream) {
    return implicit(stream, false);
}

CUresult capture_stream_call(struct stream *stream) {
    if (stream->capture) {
        invalidate(stream->capture);
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    CUresult result = capture_implicit(stream);
    if (result == CUDA_SUCCESS && capture_forbids())
        result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    return result;
}

CUresult capture_event_call(struct event *event) {
    if (event->capture_id) {
        struct capture *capture = capture_by_id(event->capture_id);
        if (!capture)
            return CUDA_ERROR_INVALID_VALUE;
        invalidate(capture);
        return CUDA_ERROR_CAPTURED_EVENT;
    }
    return capture_forbids() ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : CUDA_SUCCESS;
}

/* ---- what goes into it ----------------------------------------------------------------------- */

static void set_tip(struct stream *stream, struct node *node) {
    stream->tip_count = 0;
    tips_add(&stream->tips, &stream->tip_count, node);
}

static CUgraphNodeType type_of(const struct work *work) {
    switch (work->kind) {
    case WORK_KERNEL:
        return CU_GRAPH_NODE_TYPE_KERNEL;
    case WORK_COPY:
        return CU_GRAPH_NODE_TYPE_MEMCPY;
    case WORK_SET:
        return CU_GRAPH_NODE_TYPE_MEMSET;
    case WORK_HOST:
        return CU_GRAPH_NODE_TYPE_HOST;
    case WORK_WAIT_VALUE:
    case WORK_WRITE_VALUE:
        return CU_GRAPH_NODE_TYPE_BATCH_MEM_OP;
    default:
        return CU_GRAPH_NODE_TYPE_EMPTY;
    }
}

CUresult capture_submit(struct stream *stream, struct work work) {
    struct capture *capture = stream->capture;

    if (capture->invalid) {
        work_dispose(&work);
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    }
    set_tip(stream,
            graph_add(capture->graph, type_of(&work), work, stream->tips, stream->tip_count));
    return CUDA_SUCCESS;
}

CUresult capture_allocate(struct stream *stream, size_t size, struct pool *pool,
                          CUdeviceptr *address) {
    struct capture *capture = stream->capture;

    if (capture->invalid)
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    struct node *node = graph_add_memory(capture->graph, pool->device, size, stream->tips,
                                         stream->tip_count, address);
    if (!node)
        return CUDA_ERROR_OUT_OF_MEMORY;
    set_tip(stream, node);
    return CUDA_SUCCESS;
}

/* Adds a free to the graph. A graph can free only memory that a graph allocated. */
CUresult capture_free(struct stream *stream, CUdeviceptr address) {
    struct capture *capture = stream->capture;
    const struct range *range = range_find(address);

    if (capture->invalid)
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    if (!range || range->base != address || !range->graph_owned)
        return CUDA_ERROR_INVALID_VALUE;
    set_tip(stream,
            graph_add(capture->graph, CU_GRAPH_NODE_TYPE_MEM_FREE,
                      (struct work){.kind = WORK_NOTHING}, stream->tips, stream->tip_count));
    return CUDA_SUCCESS;
}

CUresult capture_record(struct stream *stream, struct event *event) {
    if (stream->capture->invalid)
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    event->capture_id = stream->capture->id;
    for (size_t i = 0; i < stream->tip_count; i++)
        tips_add(&event->tips, &event->tip_count, stream->tips[i]);
    return CUDA_SUCCESS;
}

static void enlist(struct capture *capture, struct stream *stream) {
    size_t bytes = (capture->stream_count + 1) * sizeof(struct stream *);

    capture->streams = realloc(capture->streams, bytes);
    if (!capture->streams)
        abort();
    capture->streams[capture->stream_count++] = stream;
    stream->capture = capture;
}

CUresult capture_wait(struct stream *stream, struct event *event, bool *handled) {
    struct capture *capture = stream->capture;

    *handled = capture || event->capture_id;
    if (!*handled)
        return CUDA_SUCCESS;
    struct capture *other = event->capture_id ? capture_by_id(event->capture_id) : NULL;
    if (!other) {
        if (!capture || event->capture_id)
            return CUDA_ERROR_INVALID_VALUE;
        if (!event->marker) /* never recorded */
            return CUDA_SUCCESS;
        invalidate(capture);
        return CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
    }
    if (capture && capture != other) {
        invalidate(capture);
        invalidate(other);
        return CUDA_ERROR_STREAM_CAPTURE_MERGE;
    }
    if (other->invalid)
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    if (!capture)
        enlist(other, stream);
    for (size_t i = 0; i < event->tip_count; i++)
        tips_add(&stream->tips, &stream->tip_count, event->tips[i]);
    return CUDA_SUCCESS;
}

/* ---- beginning and ending -------------------------------------------------------------------- */

static CUresult begin(CUstream handle, bool per_thread, CUstreamCaptureMode mode,
                      struct graph *given, const CUgraphNode *needs, size_t count) {
    struct stream *stream;
    CUresult result = stream_resolve(handle, per_thread, &stream);

    if (result != CUDA_SUCCESS)
        return result;
    if ((unsigned)mode > CU_STREAM_CAPTURE_MODE_RELAXED)
        return CUDA_ERROR_INVALID_VALUE;
    if (stream == stream->context->legacy)
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    if (stream->capture)
        return CUDA_ERROR_ILLEGAL_STATE;
    struct capture *capture = slab_get(&capture_slab);
    capture->mode = mode;
    capture->thread = thread_self()->id;
    capture->id = ++sim.next_id;
    capture->origin = stream;
    capture->context = stream->context;
    capture->graph = given ? given : graph_new();
    capture->given = given != NULL;
    if (capture_count == capture_room) {
        capture_room = capture_room ? 2 * capture_room : 8;
        captures = realloc(captures, capture_room * sizeof(struct capture *));
        if (!captures)
            abort();
    }
    captures[capture_count++] = capture;
    enlist(capture, stream);
    for (size_t i = 0; i < count; i++)
        tips_add(&stream->tips, &stream->tip_count, (struct node *)needs[i]);
    return CUDA_SUCCESS;
}

static CUresult begin_to(CUstream handle, bool per_thread, CUgraph graph, const CUgraphNode *needs,
                         size_t count, CUstreamCaptureMode mode) {
    struct graph *given = graph_of(graph);

    return given ? begin(handle, per_thread, mode, given, needs, count) : CUDA_ERROR_INVALID_VALUE;
}

static void forget(struct capture *capture) {
    for (size_t i = 0; i < capture->stream_count; i++) {
        struct stream *stream = capture->streams[i];
        stream->capture = NULL;
        free(stream->tips);
        stream->tips = NULL;
        stream->tip_count = 0;
    }
    free(capture->streams);
    for (size_t i = 0; i < capture_count; i++)
        if (captures[i] == capture)
            captures[i--] = captures[--capture_count];
    slab_put(&capture_slab, capture);
}

static void mark_needed(const struct node *node, bool *needed) {
    if (needed[node->index])
        return;
    needed[node->index] = true;
    for (size_t i = 0; i < node->need_count; i++)
        mark_needed(node->needs[i], needed);
}

/* Returns whether every captured node leads to a tip of the origin stream. */
static bool joined(const struct capture *capture) {
    bool *needed = calloc(capture->graph->count + 1, sizeof(*needed));
    bool all = true;

    if (!needed)
        abort();
    for (size_t i = 0; i < capture->origin->tip_count; i++)
        mark_needed(capture->origin->tips[i], needed);
    for (size_t i = 0; i < capture->stream_count; i++)
        for (size_t j = 0; j < capture->streams[i]->tip_count; j++)
            all = all && needed[capture->streams[i]->tips[j]->index];
    free(needed);
    return all;
}

static CUresult end(CUstream handle, bool per_thread, CUgraph *graph) {
    struct stream *stream;
    CUresult result = stream_resolve(handle, per_thread, &stream);

    if (result != CUDA_SUCCESS)
        return result;
    if (graph)
        *graph = NULL;
    struct capture *capture = stream->capture;
    if (!capture)
        return CUDA_ERROR_ILLEGAL_STATE;
    if (capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED && capture->thread != thread_self()->id)
        return CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
    if (stream != capture->origin) {
        invalidate(capture);
        return CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
    }
    result = capture->invalid   ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED
             : !joined(capture) ? CUDA_ERROR_STREAM_CAPTURE_UNJOINED
                                : CUDA_SUCCESS;
    struct graph *made = capture->graph;
    bool keep = capture->given || (result == CUDA_SUCCESS && graph);
    forget(capture);
    if (!keep)
        graph_free(made);
    else if (result == CUDA_SUCCESS && graph)
        *graph = (CUgraph)made;
    return result;
}

static CUresult exchange_mode(CUstreamCaptureMode *mode) {
    struct thread *thread = thread_self();

    if (!mode || (unsigned)*mode > CU_STREAM_CAPTURE_MODE_RELAXED)
        return CUDA_ERROR_INVALID_VALUE;
    CUstreamCaptureMode before = thread->capture_mode;
    thread->capture_mode = *mode;
    *mode = before;
    return CUDA_SUCCESS;
}

ENTRY_PTSZ(cuStreamBeginCapture, (CUstream stream), INITIALISED,
           begin(stream, per_thread, CU_STREAM_CAPTURE_MODE_GLOBAL, NULL, NULL, 0))
ENTRY_PTSZ(cuStreamBeginCapture_v2, (CUstream stream, CUstreamCaptureMode mode), INITIALISED,
           begin(stream, per_thread, mode, NULL, NULL, 0))
ENTRY_PTSZ(cuStreamBeginCaptureToGraph,
           (CUstream stream, CUgraph graph, const CUgraphNode *needs, const CUgraphEdgeData *data,
            size_t count, CUstreamCaptureMode mode),
           INITIALISED, ((void)data, begin_to(stream, per_thread, graph, needs, count, mode)))
/* Of CUDA 13.3, whose header declares them. */
CUresult CUDAAPI cuStreamBeginRecaptureToGraph(CUstream stream, CUstreamCaptureMode mode,
                                               CUgraph graph, CUgraphRecaptureCallback callback,
                                               void *data);
CUresult CUDAAPI cuStreamBeginRecaptureToGraph_ptsz(CUstream stream, CUstreamCaptureMode mode,
                                                    CUgraph graph,
                                                    CUgraphRecaptureCallback callback, void *data);

/* Does not compare the nodes with those of the graph: adds them. */
ENTRY_PTSZ(cuStreamBeginRecaptureToGraph,
           (CUstream stream, CUstreamCaptureMode mode, CUgraph graph,
            CUgraphRecaptureCallback callback, void *data),
           INITIALISED,
           ((void)callback, (void)data, begin_to(stream, per_thread, graph, NULL, 0, mode)))
ENTRY_PTSZ(cuStreamEndCapture, (CUstream stream, CUgraph *graph), INITIALISED,
           end(stream, per_thread, graph))
ENTRY(cuThreadExchangeStreamCaptureMode, (CUstreamCaptureMode * mode), INITIALISED,
      exchange_mode(mode))

/* ---- questions ------------------------------------------------------------------------------- */

struct info {
    CUstreamCaptureStatus *status;
    cuuint64_t *id;
    CUgraph *graph;
    const CUgraphNode **needs;
    const CUgraphEdgeData **data;
    size_t *count;
};

static CUresult get_info(CUstream handle, bool per_thread, struct info out) {
    struct stream *stream;
    CUresult result = stream_resolve(handle, per_thread, &stream);

    if (result == CUDA_SUCCESS)
        result = implicit(stream, true);
    if (result != CUDA_SUCCESS)
        return result;
    if (!out.status)
        return CUDA_ERROR_INVALID_VALUE;
    const struct capture *capture = stream->capture;
    *out.status = !capture           ? CU_STREAM_CAPTURE_STATUS_NONE
                  : capture->invalid ? CU_STREAM_CAPTURE_STATUS_INVALIDATED
                                     : CU_STREAM_CAPTURE_STATUS_ACTIVE;
    if (*out.status != CU_STREAM_CAPTURE_STATUS_ACTIVE)
        return CUDA_SUCCESS;
    if (out.id)
        *out.id = capture->id;
    if (out.graph)
        *out.graph = (CUgraph)capture->graph;
    if (out.needs)
        *out.needs = (const CUgraphNode *)stream->tips;
    if (out.data)
        *out.data = NULL;
    if (out.count)
        *out.count = stream->tip_count;
    return CUDA_SUCCESS;
}

ENTRY_PTSZ(cuStreamIsCapturing, (CUstream stream, CUstreamCaptureStatus *status), INITIALISED,
           get_info(stream, per_thread, (struct info){.status = status}))
ENTRY_PTSZ(cuStreamGetCaptureInfo, (CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id),
           INITIALISED, get_info(stream, per_thread, (struct info){.status = status, .id = id}))
ENTRY_PTSZ(cuStreamGetCaptureInfo_v2,
           (CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id, CUgraph *graph,
            const CUgraphNode **needs, size_t *count),
           INITIALISED,
           get_info(stream, per_thread, (struct info){status, id, graph, needs, NULL, count}))
ENTRY_PTSZ(cuStreamGetCaptureInfo_v3,
           (CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id, CUgraph *graph,
            const CUgraphNode **needs, const CUgraphEdgeData **data, size_t *count),
           INITIALISED,
           get_info(stream, per_thread, (struct info){status, id, graph, needs, data, count}))

static CUresult update(CUstream handle, bool per_thread, CUgraphNode *needs, size_t count,
                       unsigned flags) {
    struct stream *stream;
    CUresult result = stream_resolve(handle, per_thread, &stream);

    if (result != CUDA_SUCCESS)
        return result;
    if (!stream->capture || stream->capture->invalid)
        return CUDA_ERROR_ILLEGAL_STATE;
    if (flags == CU_STREAM_SET_CAPTURE_DEPENDENCIES)
        stream->tip_count = 0;
    for (size_t i = 0; i < count; i++)
        tips_add(&stream->tips, &stream->tip_count, (struct node *)needs[i]);
    return CUDA_SUCCESS;
}

ENTRY_PTSZ(cuStreamUpdateCaptureDependencies,
           (CUstream stream, CUgraphNode *needs, size_t count, unsigned flags), INITIALISED,
           update(stream, per_thread, needs, count, flags))
ENTRY_PTSZ(cuStreamUpdateCaptureDependencies_v2,
           (CUstream stream, CUgraphNode *needs, const CUgraphEdgeData *data, size_t count,
            unsigned flags),
           INITIALISED, ((void)data, update(stream, per_thread, needs, count, flags)))

/* ---- streams and contexts that go ------------------------------------------------------------ */

void capture_forget_stream(struct stream *stream) {
    struct capture *capture = stream->capture;

    if (!capture)
        return;
    if (stream == capture->origin) {
        struct graph *graph = capture->given ? NULL : capture->graph;
        forget(capture);
        if (graph)
            graph_free(graph);
        return;
    }
    invalidate(capture);
    for (size_t i = 0; i < capture->stream_count; i++)
        if (capture->streams[i] == stream)
            capture->streams[i--] = capture->streams[--capture->stream_count];
    stream->capture = NULL;
    free(stream->tips);
    stream->tips = NULL;
    stream->tip_count = 0;
}

void capture_reset(void) {
    while (capture_count)
        capture_forget_stream(captures[0]->origin);
}
