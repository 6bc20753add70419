/*
 * The life of the process, as far as this library takes part in it.
 *
 *      no CUDA       nothing of ours has run but dlsym's two byte compares, and a look at stderr
 *      starting
 *      started       by the first driver call that matters: options read, stderr kept, fork handled, signals at their default action
 *                    taken (signals.h)
 *      forked        a child of a started process: everything passes through, nothing is reported
 *      ending        the last report, without a CUDA call (ending.h)
 */
#ifndef GPUCACHE_PROCESS_PROCESS_H
#define GPUCACHE_PROCESS_PROCESS_H

#include <stdatomic.h>
#include <stdbool.h>

enum process_state { PROCESS_IDLE, PROCESS_STARTING, PROCESS_STARTED, PROCESS_FORKED };

extern _Atomic int process_state; /* enum process_state */

/** Starts what has to be started, once; from any thread, and from inside itself. True unless
 * everything has to pass through. */
bool process_start(void);

static inline bool process_ready(void) {
    return __builtin_expect(
               atomic_load_explicit(&process_state, memory_order_acquire) == PROCESS_STARTED, 1) ||
           process_start();
}

#endif
