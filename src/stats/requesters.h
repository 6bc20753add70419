/*
 * Requested bytes by requester: the module of the program (a shared object, or the program itself)
 * whose code asked for the memory. Every device has one row per requester.
 *
 * Threads change a row without a lock, by atomic additions, so current bytes and peak are exact.
 * stacks/requester.h gives the numbers of requesters.
 */
#ifndef GPUCACHE_STATS_REQUESTERS_H
#define GPUCACHE_STATS_REQUESTERS_H

#include <stdatomic.h>
#include <stdint.h>

#define REQUESTERS 32       /* rows, REQUESTER_UNKNOWN included */
#define REQUESTER_UNKNOWN 0 /* row of code in no module, and of modules beyond the last row */

struct requester_row {
    _Atomic uint64_t current, peak;
};

/** Adds bytes that the program requested. */
static inline void requester_add(struct requester_row *row, uint64_t bytes) {
    uint64_t now = atomic_fetch_add_explicit(&row->current, bytes, memory_order_relaxed) + bytes;
    uint64_t peak = atomic_load_explicit(&row->peak, memory_order_relaxed);
    while (now > peak && !atomic_compare_exchange_weak_explicit(
                             &row->peak, &peak, now, memory_order_relaxed, memory_order_relaxed)) {
    }
}

static inline void requester_subtract(struct requester_row *row, uint64_t bytes) {
    atomic_fetch_sub_explicit(&row->current, bytes, memory_order_relaxed);
}

static inline void requester_reset_peak(struct requester_row *row) {
    atomic_store_explicit(&row->peak, atomic_load_explicit(&row->current, memory_order_relaxed),
                          memory_order_relaxed);
}

#endif
