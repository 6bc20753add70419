/*
 * Writes call stacks to the trace (GPUCACHE_STACKS), whose records name them by number.
 *
 * trace_stack() writes each stack once, before the first record names it. Stacks lie in chunks that
 * are never reused. The ring's lock protects all state except callers_written.
 *
 * Stacks share most of their frames, and frames share their modules. A stack is therefore a list of
 * frame numbers, and a frame is a text in the format of reports. A stack for which the file has no
 * space is not written, and records name stack 0. A frame without space has the number 0.
 */
#ifndef GPUCACHE_TRACE_CALLERS_H
#define GPUCACHE_TRACE_CALLERS_H

#include "stats/holders.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define CALLERS_STACKS 65536 /* stacks with larger numbers are not written */

/* One bit for each stack: set once the trace has the stack. */
extern _Atomic uint64_t callers_written[CALLERS_STACKS / 64];

static inline bool callers_has(uint32_t stack) {
    return stack < CALLERS_STACKS &&
           (atomic_load_explicit(&callers_written[stack / 64], memory_order_acquire) >>
                (stack % 64) &
            1) != 0;
}

/**
 * Writes a stack with its frames and modules, unless the trace has it. Returns false if records
 * cannot name the stack. Takes the ring's lock. Changes errno.
 */
bool callers_write(const struct stats_stacks *stacks, uint32_t stack, uint32_t thread);

#endif
