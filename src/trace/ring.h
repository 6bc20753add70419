/*
 * The chunks of a trace's file. Threads fill them in order; at the bound the oldest are reused.
 *
 *      hand                    the next chunk to reuse
 *      |         scan          the next chunk whose records are checked for dead blocks
 *      v          v
 *      [..][..][..][..][..]    a chunk: a head with the thread that fills it, and 63 records
 *
 * Reuse drops the events of a chunk and moves the records of live blocks, segments and pages to its
 * front (TRACE_CARRIED). The hand skips a chunk that a thread fills, that has recent records, or
 * that has definitions (callers.h). Each skipped chunk allows one chunk more.
 *
 * Invariant: before a chunk is reused, all chunks were scanned since its last record was written.
 * If the end of a block is dropped, its begin is marked dead: no reader takes the block for live.
 * One lock (rank TRACE) protects the chunks; a thread fills its own chunk without it. trace.c,
 * callers.c and last.c call this file.
 */
#ifndef GPUCACHE_TRACE_RING_H
#define GPUCACHE_TRACE_RING_H

#include "trace/format.h"

#include <stdbool.h>
#include <stdint.h>

/** Returns whether the block, segment or page that a record began still lives. Takes no lock. */
typedef bool ring_lives(const struct trace_record *record, unsigned kind);

/** A new file. The caller keeps the descriptor and may close it; the path must stay valid. */
struct ring_file {
    int fd;
    const char *path;
};

/**
 * Maps an empty file for at least `events` events. `lost` is called in a signal handler when
 * another process truncated the file: later records are lost. Returns the header, whose fields the
 * caller fills. Returns NULL and sets errno on failure. Called once.
 */
struct trace_header *ring_open(struct ring_file file, uint64_t events, ring_lives *lives,
                               void (*lost)(void));

/** The chunk of one thread, and the free slots in it. */
struct ring_place {
    struct trace_record *next;
    uint32_t left; /* free slots */
    struct trace_record *chunk;
};

/**
 * Gives the thread's chunk back and takes another one for `thread`. Returns false if there is none.
 * Takes the ring's lock. Changes errno.
 */
bool ring_take(struct ring_place *place, uint32_t thread);

/**
 * Takes a chunk that is never reused. Returns false if none is available. The caller holds the
 * ring's lock. Changes errno.
 */
bool ring_take_for_good(struct ring_place *place, uint32_t thread);

/** Gives the thread's chunk back to the ring. Takes no lock. */
void ring_leave(struct ring_place *place);

/** Calls see() for each slot that may have a record, in no order. Takes the ring's lock. */
void ring_each(void (*see)(const struct trace_record *record, void *with), void *with);

/** Returns the header of the file, or NULL if none is open. */
const struct trace_header *ring_header(void);

/** Acquire and release the ring's lock: while it is held, no thread takes a chunk. */
void ring_hold(void);
void ring_release(void);

#endif
