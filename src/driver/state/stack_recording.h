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
extern atomic_bool stacks_recorded;

static inline bool block_stacks_on(void) {
    return __builtin_expect(atomic_load_explicit(&stacks_recorded, memory_order_relaxed), 0);
}

/** A part of the process's start. In the child of a fork nothing of this is reached: all passes through. */
void block_stacks_start(void);

#endif
