/*
 * The flight recorder: the last large blocks and the last slow events of the process. It needs no
 * option: an out of memory or a SIGKILL then always has a history.
 *
 * The events lie in rings of the live page. Slow events have a ring of their own, because large
 * blocks would push them out. Large blocks have several rings, one for each group of threads, so
 * that threads do not write to the same cache lines.
 *
 * Takes no lock: a writer takes a number by one atomic addition and fills the slot of that number.
 * Invariant: a reader detects a half-written slot by its seal (page.h). No function allocates or
 * waits. Without a page nothing is recorded. The backends and the modules of driver/ are the
 * callers.
 *
 * Large blocks get their time from CLOCK_MONOTONIC_COARSE, which costs less. These times are
 * milliseconds old, more on a busy machine, and never go backwards. The order within one thread is
 * exact.
 */
#ifndef GPUCACHE_LIVE_FLIGHT_H
#define GPUCACHE_LIVE_FLIGHT_H

#include "base/clock.h"
#include "live/page.h"

#include <stdatomic.h>
#include <stdint.h>

#define FLIGHT_LARGE ((uint64_t)1 << 20) /* bytes; callers record larger blocks */

extern _Atomic(struct live_page *) live_page; /* of this process; NULL: there is none */

/** Records that the program got or freed a large block. Does nothing without a page. */
void flight_block(enum flight_kind kind, unsigned device, uint64_t address, uint64_t bytes);

/**
 * Records a slow or rare event that has just ended. `since`: when the event began, in ns of
 * CLOCK_MONOTONIC; 0: not measured. Does nothing without a page.
 */
void flight_event(enum flight_kind kind, unsigned device, uint64_t address, uint64_t bytes,
                  uint64_t since);

/** Returns the present time in ns, for `since` of flight_event(), or 0 without a page. */
static inline uint64_t flight_begin(void) {
    return atomic_load_explicit(&live_page, memory_order_relaxed) ? clock_ns(CLOCK_MONOTONIC) : 0;
}

#endif
