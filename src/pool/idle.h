/*
 * The idle segments of an arena: those that are wholly free, and can go back. Under the pool's lock.
 */
#ifndef GPUCACHE_POOL_IDLE_H
#define GPUCACHE_POOL_IDLE_H

#include "pool/arena.h"

/** One whose stamp is at most `finished`; NULL if there is none. The smallest one of at least `bytes`, else the largest; in a
 * line the one with the latest stamp, the lowest among equals. */
struct segment *idle_segment(struct arena *arena, uint64_t bytes, uint64_t finished);

/** One that has been wholly free for all of the decay time at this tick, and whose stamp is at most `finished`; NULL:
 * there is none. *waits: there is, but for its stamp. */
struct segment *idle_aged(const struct arena *arena, uint64_t tick, uint64_t finished, bool *waits);

/** What of a free range is whole segments whose stamp is at most `finished`. */
uint64_t range_idle_bytes(const struct range *range, uint64_t finished);

/** The same of all of them, as far as that takes to find so many bytes. */
uint64_t idle_finished_bytes(const struct arena *arena, uint64_t finished, uint64_t enough);

/** The earliest stamp later than `finished` of one; UINT64_MAX: none has one. */
uint64_t idle_stamp(const struct arena *arena, uint64_t finished);

#endif
