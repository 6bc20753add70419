#include "driver/reuse/deferred.h"

#include "driver/context/context.h"
#include "driver/state/capture.h"
#include "driver/table/entries.h"
#include "heap/host.h"
#include "pool/pool.h"
#include "process/lock.h"

#include <limits.h>

#define EVENTS_OF_A_LINE 4
#define BUCKETS 64         /* of the lines of one context */
#define LINES_PER_LOOK 8   /* looked at in passing, */
#define FREES_PER_LOOK 256 /* and given back */

/* A block that waits. */
struct held {
    struct pool_deferred block;
    uint64_t number; /* in its line */
    struct held *next;
};

/* What tells a stream from all others that there ever were. */
struct identity {
    CUstream kind;   /* CU_STREAM_LEGACY or CU_STREAM_PER_THREAD; NULL: one that the program made */
    uint64_t number; /* of the stream, or of the thread whose own it is */
};

struct line {
    struct identity stream;
    struct {
        CUevent event;   /* NULL: not made yet */
        uint64_t covers; /* frees up to this one */
    } events[EVENTS_OF_A_LINE];
    unsigned first, count; /* those under way, the oldest first */
    uint64_t recorded;
    struct held *oldest, *newest;
    struct line *next_in_bucket;
    struct line *next; /* among those with frees, or among the idle ones */
};

/* The lines of the streams of one context. */
struct lines {
    _Atomic(CUcontext) context; /* NULL: it has ended; another may take its place */
    struct lock lock;
    bool suspended; /* the context may be ending: its events are not asked, they may be gone */
    struct line *buckets[BUCKETS];
    struct line *first, *last; /* the one looked at longest ago first */
    struct line *idle;
    struct host_slab line_slab, held_slab;
    struct lines *next; /* set once */
};

static _Atomic(struct lines *) all_lines;
static struct lock making = LOCK_INITIALIZER(DEFERRED_CONTEXTS);

/* --- the contexts --- */

static struct lines *find_lines(CUcontext context) {
    struct lines *lines = atomic_load(&all_lines);
    while (lines && atomic_load(&lines->context) != context) {
        lines = lines->next;
    }
    return lines;
}

static struct lines *make_lines(CUcontext context) {
    lock_acquire(&making);
    struct lines *lines = find_lines(context);
    if (!lines && (lines = find_lines(NULL)) != NULL) {
        atomic_store(&lines->context, context);
    } else if (!lines && (lines = host_map(sizeof *lines, 4096)) != NULL) {
        lock_start(&lines->lock, LOCK_DEFERRED);
        lines->line_slab.object_bytes = sizeof(struct line);
        lines->held_slab.object_bytes = sizeof(struct held);
        lines->next = atomic_load(&all_lines);
        atomic_store(&lines->context, context);
        atomic_store(&all_lines, lines);
    }
    lock_release(&making);
    return lines;
}

/* Locked; NULL without host memory. */
static struct lines *lock_lines(CUcontext context) {
    for (;;) {
        struct lines *lines = find_lines(context);
        if (!lines && !(lines = make_lines(context))) {
            return NULL;
        }
        lock_acquire(&lines->lock);
        if (atomic_load(&lines->context) == context) {
            return lines;
        }
        lock_release(&lines->lock); /* the one with that handle ended meanwhile */
    }
}

/* --- lines; the lock of their context is held --- */

static struct line **bucket_of(struct lines *lines, struct identity stream) {
    return &lines->buckets[(stream.number ^ (uintptr_t)stream.kind) % BUCKETS];
}

static void append(struct lines *lines, struct line *line) {
    line->next = NULL;
    *(lines->first ? &lines->last->next : &lines->first) = line;
    lines->last = line;
}

static struct line *take_first(struct lines *lines) {
    struct line *line = lines->first;
    lines->first = line->next;
    return line;
}

static struct line *line_of(struct lines *lines, struct identity stream) {
    struct line **bucket = bucket_of(lines, stream), *line = *bucket;
    while (line && (line->stream.number != stream.number || line->stream.kind != stream.kind)) {
        line = line->next_in_bucket;
    }
    if (!line && ((line = lines->idle) || (line = host_slab_get(&lines->line_slab)))) {
        lines->idle = line == lines->idle ? line->next : lines->idle;
        line->stream = stream;
        line->next_in_bucket = *bucket;
        *bucket = line;
        append(lines, line);
    }
    return line;
}

/* Its events may be under way still: nothing depends on them, and they are recorded anew. */
static void put_away(struct lines *lines, struct line *line) {
    struct line **at = bucket_of(lines, line->stream);
    while (*at != line) {
        at = &(*at)->next_in_bucket;
    }
    *at = line->next_in_bucket;
    line->count = 0;
    line->next = lines->idle;
    lines->idle = line;
}

static void give_back(struct lines *lines, struct line *line) {
    struct held *held = line->oldest;
    line->oldest = held->next;
    pool_reclaim(&held->block);
    host_slab_put(&lines->held_slab, held);
}

