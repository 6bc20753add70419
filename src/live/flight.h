/*
 * The flight recorder: the last large blocks and the last slow events, always on, so that an OOM and
 * a SIGKILL have a history without any option set.
 *
 * Rings in the live page. Slow events have one of their own: a program that asks for large blocks all
 * the time would push them out. Large blocks have several, by thread, so that threads do not write to
 * the same lines. A writer takes a number with one locked addition and fills the slot. What is read
 * meanwhile, or was written by two of which one was so slow that the others came round, is known by its
 * seal. Nothing is allocated, locked or waited for. Without a page nothing is kept.
 *
 * Time stamps of blocks are of the clock that costs 4 ns. They are milliseconds old, more on a
 * machine that is busy, but of two blocks the later one never has the earlier stamp. The order of
 * what one thread does is exact.
 */
#ifndef GPUCACHE_LIVE_FLIGHT_H
#define GPUCACHE_LIVE_FLIGHT_H

#include "live/page.h"

#include <stdatomic.h>
#include <stdint.h>
#include <time.h>

#define FLIGHT_LARGE ((uint64_t)1 << 20) /* blocks above this are kept */

extern _Atomic(struct live_page *) live_page; /* this process's; NULL: there is none */

static inline uint64_t flight_clock(clockid_t clock) {
    struct timespec now = {0};
    clock_gettime(clock, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

/** Records that a large block came or went. */
void flight_block(enum flight_kind kind, unsigned device, uint64_t address, uint64_t bytes);

/** Something slow, or rare, began at `since` (0: that was not measured) and is over. */
void flight_event(enum flight_kind kind, unsigned device, uint64_t address, uint64_t bytes,
                  uint64_t since);

/** When something slow begins; 0 if there is no page. */
static inline uint64_t flight_begin(void) {
    return atomic_load_explicit(&live_page, memory_order_relaxed) ? flight_clock(CLOCK_MONOTONIC)
                                                                  : 0;
}

#endif
