/*
 * Starts the recording of the call stacks of blocks (stacks/stacks.h), and tells whether it is on.
 *
 * If recording is on, no allocation and no free takes the fast path (capture_unusual). The fast
 * paths have no extra instruction if it is off. The flag is atomic and set once, at start; no lock
 * protects it.
 */
#ifndef GPUCACHE_DRIVER_STATE_STACK_RECORDING_H
#define GPUCACHE_DRIVER_STATE_STACK_RECORDING_H

#include <stdatomic.h>
#include <stdbool.h>

extern atomic_bool stacks_recorded;

/** Returns whether call stacks are recorded. A thread may see that change (process.c, load()). */
static inline bool stack_recording_is_on(void) {
    return __builtin_expect(atomic_load_explicit(&stacks_recorded, memory_order_acquire), 0);
}

/**
 * Starts the search for requesters, and the recording if GPUCACHE_STACKS asks for it. A lifecycle
 * hook (load) of the process. The child of a fork does not record: all its calls go to the driver.
 */
void stack_recording_start(void);

#endif
