/*
 * The allocations and frees of a program in their order: what a replay runs through a pool.
 *
 * Readers of files make one of these for each device. They name blocks by keys of their own (an
 * address, a number); here each life of a block has a number, so that every free is of one
 * allocation that is there. An entry that does not fit is left out and counted, never guessed.
 */
#ifndef GPUCACHE_REPLAY_HISTORY_H
#define GPUCACHE_REPLAY_HISTORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define HISTORY_BYTES_MOST ((uint64_t)1 << 47) /* of one allocation; what is more is no size */
#define HISTORY_WHY 200
#define HISTORY_THREADS_MOST 64 /* where a program has had more, some are run as one */

struct history_event {
    uint64_t time_us;                 /* since the first; never less than the one before */
    uint64_t bytes;                   /* 0: a free */
    uint32_t block;                   /* a number for each life of a block, from 0 */
    uint32_t stream : 24, thread : 8; /* from 0, in order of appearance */
};

/* From keys to numbers. */
struct history_map {
    struct history_entry {
        uint64_t key;
        uint32_t value;
        bool used;
    } * entries;
    size_t capacity, count;
};

struct history {
    int device; /* -1: the file does not say */
    struct history_event *events;
    size_t count, capacity;
    size_t *periods; /* the event that each begins with */
    size_t period_count, period_room;
    uint32_t blocks, streams, threads;
    uint32_t thread; /* of the next events */
    struct history_map live, stream_numbers, thread_numbers;
    uint64_t begin_us, requested, requested_peak;
    bool begun;
    uint64_t unknown_frees; /* of blocks that were never allocated */
    uint64_t
        lost_frees; /* an address was allocated again: there was a free that is not in the file */
    uint64_t failures; /* allocations that failed when it was recorded */
    bool cut;          /* the last line is not whole */
    /* Bytes that the program's own allocator held, if the file has them. */
    const char *recorded_by; /* "PyTorch"; NULL */
    uint64_t recorded_peak, recorded_requested_peak;
};

struct histories {
    struct history *list; /* by device */
    size_t count;
    char why[HISTORY_WHY]; /* what is wrong with the file */
};

/** Returns the history of a device, and makes it if there is none. NULL without memory. */
struct history *histories_of(struct histories *histories, int device);
void histories_free(struct histories *histories);

/* Each returns 0, or -ENOMEM. Times may begin anywhere; one that goes back counts as the one
 * before. */
int history_allocate(struct history *history, uint64_t time_us, uint64_t key, uint64_t bytes,
                     uint64_t stream);
int history_free(struct history *history, uint64_t time_us, uint64_t key);
int history_period(struct history *history);

/** The events that follow are of this thread, whatever it is called; of one and the same where a
 * file does not say. */
int history_on_thread(struct history *history, uint64_t thread);

/** So many periods of equally many events, where the file marks none. */
int history_cut_into(struct history *history, size_t periods);
void history_end(struct history *history);

/** Whether a block is live. */
bool history_has(const struct history *history, uint64_t key);

#endif
