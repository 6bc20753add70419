/*
 * Whether call stacks of blocks are recorded (stacks/stacks.h).
 *
 * While they are, no allocation and no free takes the fast path (capture_unusual). Without them, the fast
 * paths have no instruction more.
 */
#ifndef GPUCACHE_DRIVER_STATE_STACK_RECORDING_H
#define GPUCACHE_DRIVER_STATE_STACK_RECORDING_H

#include <stdatomic.h>
#include <stdbool.h>

/** Whether they are. */
extern atomic_bool remembering;

static inline bool remember_on(void) {
    return __builtin_expect(atomic_load_explicit(&remembering, memory_order_relaxed), 0);
}

/** A part of the process's start. In the child of a fork nothing of this is reached: all passes through. */
void remember_start(void);

#endif
