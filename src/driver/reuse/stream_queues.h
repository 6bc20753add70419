/*
 * Keeps a queue of deferred frees (deferred.h) for each stream of one context, with the events that
 * cover the frees.
 *
 *      queue of a stream     free 1   free 2   free 3   free 4   free 5 ... free 9
 *      events of the queue   0        1        2        3, recorded again with each later free
 *
 * Streams have separate queues, so a stalled stream delays no other. An event covers the frees up
 * to its last record. If all DEFERRED_EVENTS events of a queue are pending, the newest one is
 * recorded again: it still captures all earlier work. The older events stay, so a stream that is
 * never idle still returns memory. A free costs one record.
 *
 * Callers (deferred.c) hold the lock of the queues, of rank DEFERRED. Invariant: a queue is in its
 * bucket exactly while it is in the list from `first`. All other queues are idle.
 */
#ifndef GPUCACHE_DRIVER_REUSE_STREAM_QUEUES_H
#define GPUCACHE_DRIVER_REUSE_STREAM_QUEUES_H

#include "base/lock.h"
#include "heap/host.h"
#include "pool/pool.h"

#include <cuda.h>

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define DEFERRED_EVENTS 4   /* events of a queue */
#define DEFERRED_BUCKETS 64 /* hash buckets for the queues of one context */

/* A deferred free that waits for its stream. */
struct deferred_free {
    struct pool_deferred block;
    uint64_t number; /* number of the record of its queue that was made for this free */
    struct deferred_free *next;
};

/*
 * Names a stream for the life of the process: no other stream ever has the same identity. The
 * driver may reuse the handle of a stream. An event of the old stream must not be recorded in the
 * new one: it would no longer cover the old stream's frees.
 */
struct stream_identity {
    /* CU_STREAM_LEGACY or CU_STREAM_PER_THREAD; NULL: a stream that the program created */
    CUstream kind;
    /* the driver's number of the stream, never reused; or the number of the thread that owns it */
    uint64_t number;
};

/*
 * The deferred frees of one stream, and the events that cover them. A reclaim makes a queue without
 * frees idle. The next stream without a queue gets an idle one. A queue in use is empty if its only
 * free could not be deferred.
 */
struct stream_queue {
    struct stream_identity stream;
    struct {
        CUevent event;   /* NULL: not created yet */
        uint64_t covers; /* highest number of the frees that the event covers */
    } events[DEFERRED_EVENTS];
    unsigned first, count; /* index of the oldest pending event; number of pending events */
    uint64_t recorded;     /* records so far; the number of the last one */
    struct deferred_free *oldest, *newest;
    struct stream_queue *next_in_bucket;
    struct stream_queue *next; /* in the list of queues in use, or in the idle list */
};

/*
 * The queues of the streams of one context. Events belong to a context and end with it, so idle
 * queues and their events are kept per context.
 */
struct stream_queues {
    /* NULL: the context has ended, and another context may get these queues */
    _Atomic(CUcontext) context;
    struct lock lock;
    bool suspended; /* the context may be ending: its events may not exist, and are not queried */
    struct stream_queue *buckets[DEFERRED_BUCKETS];
    struct stream_queue *first, *last; /* queues in use; the longest without a query first */
    struct stream_queue *idle;
    struct host_freelist queue_freelist, deferred_freelist;
    struct stream_queues *next; /* set once, before other threads see the queues */
};

/** Returns the queue of a stream, and adds it if it is new. Returns NULL without host memory. */
struct stream_queue *stream_queue_of(struct stream_queues *queues, struct stream_identity stream);

/**
 * Records an event of the queue in `stream`: an unused one, or the newest one again if all events
 * are pending. Creates a missing event in `context`. Returns the driver's answer.
 */
CUresult stream_queue_record(CUcontext context, struct stream_queue *queue, CUstream stream,
                             CUresult (*record)(CUevent, CUstream));

/** Adds a free. The caller has recorded an event for it just before (stream_queue_record). */
void stream_queue_add(struct stream_queue *queue, struct deferred_free *deferred);

/**
 * Reclaims frees that their streams have reached: all, or without `all` a bounded number. Returns
 * whether any free was reclaimed.
 */
bool stream_queues_reclaim(struct stream_queues *queues, bool all);

/** Drops the frees of a pool's blocks. */
void stream_queues_forget(struct stream_queues *queues, const struct pool *pool);

/** Reclaims all frees and forgets all events, after the context has ended. */
void stream_queues_end(struct stream_queues *queues);

#endif
