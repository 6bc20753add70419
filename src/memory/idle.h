/*
 * The idle segments of an arena: those that are wholly free, and can go back. Under the pool's lock.
 */
#ifndef GPUCACHE_MEMORY_IDLE_H
#define GPUCACHE_MEMORY_IDLE_H

#include "memory/va_range.h"

/** One whose stamp is at most `finished`; NULL if there is none. The smallest one of at least `bytes`, else the largest. In a
 * line one beside a hole, if there is any, of those the one with the earliest stamp, the lowest among equals; or any where
 * `bytes` is more than a growth can move. */
struct segment *idle_segment(struct arena *arena, uint64_t bytes, uint64_t finished);

/** In a line: one of at most `most` bytes, and no long one, that may move and whose stamp is at least `from`, chosen
 * likewise. NULL if there is none, or no room for its alias. */
struct segment *idle_movable(const struct arena *arena, uint64_t most, uint64_t from);

/** One that has been wholly free for all of the decay time at this tick, and whose stamp is at most `finished`; NULL:
 * there is none. *waits: there is, but for its stamp. */
struct segment *idle_aged(const struct arena *arena, uint64_t tick, uint64_t finished, bool *waits);

/** What of a free range is whole segments. */
uint64_t range_idle_bytes(const struct range *range);

/* What may still move to a place: so many bytes, and segments. */
struct idle_room {
    uint64_t bytes;
    unsigned segments;
};

/** What of an arena could make room at a place at once: segments whose stamp is at most `finished`, and others that may move there
 * as well. Not beside the place; and no more than it takes to find so many bytes. */
uint64_t idle_available_bytes(const struct arena *arena, uint64_t finished, const struct gap *gap,
                              uint64_t enough, struct idle_room *room);

/** The earliest stamp later than `finished` of one; UINT64_MAX: none has one. */
uint64_t idle_stamp(const struct arena *arena, uint64_t finished);

#endif
