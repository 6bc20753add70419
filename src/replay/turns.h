/*
 * Runs threads one at a time, in a given order. A replay has as many threads as the recorded
 * program, and repeats its events in their order. One call of turns_take() at a time.
 */
#ifndef GPUCACHE_REPLAY_TURNS_H
#define GPUCACHE_REPLAY_TURNS_H

#define TURNS_OVER (-1)

/** Runs on one thread. Returns the number of the thread that runs next, or TURNS_OVER. */
typedef int turns_act(void *with);

/** Starts the threads and runs until TURNS_OVER, beginning with thread `first`. A single thread is
 * the caller itself. Returns 0, or -EAGAIN if a thread cannot be created. */
int turns_take(unsigned threads, int first, turns_act *act, void *with);

#endif
