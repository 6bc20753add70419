/*
 * Replays a history with the library's own pool, on a simulated device.
 *
 * An event of the device completes a fixed delay after it was recorded, in the time of the history.
 * Memory has no contents. Calls take no time in the history. The pool is the one that programs use,
 * with as many threads as the history has.
 */
#ifndef GPUCACHE_REPLAY_RERUN_H
#define GPUCACHE_REPLAY_RERUN_H

#include "pool/pool.h"
#include "replay/account.h"

struct rerun_setting {
    bool pages; /* the backend; false: segments */
    uint64_t delay_us;
    uint64_t budget;   /* bytes; 0: automatic */
    uint64_t limit;    /* on reserved bytes; 0: none */
    uint64_t capacity; /* bytes of the device */
    uint64_t decay_us; /* 0: idle memory is never returned */
    enum reuse reuse;
};

/** Runs a history. Called at most once in a process, because a pool cannot be destroyed. The caller
 * has started `account`. */
void rerun(const struct rerun_setting *setting, struct account *account);

#define LOCKSTEP_OVER (-1)

/** Runs on one thread. Returns the number of the thread that runs next, or LOCKSTEP_OVER. */
typedef int lockstep_act(void *with);

/**
 * Starts the threads and runs them one at a time until LOCKSTEP_OVER, from thread `first` on. A
 * replay has as many threads as the recorded program, and repeats its events in their order. A
 * single thread is the caller itself. Returns 0, or -EAGAIN if a thread cannot be created. One call
 * at a time.
 */
int lockstep_run(unsigned threads, int first, lockstep_act *act, void *with);

#endif
