/*
 * Helper threads: what has to be done while the program makes no call.
 *
 * They take none of the program's signals, are made no earlier than they are needed, and are not there in the child
 * of a fork. The end of the process does not wait for a thread but for its turn: one piece of work, which begins
 * only while nobody holds it up.
 */
#ifndef GPUCACHE_PROCESS_HELPER_H
#define GPUCACHE_PROCESS_HELPER_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

enum helper_turn { HELPER_IDLE, HELPER_AT_WORK, HELPER_HELD };

/** Makes a thread. 0, or the number of an error. */
int helper_start(void *(*run)(void *));

/** Around one piece of its work. False: it is held up. */
bool helper_begin(_Atomic int *turn);
void helper_done(_Atomic int *turn);

/** Nothing of it begins any more, and none is under way: for that this waits for so long at most. */
void helper_hold(_Atomic int *turn, unsigned ms);

/** It goes on. */
void helper_release(_Atomic int *turn);

/** Sleeps for all of that time, whatever comes in between. */
void helper_sleep(uint64_t ns);

#endif
