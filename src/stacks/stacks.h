/*
 * Which call stack asked for what is live: GPUCACHE_STACKS.
 *
 *      an allocation   capture: native frames (unwind.h), Python lines (python.h)     no lock held
 *                      site: equal stacks are one                    (site.h)         a look-up without a lock
 *                      address -> site, bytes                        (held.h)         one of 64 locks
 *                      what the site holds, the peak of its device   (holding.h)      the device's lock
 *      a free          the same backwards, without a capture
 *      a report        reads what sites hold without a lock (stats/holders.h)
 *
 * The pool knows nothing of it: the driver's entries tell of a block after they have it from the pool, and before they
 * give it back. So what is not asked for costs nothing (held.h). A block keeps the stack that asked for it,
 * whichever cache it came from and whichever thread frees it.
 *
 * Everything here is bounded, and what a bound cuts off is counted: stacks beyond the last one share one that has no
 * frames, blocks beyond the last one are in no figure of this room.
 */
#ifndef GPUCACHE_STACKS_STACKS_H
#define GPUCACHE_STACKS_STACKS_H

#include <stdbool.h>
#include <stdint.h>

/* Of the process, read before stacks_start(); smaller in tests. */
struct stacks_bounds {
    uint32_t sites;          /* different stacks */
    uint32_t blocks_of_part; /* live blocks in one part of 64 (held.h) */
};
extern struct stacks_bounds stacks_bounds;

/** Looks up a symbol as dlsym() does. */
typedef void *stacks_look_up(void *handle, const char *name);

/** Remembers up to so many frames of a stack from now on; once. False without host memory. */
bool stacks_start(unsigned frames, stacks_look_up *look_up);

/** A live block. */
struct stacks_block {
    uint64_t address, bytes;
    uint32_t site;
};

/** The number of the calling thread's stack, as one that asks for memory of a device; 0: there is no room for it. No lock is held. */
uint32_t stacks_here(int device);

/** A stack has been given a block. Not called again before it is given back; what was known of the address then is gone. */
void stacks_take(uint32_t stack, uint64_t address, uint64_t bytes);

/** It is about to give one back: false if nothing is known of it. */
bool stacks_give(uint64_t address, struct stacks_block *block);

/** It could not. */
void stacks_keep(const struct stacks_block *block);

/** Gives back all blocks for which that is true: their memory has gone with its context. */
void stacks_drop(bool (*gone)(uint64_t address, const void *with), const void *with);

/** The peak of a device begins anew. */
void stacks_reset_peak(int device);

struct stats_device;
struct stats_stacks;

/** Fills in which sizes are live and who asked for them. False: not all is known, or another reader is at it. */
bool stacks_read_live(int device, struct stats_device *stats);

/** What reports read (stats/holders.h). */
const struct stats_stacks *stacks_view(void);

#endif
