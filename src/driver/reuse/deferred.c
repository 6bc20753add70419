#include "driver/reuse/deferred.h"

#include "driver/context/context.h"
#include "driver/context/current.h"
#include "driver/state/capture.h"
#include "driver/table/entries.h"
#include "heap/host.h"
#include "pool/pool.h"
#include "process/lock.h"

#include <limits.h>

#define EVENTS_OF_A_LINE 4
#define BUCKETS 64         /* of the lines of one context */
#define LINES_PER_LOOK 8   /* bounds of a partial reclaim: lines queried, */
#define FREES_PER_LOOK 256 /* and frees reclaimed */

/* A deferred free that waits for its stream. */
struct held {
    struct pool_deferred block;
    uint64_t number; /* of the free in its line */
    struct held *next;
};

/*
 * Identity of a stream that no other stream of the process ever has. A stream's handle may be
 * reused for another stream. An event of the old stream must not be recorded in the new one: it
 * would no longer cover the old stream's frees.
 */
struct identity {
    /* CU_STREAM_LEGACY or CU_STREAM_PER_THREAD; NULL: a stream that the program created */
    CUstream kind;
    /* of the stream, which the driver never reuses; or of the thread that owns the stream */
    uint64_t number;
};

/*
 * The deferred frees of one stream, and the events that cover them. A line belongs to a stream only
 * while it holds frees; an idle line serves the next stream.
 */
struct line {
    struct identity stream;
    struct {
        CUevent event;   /* NULL: not created yet */
        uint64_t covers; /* numbers of the frees up to this one */
    } events[EVENTS_OF_A_LINE];
    unsigned first, count; /* pending events, the oldest first */
    uint64_t recorded;
    struct held *oldest, *newest;
    struct line *next_in_bucket;
    struct line *next; /* in the list of lines with frees, or in the idle list */
};

/*
 * The lines of the streams of one context. Events belong to a context and end with it, so lines and
 * unused events are kept per context.
 */
struct lines {
    /* NULL: the context has ended, and another one may use this entry */
    _Atomic(CUcontext) context;
    struct lock lock;
    bool suspended; /* the context may be ending: its events may be gone and are not queried */
    struct line *buckets[BUCKETS];
    struct line *first, *last; /* in the order of their last query, the oldest first */
    struct line *idle;
    struct host_slab line_slab, held_slab;
    struct lines *next; /* set once, before the entry is published */
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

/* Returns the lines of a context with their lock held, or NULL without host memory. */
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
        lock_release(&lines->lock); /* the context with that handle has ended */
    }
}

/* --- lines; the lock of their context is held --- */

static struct line **bucket_of(struct lines *lines, struct identity stream) {
    return &lines->buckets[(stream.number ^ (uintptr_t)stream.kind) % BUCKETS];
}

static void append_line(struct lines *lines, struct line *line) {
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
        append_line(lines, line);
    }
    return line;
}

/*
 * Makes a line without frees idle. Its events may still be pending: nothing depends on them, and
 * the next user records them again.
 */
static void make_idle(struct lines *lines, struct line *line) {
    struct line **at = bucket_of(lines, line->stream);
    while (*at != line) {
        at = &(*at)->next_in_bucket;
    }
    *at = line->next_in_bucket;
    line->count = 0;
    line->next = lines->idle;
    lines->idle = line;
}

static void reclaim_oldest(struct lines *lines, struct line *line) {
    struct held *held = line->oldest;
    line->oldest = held->next;
    pool_reclaim(&held->block);
    host_slab_put(&lines->held_slab, held);
}

/* --- freeing --- */

/*
 * Creates an event in `context`: an event belongs to the context that is current at its creation.
 */
static CUresult make_event(CUcontext context, CUevent *event) {
    CUcontext current = NULL;
    REAL(cuCtxGetCurrent)(&current);
    if (current == context) {
        return REAL(cuEventCreate)(event, CU_EVENT_DISABLE_TIMING);
    }
    CUresult r = current_push(context);
    if (r == CUDA_SUCCESS) {
        r = REAL(cuEventCreate)(event, CU_EVENT_DISABLE_TIMING);
        current_pop();
    }
    return r;
}

/*
 * Returns whether all work that the event captured has completed. An event that the driver does not
 * know ended with its context, which waited for its work. A query of an event that is gone can
 * crash (tests/gpu/facts_release.cu), so no context whose end was announced is queried. Queries in
 * relaxed mode, since a query in another mode invalidates captures.
 */