/* --- freeing --- */

/* An event belongs to the context that is current when it is made. */
static CUresult make_event(CUcontext context, CUevent *event) {
    CUcontext current = NULL, popped;
    REAL(cuCtxGetCurrent)(&current);
    if (current == context) {
        return REAL(cuEventCreate)(event, CU_EVENT_DISABLE_TIMING);
    }
    CUresult r = REAL(cuCtxPushCurrent_v2)(context);
    if (r == CUDA_SUCCESS) {
        r = REAL(cuEventCreate)(event, CU_EVENT_DISABLE_TIMING);
        REAL(cuCtxPopCurrent_v2)(&popped);
    }
    return r;
}

/*
 * Whether all that the event captured has finished. One that the driver does not know has ended with its
 * context, which waited for its work; but to ask for one that is gone can crash (tests/gpu/
 * facts_release.cu), so nothing is asked of a context whose end has been announced. In relaxed mode: a question about an event ends captures in the others.
 */
static bool is_over(CUevent *event) {
    bool captures = atomic_load(&capture_active) > 0;
    CUstreamCaptureMode mode = captures ? capture_relax() : CU_STREAM_CAPTURE_MODE_GLOBAL;
    CUresult r = *event ? REAL(cuEventQuery)(*event) : CUDA_SUCCESS;
    if (captures) {
        capture_restore(mode);
    }
    if (r == CUDA_ERROR_INVALID_HANDLE || r == CUDA_ERROR_CONTEXT_IS_DESTROYED) {
        *event = NULL;
        r = CUDA_SUCCESS;
    }
    return r == CUDA_SUCCESS;
}

static CUresult record_one(CUcontext context, CUevent *event, CUstream stream,
                           CUresult (*record)(CUevent, CUstream)) {
    bool old = *event != NULL;
    CUresult r = old ? CUDA_SUCCESS : make_event(context, event);
    r = r == CUDA_SUCCESS ? record(*event, stream) : r;
    if (r == CUDA_ERROR_INVALID_HANDLE && old && is_over(event) && !*event) {
        return record_one(context, event, stream, record); /* it was the event, not the stream */
    }
    return r;
}

static CUresult record_in(CUcontext context, struct line *line, CUstream stream,
                          CUresult (*record)(CUevent, CUstream)) {
    bool fresh = line->count < EVENTS_OF_A_LINE;
    unsigned at = (line->first + line->count - !fresh) % EVENTS_OF_A_LINE;
    CUresult r = record_one(context, &line->events[at].event, stream, record);
    if (r == CUDA_SUCCESS) {
        line->events[at].covers = ++line->recorded;
        line->count += fresh;
    }
    return r;
}

static CUresult add_in(CUcontext context, struct identity which, CUdeviceptr dptr, CUstream stream,
                       CUresult (*record)(CUevent, CUstream)) {
    struct lines *lines = lock_lines(context);
    if (!lines) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    struct held *held = host_slab_get(&lines->held_slab);
    struct line *line = held ? line_of(lines, which) : NULL;
    CUresult r = line ? record_in(context, line, stream, record) : CUDA_ERROR_OUT_OF_MEMORY;
    if (r == CUDA_SUCCESS && pool_defer_free(dptr, &held->block) != 0) {
        r = CUDA_ERROR_INVALID_VALUE;
    }
    if (r == CUDA_SUCCESS) {
        held->number = line->recorded;
        *(line->oldest ? &line->newest->next : &line->oldest) = held;
        line->newest = held;
    } else if (held) {
        host_slab_put(&lines->held_slab, held);
    }
    lock_release(&lines->lock);
    return r;
}

/* A driver that does not number its streams gets a line, and with it an event, for every free. */
static CUresult identify(CUstream stream, bool per_thread, struct identity *which) {
    static _Atomic uint64_t threads, frees;
    static _Thread_local uint64_t thread __attribute__((tls_model("initial-exec")));
    *which = (struct identity){.kind = NULL};
    if (stream == CU_STREAM_PER_THREAD || (!stream && per_thread)) {
        thread = thread ? thread : atomic_fetch_add(&threads, 1) + 1;
        *which = (struct identity){CU_STREAM_PER_THREAD, thread};
    } else if (!stream || stream == CU_STREAM_LEGACY) {
        which->kind = CU_STREAM_LEGACY;
    } else if (HAS(cuStreamGetId)) {
        unsigned long long number = 0;
        CUresult r = REAL(cuStreamGetId)(stream, &number);
        which->number = number;
        return r;
    } else {
        which->number = atomic_fetch_add(&frees, 1);
    }
    return CUDA_SUCCESS;
}

/*
 * Returns the current context, or NULL. Where cuCtxGetCurrent fails, the context of the thread's
 * own stream is the current one, as NVIDIA's documentation of cuStreamGetCtx says. The same
 * question about the legacy stream ends captures of blocking streams (tests/sim/test_captures.c).
 */
