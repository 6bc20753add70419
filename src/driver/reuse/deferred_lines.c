#include "driver/reuse/deferred_lines.h"

#include "driver/context/current.h"
#include "driver/state/capture.h"
#include "driver/table/entries.h"

#include <limits.h>

#define LINES_PER_LOOK 8   /* bounds of a partial reclaim: lines queried, */
#define FREES_PER_LOOK 256 /* and frees reclaimed */

/* --- lines --- */

static struct deferred_line **bucket_of(struct deferred_lines *lines,
                                        struct deferred_stream stream) {
    return &lines->buckets[(stream.number ^ (uintptr_t)stream.kind) % DEFERRED_BUCKETS];
}

static void append_line(struct deferred_lines *lines, struct deferred_line *line) {
    line->next = NULL;
    *(lines->first ? &lines->last->next : &lines->first) = line;
    lines->last = line;
}

static struct deferred_line *take_first(struct deferred_lines *lines) {
    struct deferred_line *line = lines->first;
    lines->first = line->next;
    return line;
}

struct deferred_line *deferred_line_of(struct deferred_lines *lines,
                                       struct deferred_stream stream) {
    struct deferred_line **bucket = bucket_of(lines, stream), *line = *bucket;
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
static void make_idle(struct deferred_lines *lines, struct deferred_line *line) {
    struct deferred_line **at = bucket_of(lines, line->stream);
    while (*at != line) {
        at = &(*at)->next_in_bucket;
    }
    *at = line->next_in_bucket;
    line->count = 0;
    line->next = lines->idle;
    lines->idle = line;
}

static void reclaim_oldest(struct deferred_lines *lines, struct deferred_line *line) {
    struct deferred_free *held = line->oldest;
    line->oldest = held->next;
    pool_reclaim(&held->block);
    host_slab_put(&lines->held_slab, held);
}

void deferred_line_add(struct deferred_line *line, struct deferred_free *held) {
    held->number = line->recorded;
    *(line->oldest ? &line->newest->next : &line->oldest) = held;
    line->newest = held;
}

/* --- events --- */

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

CUresult deferred_line_record(CUcontext context, struct deferred_line *line, CUstream stream,
                              CUresult (*record)(CUevent, CUstream)) {
    bool fresh = line->count < DEFERRED_EVENTS;
    unsigned at = (line->first + line->count - !fresh) % DEFERRED_EVENTS;
    CUresult r = record_one(context, &line->events[at].event, stream, record);
    if (r == CUDA_SUCCESS) {
        line->events[at].covers = ++line->recorded;
        line->count += fresh;
    }
    return r;
}

/* --- reclaiming --- */

/*
 * Reclaims at most *frees_left frees of a line, and subtracts them. Returns whether any was
 * reclaimed.
 */
static bool reclaim_line(struct deferred_lines *lines, struct deferred_line *line,
                         unsigned *frees_left) {
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
        line->first = (line->first + 1) % DEFERRED_EVENTS;
        line->count--;
    }
    return any;
}

bool deferred_lines_reclaim(struct deferred_lines *lines, bool all) {
    bool any = false;
    unsigned lines_left = all ? UINT_MAX : LINES_PER_LOOK,
             frees_left = all ? UINT_MAX : FREES_PER_LOOK;
    for (const struct deferred_line *last = lines->last, *line = NULL;
         lines->first && line != last && lines_left > 0; lines_left--) {
        struct deferred_line *next = take_first(lines);
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

/* --- ends --- */

/* Drops the frees of a pool's blocks from a line. */
static void forget_in(struct deferred_lines *lines, struct deferred_line *line,
                      const struct pool *pool) {
    struct deferred_free *rest = line->oldest;
    line->oldest = NULL;
    while (rest) {
        struct deferred_free *held = rest;
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

void deferred_lines_forget(struct deferred_lines *lines, const struct pool *pool) {
    for (struct deferred_line *line = lines->first; line; line = line->next) {
        forget_in(lines, line, pool);
    }
}

void deferred_lines_end(struct deferred_lines *lines) {
    while (lines->first) {
        struct deferred_line *line = take_first(lines);
        while (line->oldest) {
            reclaim_oldest(lines, line);
        }
        make_idle(lines, line);
    }
    while (lines->idle) { /* their events ended with the context */
        struct deferred_line *line = lines->idle;
        lines->idle = line->next;
        host_slab_put(&lines->line_slab, line);
    }
}
