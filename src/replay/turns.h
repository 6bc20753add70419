/*
 * Threads that take turns: what a program did on several is done again on as many, one after
 * another as it was.
 */
#ifndef GPUCACHE_REPLAY_TURNS_H
#define GPUCACHE_REPLAY_TURNS_H

#define TURNS_OVER (-1)

/** Does what is next of one thread. Returns whose turn it is then, or TURNS_OVER. */
typedef int turns_act(void *with);

/** From the first thread's turn on. A single one is the caller itself. 0, or -EAGAIN where the
 * system has no thread. */
int turns_take(unsigned threads, int first, turns_act *act, void *with);

#endif
