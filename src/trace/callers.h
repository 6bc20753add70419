/*
 * The call stacks that a trace's records name by number (GPUCACHE_STACKS), in chunks that stay: each is written once, when the first
 * record is about to name it.
 *
 * Stacks have most of their frames in common, and frames their module. So a stack is a list of the numbers of its frames, and a frame a
 * text, as reports have it. Whatever finds no room is left out: records then name no stack.
 */
#ifndef GPUCACHE_TRACE_CALLERS_H
#define GPUCACHE_TRACE_CALLERS_H

#include "stats/holders.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define CALLERS_STACKS 65536 /* numbers below it */

extern _Atomic uint64_t callers_written[CALLERS_STACKS / 64];

static inline bool callers_has(uint32_t stack) {
    return stack < CALLERS_STACKS &&
           (atomic_load_explicit(&callers_written[stack / 64], memory_order_acquire) >>
                (stack % 64) &
            1) != 0;
}

/** Writes it, and what it names; false: it cannot be named. Takes the ring's lock, changes errno. */
bool callers_write(const struct stats_stacks *stacks, uint32_t stack, uint32_t thread);

#endif
