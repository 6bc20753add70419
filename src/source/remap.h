/*
 * Growth and release of a pool whose backend maps memory (vmm). A segment is one handle there.
 *
 * One thread at a time maps or unmaps for a pool: it holds the remap lock (`source.remap.lock`).
 * That lock is taken before the pool lock. Except for remap_growth() and remap_end(), every
 * function is called with the pool lock alone. It releases the pool lock while it takes the remap
 * lock, and around calls of the driver. Called by source.c, grow.c, try.c and lifetime.c.
 */
#ifndef GPUCACHE_SOURCE_REMAP_H
#define GPUCACHE_SOURCE_REMAP_H

#include "source/state.h"

/** Maps memory until `arena` has a free range of `bytes` bytes. Returns 0, or an error as
 * source_grow(). The pool lock is held from the moment the range is free. */
int remap_grow(struct source *source, struct arena *arena, uint64_t bytes);

/** Computes what a free range of `bytes` bytes needs. Keeps the pool lock. All fields are bytes:
 *
 *      bytes       new memory to map
 *      idle        idle segments that may make room for it: all but those next to the gap
 *      available   those of them that can move or be released now, without a wait; counted only
 *                  as far as needed to stay within `budget`
 */
struct growth {
    uint64_t bytes, idle, available;
};
struct growth remap_growth(const struct source *source, const struct arena *arena, uint64_t bytes,
                           uint64_t budget);

/** Replaces a long idle segment by short ones, so that a request of `bytes` bytes, which would take
 * a part of it, does not keep all of it. Returns false if the driver or host memory refuses.
 * Returns true too if no segment needs that. */
bool remap_split(struct source *source, struct arena *arena, uint64_t bytes);

/** Releases idle segments whose work has completed until `bytes` bytes are released. Returns the
 * bytes released: 0 if none can go now. */
uint64_t remap_release(struct source *source, uint64_t bytes);

/** Releases one segment that was idle for the decay time, if its work has completed. Returns its
 * bytes, or 0. */
uint64_t remap_decay(struct source *source);

/** Unmaps and releases everything in `arena` after its context has ended. The remap lock and the
 * pool lock are held, and kept. */
void remap_end(struct source *source, struct arena *arena);

#endif
