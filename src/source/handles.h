/*
 * Segments of a line, made, moved and given back: each a driver's call or several, and the books beside it.
 *
 * The caller holds the mapper's lock and the pool's. handles_release(), handles_drop_stale(), handles_reattach(), handles_make() and
 * handles_make_short() let go of the pool's around calls of the driver; the others do not.
 */
#ifndef GPUCACHE_SOURCE_HANDLES_H
#define GPUCACHE_SOURCE_HANDLES_H

#include "source/state.h"

struct gap;

/* Pages of segments that handles_detach() has taken out, the longest first, until they are mapped at the new place or returned. To give
 * them to the driver and take as many again would be a third of what mapping takes. */
struct transit {
    uint64_t bytes;
    unsigned count;
    struct piece { /* of one segment */
        uint64_t handle, bytes, stamp;
        struct arena *arena; /* where it was, if it moves */
        uint64_t base;
    } of[TRANSIT_MOST];
};

/** Takes a wholly free segment away, whose addresses are an alias from then on. False: it stays, for this visit. */
bool handles_detach(struct source *source, struct arena *arena, struct segment *segment,
                    struct transit *transit);

/** Unmaps a wholly free segment that has finished, and gives it back. 0, with its bytes in *released; -EBUSY: there is no
 * host memory for it, or the driver has not taken it; or the driver's code. */
int handles_release(struct source *source, struct arena *arena, struct segment *segment,
                    uint64_t *released);

/** Unmaps the aliases that have finished. */
void handles_drop_stale(struct source *source, struct arena *arena);

/** What has found no place is where it was again: it is mapped there still. */
void handles_reattach(struct source *source, struct transit *transit);

/** Makes segments at a place, at first of what is moving, then new ones of `each`, behind *last, which is then the last of them.
 * All are held. 0, or why not all were made: -ENOMEM, -EDQUOT, -ERANGE without host memory, or the driver's code. */
int handles_make(struct source *source, struct arena *arena, const struct gap *gap, uint64_t each,
                 struct transit *transit, struct segment **last);

/** How long segments are now that a request of `like` bytes needs. */
uint64_t handles_length(const struct source *source, uint64_t like);

/** Short ones where a long one was, for a request of `like` bytes, as many as can be had; the same answers. They are not held. */
int handles_make_short(struct source *source, struct arena *arena, uint64_t base, uint64_t bytes,
                       uint64_t like);

/** A free range is ready, but for nobody else. */
void handles_hold(struct source *source, struct arena *arena, struct range *range);
void handles_unhold(struct source *source, struct arena *arena, struct range *range);

/** The same of all segments behind one, up to another. */
void handles_unhold_all(struct source *source, struct arena *arena, const struct segment *in_front,
                        const struct segment *last);

/** The context has gone: all of them go, and all aliases. False: the driver has kept some. */
bool handles_end(struct source *source, struct arena *arena);

#endif
