/*
 * The deferred frees of the streams of one context (deferred.h), and the events that cover them.
 *
 *      line of a stream      free 1   free 2   free 3 ... free 9
 *      its events            |------- 0|------- 1|------------ 2, recorded again with every free
 *
 * A line holds the frees of one stream, so a stalled stream delays no other. An event covers the
 * frees up to its last record. If all events of a line are pending, the newest is recorded again:
 * it still captures all that it did before. The older events stay, so a stream that is never idle
 * still returns memory. A free costs one record.
 *
 * Callers hold the lock of the lines, of rank DEFERRED. Invariant: each line in the list of lines
 * with frees is in its bucket, and no idle line is.
 */
#ifndef GPUCACHE_DRIVER_REUSE_DEFERRED_LINES_H
#define GPUCACHE_DRIVER_REUSE_DEFERRED_LINES_H

#include "heap/host.h"
#include "pool/pool.h"
#include "process/lock.h"

#include <cuda.h>

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define DEFERRED_EVENTS 4   /* of a line */
#define DEFERRED_BUCKETS 64 /* of the lines of one context */

/* A deferred free that waits for its stream. */
struct deferred_free {
    struct pool_deferred block;
    uint64_t number; /* of the free in its line */
    struct deferred_free *next;
};

/*
 * Identity of a stream that no other stream of the process ever has. A stream's handle may be
 * reused for another stream. An event of the old stream must not be recorded in the new one: it
 * would no longer cover the old stream's frees.
 */
struct deferred_stream {
    /* CU_STREAM_LEGACY or CU_STREAM_PER_THREAD; NULL: a stream that the program created */
    CUstream kind;
    /* of the stream, which the driver never reuses; or of the thread that owns the stream */
    uint64_t number;
};

/*
 * The deferred frees of one stream, and the events that cover them. A line belongs to a stream only
 * while it holds frees; an idle line serves the next stream.
 */
struct deferred_line {
    struct deferred_stream stream;
    struct {
        CUevent event;   /* NULL: not created yet */
        uint64_t covers; /* numbers of the frees up to this one */
    } events[DEFERRED_EVENTS];
    unsigned first, count; /* pending events, the oldest first */
    uint64_t recorded;
    struct deferred_free *oldest, *newest;
    struct deferred_line *next_in_bucket;
    struct deferred_line *next; /* in the list of lines with frees, or in the idle list */
};

/*
 * The lines of the streams of one context. Events belong to a context and end with it, so lines and
 * unused events are kept per context.
 */
struct deferred_lines {
    /* NULL: the context has ended, and another one may use this entry */
    _Atomic(CUcontext) context;
    struct lock lock;
    bool suspended; /* the context may be ending: its events may be gone and are not queried */
    struct deferred_line *buckets[DEFERRED_BUCKETS];
    struct deferred_line *first, *last; /* in the order of their last query, the oldest first */
    struct deferred_line *idle;
    struct host_slab line_slab, held_slab;
    struct deferred_lines *next; /* set once, before the entry is published */
};

/** Returns the line of a stream, and adds it if it is new. Returns NULL without host memory. */
struct deferred_line *deferred_line_of(struct deferred_lines *lines, struct deferred_stream stream);

/**
 * Records an unused event of the line in `stream`, or the newest one again if all events are
 * pending. Creates missing events in `context`. Returns the driver's answer.
 */
CUresult deferred_line_record(CUcontext context, struct deferred_line *line, CUstream stream,
                              CUresult (*record)(CUevent, CUstream));

/** Adds a free, which the last record of the line covers. */
void deferred_line_add(struct deferred_line *line, struct deferred_free *held);

/**
 * Reclaims the frees that their streams have reached: all, or within the bounds of a partial
 * reclaim. Returns whether any was reclaimed.
 */
bool deferred_lines_reclaim(struct deferred_lines *lines, bool all);

/** Drops the frees of a pool's blocks. */
void deferred_lines_forget(struct deferred_lines *lines, const struct pool *pool);

/** Reclaims all frees, and forgets all events: the context has ended. */
void deferred_lines_end(struct deferred_lines *lines);

#endif
