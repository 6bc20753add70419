/*
 * The helper thread that makes the clock of pools tick (pool/decay.c), and gives back what has been idle for
 * GPUCACHE_DECAY_MS, whatever the program's own threads do.
 *
 * It is made with the first pool that decays, and sleeps without an end while no pool has anything idle.
 */
#ifndef GPUCACHE_DRIVER_DECAY_H
#define GPUCACHE_DRIVER_DECAY_H

#include "process/process.h"

#include <stdatomic.h>
#include <stdbool.h>

extern atomic_bool decay_wanted; /* there is a pool that decays, and no thread yet */

/** From now on there is such a pool. */
void decay_want(void);

/** Makes the thread, without any lock. */
void decay_start(void);

static inline void decay_start_if_wanted(void) {
    if (__builtin_expect(atomic_load_explicit(&decay_wanted, memory_order_relaxed), 0)) {
        decay_start();
    }
}

/** A pool has something idle. From inside a pool: neither waits nor takes a lock. */
void decay_wake(void);

/** The driver is about to end: from now on no call of the thread's is under way. */
void decay_stop(void);

/** As parts of the process (process.h). */
void decay_forked(void);
void decay_end(enum process_end how, int signal);

#endif