static CUcontext current_context(void) {
    CUcontext current = NULL;
    if (REAL(cuCtxGetCurrent)(&current) != CUDA_SUCCESS) {
        REAL(cuStreamGetCtx)(CU_STREAM_PER_THREAD, &current);
    }
    return current;
}

CUresult deferred_add(CUdeviceptr dptr, CUcontext current, CUstream stream, bool per_thread,
                      CUresult (*record)(CUevent, CUstream)) {
    struct identity which;
    CUcontext own = NULL;
    CUresult r = identify(stream, per_thread, &which);
    if (r != CUDA_SUCCESS) {
        return r;
    }
    current = current ? current : current_context();
    r = current ? add_in(current, which, dptr, stream, record) : CUDA_ERROR_INVALID_HANDLE;
    bool elsewhere = r == CUDA_ERROR_INVALID_HANDLE && !which.kind &&
                     REAL(cuStreamGetCtx)(stream, &own) == CUDA_SUCCESS && own != current;
    return elsewhere ? add_in(own, which, dptr, stream, record) : r;
}

/* --- looking --- */

static bool look_at(struct lines *lines, struct line *line, unsigned *most) {
    bool any = false;
    while (line->oldest && is_over(&line->events[line->first].event)) {
        uint64_t covered = line->events[line->first].covers;
        while (line->oldest && line->oldest->number <= covered && *most > 0) {
            give_back(lines, line);
            any = true;
            --*most;
        }
        if (line->oldest && line->oldest->number <= covered) {
            break;
        }
        line->first = (line->first + 1) % EVENTS_OF_A_LINE;
        line->count--;
    }
    return any;
}

/* Locked. */
static bool look(struct lines *lines, bool all) {
    bool any = false;
    unsigned left = all ? UINT_MAX : LINES_PER_LOOK, most = all ? UINT_MAX : FREES_PER_LOOK;
    for (const struct line *last = lines->last, *line = NULL;
         lines->first && line != last && left > 0; left--) {
        struct line *next = take_first(lines);
        any |= look_at(lines, next, &most);
        line = next;
        if (next->oldest) {
            append(lines, next);
        } else {
            put_away(lines, next);
        }
    }
    return any;
}

/*
 * A record may be held up by a free of the same context that waits in the driver. Whoever works in that
 * context is held up as well; nobody else is here.
 */
bool deferred_reclaim(CUcontext context, bool all) {
    bool any = false;
    for (struct lines *lines = atomic_load(&all_lines); lines; lines = lines->next) {
        if (all && atomic_load(&lines->context) == context) {
            lock_acquire(&lines->lock);
        } else if (!lock_try(&lines->lock)) {
            continue;
        }
        any |= !lines->suspended && look(lines, all);
        lock_release(&lines->lock);
    }
    return any;
}

void deferred_reclaim_now(void) {
    CUcontext current = NULL;
    REAL(cuCtxGetCurrent)(&current); /* without an answer the locks are only tried */
    deferred_reclaim(current, true);
}

void deferred_suspend(const struct context *context, bool suspended) {
    struct lines *lines = find_lines(context->handle);
    if (lines) {
        lock_acquire(&lines->lock);
        lines->suspended = suspended;
        lock_release(&lines->lock);
    }
}

void deferred_capture_announced(void) {
    for (struct lines *lines = atomic_load(&all_lines); lines; lines = lines->next) {
        lock_acquire(&lines->lock);
        lock_release(&lines->lock);
    }
}

/* --- ends --- */

static void forget_in(struct lines *lines, struct line *line, const struct pool *pool) {
    struct held *rest = line->oldest;
    line->oldest = NULL;
    while (rest) {
        struct held *held = rest;
        rest = held->next;
        if (held->block.pool == pool) {
            host_slab_put(&lines->held_slab, held);
        } else {
            held->next = NULL;
            *(line->oldest ? &line->newest->next : &line->oldest) = held;
            line->newest = held;
        }
    }
}

static void forget_blocks(const struct pool *pool) {
    for (struct lines *lines = atomic_load(&all_lines); lines; lines = lines->next) {
        lock_acquire(&lines->lock);
        for (struct line *line = lines->first; line; line = line->next) {
            forget_in(lines, line, pool);
        }
        lock_release(&lines->lock);
    }
}

void deferred_forget(const struct context *context) {
    if (context->pool) {
        forget_blocks(context->pool);
    }
    struct lines *lines = find_lines(context->handle);
    if (!lines) {
        return;
    }
    lock_acquire(&lines->lock);
    while (lines->first) {
        struct line *line = take_first(lines);
        while (line->oldest) {
            give_back(lines, line);
        }
        put_away(lines, line);
    }
    while (lines->idle) { /* their events are gone */
        struct line *line = lines->idle;
        lines->idle = line->next;
        host_slab_put(&lines->line_slab, line);
    }
    lines->suspended = false;
    atomic_store(&lines->context, NULL);
    lock_release(&lines->lock);
}
