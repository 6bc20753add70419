/*
 * The slots of a trace's file: chunks that are used one after another, and again from the first one once
 * there are as many as are to be kept.
 *
 *      hand                    the next chunk to be used again
 *      |         look          the next one whose blocks are looked after, to learn which still live
 *      v          v
 *      [..][..][..][..][..]    one chunk is 63 records and a head, which says which thread fills it
 *
 * What is known to have gone is left out when the hand comes to its chunk, with all events; the rest is
 * carried: moved to the chunk's front, and a thread gets what is behind it. A chunk that has too little
 * left is passed by, for which there is one more.
 *
 * A chunk that some thread fills is passed by, and after that once more if the thread was slow and has filled it with what is too
 * new to go; so is for good one that holds what has to stay (callers.h). There are as many more of the others.
 *
 * Before a chunk is used again, all others have been looked after since its last record was written. So whenever the
 * end of something is forgotten, its begin is known to be dead: no reader takes what is gone for alive.
 */
#ifndef GPUCACHE_TRACE_RING_H
#define GPUCACHE_TRACE_RING_H

#include "trace/format.h"

#include <stdbool.h>
#include <stdint.h>

/** Whether what a record of this address, kind and time has brought is still there. Takes no lock. */
typedef bool ring_lives(const struct trace_record *record, unsigned kind);

/** A new file: its descriptor, which stays the caller's, and its path, which must stay valid. */
struct ring_file {
    int fd;
    const char *path;
};

/**
 * Maps an empty file for `events` events at least. `lost` is called in a signal handler when the
 * file was cut short: nothing more gets into it. Returns the header, whose fields the caller fills;
 * NULL: errno says why.
 */
struct trace_header *ring_open(struct ring_file file, uint64_t events, ring_lives *lives,
                               void (*lost)(void));

/** A thread's place: the next free slots are its own. */
struct ring_place {
    struct trace_record *next;
    uint32_t left;
    struct trace_record *chunk;
};

/** Gives the thread's chunk up, and takes another one for `thread`. False: there is none. Changes errno; takes a lock. */
bool ring_take(struct ring_place *place, uint32_t thread);

/** A chunk that is never used again, in place of the one that is full. False: there is none. Between ring_hold() and ring_release();
 * changes errno. */
bool ring_take_for_good(struct ring_place *place, uint32_t thread);

/** Gives it up. */
void ring_leave(struct ring_place *place);

/** While held, nobody takes a chunk. */
void ring_hold(void);
void ring_release(void);

#endif
