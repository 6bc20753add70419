/*
 * Finds idle segments: those without a live, cached or pending block. They may go back to the
 * driver, or move (vmm backend).
 *
 * Callers hold the pool's lock: segment/segments.c, vmm/remap.c, sync/wait.c and source_aged().
 * No function changes the arena. `finished` is the newest epoch whose event has completed. Segments
 * with a later stamp cannot be released yet.
 */
#ifndef GPUCACHE_HEAP_IDLE_H
#define GPUCACHE_HEAP_IDLE_H

#include "heap/va_range.h"

/**
 * Returns an idle segment to release, with a stamp of at most `finished`, or NULL. Its choice:
 *
 * 1. segments backend: the smallest of at least `bytes`, else the largest one;
 * 2. vmm backend: segments adjacent to a gap first, so that no new gap appears; then by earliest
 *    stamp; then by lowest address;
 * 3. vmm backend, if `bytes` is more than one growth can remap: any, to save the search.
 */
struct segment *idle_segment(struct arena *arena, uint64_t bytes, uint64_t finished);

/**
 * Returns an idle segment whose handle may be mapped elsewhere, or NULL; chosen like case 2 of
 * idle_segment(). It has at most `most` and at most VMM_HANDLE bytes, and a stamp of at least
 * `from`. Returns NULL also when the table of stale mappings is full. vmm backend only.
 */
struct segment *idle_movable(const struct arena *arena, uint64_t most, uint64_t from);

/**
 * Returns a segment that has been idle for the whole decay time at `tick`, with a stamp of at most
 * `finished`, and whose release has not failed (segment.refused). Otherwise returns NULL, and sets
 * *waits to true if there is such a segment with a later stamp. Never clears *waits.
 */
struct segment *idle_aged(const struct arena *arena, uint64_t tick, uint64_t finished, bool *waits);

/* Upper bound of what one growth may still remap into its gap. */
struct idle_limits {
    uint64_t bytes;
    unsigned segments;
};

/**
 * Returns how many idle bytes could serve a growth at `gap` at once: segments with a stamp of at
 * most `finished`, and others that may be remapped into the gap. Subtracts the remapped ones from
 * *limits. Free ranges adjacent to the gap do not count: the growth uses them anyway. Stops at
 * `enough` bytes.
 */
uint64_t idle_available_bytes(const struct arena *arena, uint64_t finished, const struct gap *gap,
                              uint64_t enough, struct idle_limits *limits);

/**
 * Returns the earliest stamp later than `finished` of an idle segment, or UINT64_MAX if there is
 * none.
 */
uint64_t idle_stamp(const struct arena *arena, uint64_t finished);

#endif
