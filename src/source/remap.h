/* Segments in lines: when they come and go. Lets go of the pool's lock in between. */
#ifndef GPUCACHE_SOURCE_REMAP_H
#define GPUCACHE_SOURCE_REMAP_H

#include "source/state.h"

/** Maps what a free range of so many bytes lacks. 0, or why not: as source_grow(). */
int remap_grow(struct source *source, struct arena *arena, uint64_t bytes);

/** How much that is, what could make room for it (idle segments elsewhere), and of that what can at once, as far as it takes to stay
 * within `budget`. */
struct growth {
    uint64_t bytes, idle, available;
};
struct growth remap_growth(const struct source *source, const struct arena *arena, uint64_t bytes,
                           uint64_t budget);

/** A long segment that is idle becomes several, for a request that would take a part of it. */
bool remap_split(struct source *source, struct arena *arena, uint64_t bytes);

/** So much of what lies idle goes back, if it has finished. Returns the bytes. */
uint64_t remap_release(struct source *source, uint64_t bytes);

/** A segment that has been idle for the decay time, likewise. */
uint64_t remap_decay(struct source *source);

/** The context has gone: all of it. Both locks are held. */
void remap_end(struct source *source, struct arena *arena);

#endif