static bool has_completed(CUevent *event) {
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
    bool existed = *event != NULL;
    CUresult r = existed ? CUDA_SUCCESS : make_event(context, event);
    r = r == CUDA_SUCCESS ? record(*event, stream) : r;
    if (r == CUDA_ERROR_INVALID_HANDLE && existed && has_completed(event) && !*event) {
        /* The handle of the event was invalid, not that of the stream. */
        return record_one(context, event, stream, record);
    }
    return r;
}

/*
 * Records an unused event of the line, or the newest one again if all events are pending. Lock
 * held.
 */
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

/*
 * Defers the free of `dptr` in a context, in the line of stream `which`. Takes the lock. Returns as
 * deferred_add().
 */
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

/*
 * Determines the identity of a stream. If the driver does not number its streams, every free gets
 * its own line and event. Returns CUDA_SUCCESS or the driver's error code.
 */
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
 * Returns the current context, or NULL. If cuCtxGetCurrent fails, the context of the thread's own
 * stream is the current one (NVIDIA's documentation of cuStreamGetCtx). The same query for the
 * legacy stream invalidates captures of blocking streams (tests/sim/test_captures.c).
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
    bool of_other_context = r == CUDA_ERROR_INVALID_HANDLE && !which.kind &&
                            REAL(cuStreamGetCtx)(stream, &own) == CUDA_SUCCESS && own != current;
    return of_other_context ? add_in(own, which, dptr, stream, record) : r;
}

/* --- reclaiming --- */

/*
 * Reclaims at most *frees_left frees of a line, and subtracts them. Returns whether any was
 * reclaimed. Lock held.
 */
static bool reclaim_line(struct lines *lines, struct line *line, unsigned *frees_left) {
    bool any = false;
    while (line->oldest && has_completed(&line->events[line->first].event)) {
        uint64_t covered = line->events[line->first].covers;
        while (line->oldest && line->oldest->number <= covered && *frees_left > 0) {
            reclaim_oldest(lines, line);
            any = true;
            --*frees_left;
        }
        if (line->oldest && line->oldest->number <= covered) {
            break;
        }
        line->first = (line->first + 1) % EVENTS_OF_A_LINE;
        line->count--;
    }
    return any;
}

/*
 * Reclaims the frees of a context that their streams have reached: all, or within the bounds of a
 * partial reclaim. Returns whether any was reclaimed. Lock held.
 */
static bool reclaim_lines(struct lines *lines, bool all) {
    bool any = false;
    unsigned lines_left = all ? UINT_MAX : LINES_PER_LOOK,
             frees_left = all ? UINT_MAX : FREES_PER_LOOK;
    for (const struct line *last = lines->last, *line = NULL;
         lines->first && line != last && lines_left > 0; lines_left--) {
        struct line *next = take_first(lines);
        any |= reclaim_line(lines, next, &frees_left);
        line = next;
        if (next->oldest) {
            append_line(lines, next);
        } else {
            make_idle(lines, next);
        }
    }
    return any;
}

/*
 * Waits only for the lock of the caller's own context. The lock may be held by a record that waits,
 * in the driver, for a free of the same context. The free delays all work in the same context
 * anyway, but must not delay other contexts.
 */
bool deferred_reclaim(CUcontext context, bool all) {
    bool any = false;
    for (struct lines *lines = atomic_load(&all_lines); lines; lines = lines->next) {
        if (all && atomic_load(&lines->context) == context) {
            lock_acquire(&lines->lock);
        } else if (!lock_try(&lines->lock)) {
            continue;
        }
        any |= !lines->suspended && reclaim_lines(lines, all);
        lock_release(&lines->lock);
    }
    return any;
}

void deferred_reclaim_now(void) {
    CUcontext current = NULL;
    REAL(cuCtxGetCurrent)(&current); /* if the call fails, all locks are only tried */
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

/* Drops the frees of a pool's blocks from a line. Lock held. */
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
            reclaim_oldest(lines, line);
        }
        make_idle(lines, line);
    }
    while (lines->idle) { /* their events ended with the context */
        struct line *line = lines->idle;
        lines->idle = line->next;
        host_slab_put(&lines->line_slab, line);
    }
    lines->suspended = false;
    atomic_store(&lines->context, NULL);
    lock_release(&lines->lock);
}
