/*
 * Stack recording (GPUCACHE_STACKS): the call stack that allocated each live block.
 *
 *      an allocation   1. capture frames (unwind.h, python.h)          no lock held
 *                      2. site, one for equal stacks (site.h)          look-up without a lock
 *                      3. address -> site and bytes (live_blocks.h)           one of 64 locks
 *                      4. bytes of the site and device (site_bytes.c)     the device's lock
 *      a free          steps 3 and 4, to remove the block
 *      a report        reads the sites without a lock (stats/holders.h)
 *
 * The pool does not know of stacks. The driver's hooks record a block after the pool returned it,
 * and remove it before the pool gets it back. A process without the option pays nothing. A block
 * keeps the stack that allocated it, whichever thread frees it.
 *
 * All tables are bounded, and losses are counted. Stacks beyond the bound share one site without
 * frames. Blocks beyond the bound are missing from the bytes of the sites.
 */
#ifndef GPUCACHE_STACKS_STACKS_H
#define GPUCACHE_STACKS_STACKS_H

#include <stdbool.h>
#include <stdint.h>

struct requester_row;

/* Bounds of the process, read once by stacks_start(). Tests make them smaller. */
struct stacks_bounds {
    uint32_t sites;          /* different stacks */
    uint32_t blocks_of_part; /* live blocks in each of the 64 parts (live_blocks.h) */
};
extern struct stacks_bounds stacks_bounds;

/** A function that looks up a symbol as dlsym() does. */
typedef void *stacks_look_up(void *handle, const char *name);

/**
 * Starts to record stacks of up to `frames` frames. Called once. Returns false without host memory.
 */
bool stacks_start(unsigned frames, stacks_look_up *look_up);

/** A live block. */
struct stacks_block {
    uint64_t address, bytes;
    uint32_t site;
    uint8_t requester; /* of a small block (requester.h), plus 1; 0: the pool or ledger counts it */
};

/**
 * A function that returns the rows of a device, in which small blocks count for their requesters.
 * NULL: small blocks are not counted by requester. Set before stacks_start().
 */
extern struct requester_row *(*stacks_requesters)(int device);

/**
 * Records the stack of the calling thread, which allocates on a device. Returns the number of the
 * site, or 0 if the table of sites is full. The caller holds no lock.
 */
uint32_t stacks_here(int device);

/**
 * Records that a stack allocated a block, and replaces an entry that the address still had. The
 * driver's hooks remove a block before its free, so two live blocks never share an address.
 * `small`: a small block of a pool, which also counts for its requester.
 */
void stacks_add(uint32_t stack, uint64_t address, uint64_t bytes, bool small);

/** Removes a block that is about to be freed. Returns false if the block is not recorded. */
bool stacks_remove(uint64_t address, struct stacks_block *block);

/** Returns the site of the stack that allocated a live block, or 0 if it is not recorded. */
uint32_t stacks_of(uint64_t address);

/** Returns the number of sites, which is also the highest number of a site. */
uint32_t stacks_count(void);

/** Records a block again whose free failed. */
void stacks_restore(const struct stacks_block *block);

/** Removes all blocks for which gone() is true, because their context was destroyed. */
void stacks_remove_if(bool (*gone)(uint64_t address, const void *with), const void *with);

/** Resets the peak of a device to its live bytes. */
void stacks_reset_peak(int device);

struct stats_device;
struct stats_stacks;

/**
 * Fills in the live sizes with their sites. Returns false if stacks are not recorded, if blocks
 * were lost, or if another thread is reading.
 */
bool stacks_read_live(int device, struct stats_device *stats);

/** Returns the table that reports read (stats/holders.h), or NULL if stacks are not recorded. */
const struct stats_stacks *stacks_view(void);

#endif
