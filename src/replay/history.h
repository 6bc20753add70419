/*
 * The allocations and frees of a program in order, which a replay repeats with a pool.
 *
 * Readers of files make a history for each device. They name blocks by keys (an address or a
 * number). A history gives each allocation a number. Invariant: each free belongs to an earlier
 * allocation that is still live. An entry of a file that contradicts this is counted and left out.
 */
#ifndef GPUCACHE_REPLAY_HISTORY_H
#define GPUCACHE_REPLAY_HISTORY_H

#include "replay/table.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define HISTORY_BYTES_MOST ((uint64_t)1 << 47) /* of one allocation; larger numbers are no sizes */
#define HISTORY_WHY 200
#define HISTORY_THREADS_MOST 64 /* beyond it, several threads of the program share one */
#define HISTORY_THREAD_BITS 7

struct history_event {
    uint64_t time_us; /* since the first event; never decreases */
    uint64_t bytes;   /* of the block; not 0 */
    uint32_t block;   /* number of the allocation, from 0 */
    /* numbers from 0, in order of appearance */
    uint32_t stream : 24, thread : HISTORY_THREAD_BITS;
    uint32_t frees : 1;
};
_Static_assert(HISTORY_THREADS_MOST <= 1 << HISTORY_THREAD_BITS, "events have any thread's number");

struct history {
    int device; /* -1: unknown */
    struct history_event *events;
    size_t count;
    size_t *periods; /* index of the first event of each period */
    size_t period_count;
    uint32_t blocks, threads;
    uint32_t thread;   /* thread of the events that follow */
    struct table live; /* key of a live block -> index of its allocating event, plus 1 */
    struct table stream_numbers, thread_numbers; /* -> number, plus 1 */
    uint64_t begin_us, requested, requested_peak;
    uint64_t unknown_frees; /* frees without an allocation */
    uint64_t lost_frees;    /* frees that the file lacks: the address was allocated twice */
    uint64_t failures;      /* allocations that failed in the recorded program */
    bool cut;               /* the last line of the file is incomplete */
    /* Bytes that the recorded allocator held, if the file has them. */
    const char *recorded_by; /* name of the recorded allocator, such as "PyTorch", or NULL */
    uint64_t recorded_peak;
};

struct histories {
    struct history *list; /* by device */
    size_t count;
    char why[HISTORY_WHY]; /* the error in the file, for the user */
};

/** Returns the history of a device, and makes it if there is none. */
struct history *histories_of(struct histories *histories, int device);
void histories_free(struct histories *histories);

/* Add an event, or begin a period. Times may begin at any value. A time before the last one counts
 * as the last one. */
void history_allocate(struct history *history, uint64_t time_us, uint64_t key, uint64_t bytes,
                      uint64_t stream);
void history_free(struct history *history, uint64_t time_us, uint64_t key);
void history_period(struct history *history);

/** Sets the thread of the events that follow. `thread` is any number. Without a call, all events
 * have the same thread. */
void history_on_thread(struct history *history, uint64_t thread);

/** Replaces the periods of a history by periods of equally many events. */
void history_cut_into(struct history *history, size_t periods);
/** Frees the memory of a history. */
void history_end(struct history *history);

/** Returns whether the block of a key is live. */
bool history_has(const struct history *history, uint64_t key);

#endif
