/*
 * Starts the recording of the call stacks of blocks (stacks/stacks.h), and tells whether it is on.
 *
 * The flag is atomic and set once, at start; no lock protects it. The hooks of memory and observe/
 * read it. While it is set, allocations and frees leave the fast path (fast_path.h).
 */
#ifndef GPUCACHE_DRIVER_STATE_STACK_RECORDING_H
#define GPUCACHE_DRIVER_STATE_STACK_RECORDING_H

#include "base/likely.h"

#include <stdatomic.h>
#include <stdbool.h>

extern atomic_bool stacks_recorded;

/** Returns whether call stacks are recorded. The value may change during a thread's first call,
 * because another thread runs the lifecycle hooks (load() in process.c). */
static inline bool stack_recording_is_on(void) {
    return unlikely(atomic_load_explicit(&stacks_recorded, memory_order_acquire));
}

/**
 * Starts the search for requesters, and the recording if GPUCACHE_STACKS asks for it. Lifecycle
 * hook (`load`). The child of a fork does not record: all its calls go to the driver.
 */
void stack_recording_start(void);

#endif
