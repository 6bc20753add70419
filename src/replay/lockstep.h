/*
 * Runs threads one at a time, in a given order. A replay has as many threads as the recorded
 * program, and repeats its events in their order. One call of lockstep_run() at a time.
 */
#ifndef GPUCACHE_REPLAY_LOCKSTEP_H
#define GPUCACHE_REPLAY_LOCKSTEP_H

#define LOCKSTEP_OVER (-1)

/** Runs on one thread. Returns the number of the thread that runs next, or LOCKSTEP_OVER. */
typedef int lockstep_act(void *with);

/** Starts the threads and runs until LOCKSTEP_OVER, beginning with thread `first`. A single thread
 * is the caller itself. Returns 0, or -EAGAIN if a thread cannot be created. */
int lockstep_run(unsigned threads, int first, lockstep_act *act, void *with);

#endif
