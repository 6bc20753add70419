/*
 * Keeps allocations and frees off their fast path. All reasons share one counter, so that the fast
 * path has one test for all of them.
 *
 * Each reason against the fast path adds 1: a stream capture in progress (hooks/captures.c), exit
 * handlers (control/exit_handler.c), a trace (observe/tracing.c), recorded call stacks
 * (state/stack_recording.c), and a fork, in the child. Any thread may read and change the counter;
 * no lock protects it.
 */
#ifndef GPUCACHE_DRIVER_STATE_FAST_PATH_H
#define GPUCACHE_DRIVER_STATE_FAST_PATH_H

#include "base/likely.h"

#include <stdatomic.h>
#include <stdbool.h>

extern _Atomic int fast_path_blocks __attribute__((visibility("hidden")));

/** Returns whether an allocation or free must leave the fast path (hooks/memory.c). */
static inline bool fast_path_is_blocked(void) {
    return unlikely(atomic_load_explicit(&fast_path_blocks, memory_order_relaxed) > 0);
}

/** Adds one reason against the fast path, until fast_path_unblock(). */
static inline void fast_path_block(void) {
    atomic_fetch_add(&fast_path_blocks, 1);
}

static inline void fast_path_unblock(void) {
    atomic_fetch_sub(&fast_path_blocks, 1);
}

#endif
