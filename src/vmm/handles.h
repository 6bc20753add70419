/*
 * Creates, maps, detaches, unmaps and releases the handles of a vmm pool, and keeps its counters.
 * Each mapped handle is one segment. remap.c selects the segments, and is the only caller.
 *
 * The caller holds the remap lock and the pool's lock. Five functions release the pool's lock
 * around calls of the driver: handles_release(), handles_drop_stale(), handles_reattach(),
 * handles_make() and handles_make_short(). The others keep it.
 */
#ifndef GPUCACHE_VMM_HANDLES_H
#define GPUCACHE_VMM_HANDLES_H

#include "source/state.h"

struct gap;

/** Takes an idle segment out of the arena and adds its handle to remap.transit, which has a free
 * entry. The segment's addresses become a stale mapping. Returns false without host memory: the
 * segment then stays, and is marked as refused until the remap lock is released. */
bool handles_detach(struct source *source, struct arena *arena, struct segment *segment);

/** Unmaps an idle segment whose work has completed, and releases its handle. Returns 0 and sets
 * *released to its bytes. Returns -EBUSY (no host memory, or the driver does not unmap the segment
 * now) or the driver's code if the segment stays. */
int handles_release(struct source *source, struct arena *arena, struct segment *segment,
                    uint64_t *released);

/** Unmaps the stale mappings of an arena whose work has completed. */
void handles_drop_stale(struct source *source, struct arena *arena);

/** Turns the handles that remain in transit into segments again, at their old addresses, where they
 * are still mapped. Releases a handle for which there is no host memory. */
void handles_reattach(struct source *source);

/** Fills a gap with segments: first the handles of `transit` (NULL: none), then new ones of `each`
 * bytes. Links them behind *last, and sets *last to the last new segment. All are held
 * (handles_hold()). Returns 0 if the gap is full. Else returns -ENOMEM (driver), -EDQUOT (limit),
 * -ERANGE (no host memory, or the driver does not map) or the driver's code; the segments made so
 * far stay. */
int handles_make(struct source *source, struct arena *arena, const struct gap *gap, uint64_t each,
                 struct transit *transit, struct segment **last);

/** Returns the length of new handles for a request of `like` bytes, in bytes. */
uint64_t handles_length(const struct source *source, uint64_t like);

/** Fills the addresses of a released long segment with short ones, for a request of `like` bytes.
 * Returns as handles_make(). The new segments are not held. */
int handles_make_short(struct source *source, struct arena *arena, uint64_t base, uint64_t bytes,
                       uint64_t like);

/** Keeps a free range from being handed out. source_free() still counts the range as free. */
void handles_hold(struct source *source, struct arena *arena, struct range *range);

void handles_unhold(struct source *source, struct arena *arena, struct range *range);

/** Ends the hold of all segments behind `in_front`, up to and including `last`. */
void handles_unhold_all(struct source *source, struct arena *arena, const struct segment *in_front,
                        const struct segment *last);

/** Unmaps all segments and stale mappings, and releases the handles, after the context has ended.
 * Returns false if the driver did not unmap all. Leaves the lists as they are: the caller must call
 * arena_forget() in both cases. */
bool handles_end(struct source *source, struct arena *arena);

#endif
