/*
 * The helper thread that makes the clock of pools tick (pool/decay.c), and gives back what has been idle for
 * GPUCACHE_DECAY_MS, whatever the program's own threads do.
 *
 * It is made with the first pool that decays, and sleeps without an end while no pool has anything idle.
 */
#ifndef GPUCACHE_DRIVER_CONTEXT_DECAY_H
#define GPUCACHE_DRIVER_CONTEXT_DECAY_H

#include "process/process.h"

/** Asks for the thread. Locks may be held: helper_start_wanted() makes it. */
void decay_start(void);

/** A pool has something idle. From inside a pool: neither waits nor takes a lock. */
void decay_wake(void);

/** The driver is about to end: from now on no call of the thread's is under way. */
void decay_stop(void);

/** As parts of the process (process.h). */
void decay_forked(void);
void decay_end(enum process_end how, int signal);

#endif
