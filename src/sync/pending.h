/*
 * Pending memory: freed by the program, and not safe yet. The pool's lock is held on entry to every
 * function. Only try_free_or_split() releases it.
 */
#ifndef GPUCACHE_SOURCE_PENDING_H
#define GPUCACHE_SOURCE_PENDING_H

#include "source/source.h"

/** Gives a freed block to the free memory if its stamp is safe, else appends it to its queue. */
void pending_add(struct source *source, struct block *block);

/** Adds each block of a list that is linked by `next`. */
void pending_add_list(struct source *source, struct block *first);

/** Moves every pending block whose stamp is safe to the free memory. */
void pending_release_safe(struct source *source);

/** Moves the same, but only blocks with this stamp or a lower one. */
void pending_release_up_to(struct source *source, uint64_t stamp);

/**
 * Returns the lowest stamp up to which `bytes` bytes are pending. Counts no more than
 * BLOCKS_COUNTED blocks: returns the highest pending stamp if they have fewer bytes, and for
 * UINT64_MAX. Externally visible blocks do not count, because a barrier does not make them safe. 0:
 * nothing is pending.
 */
uint64_t pending_stamp(const struct source *source, uint64_t bytes);

/**
 * Takes free memory for a request, and pending memory that is safe by now, as request->block in
 * state BLOCK_CACHED. Waits for nothing and keeps the lock. Returns false if nothing fits.
 */
bool try_free(struct source *source, struct alloc_request *request);

/**
 * Takes free memory, as try_free(). If a small part of a long idle handle would be taken, first
 * replaces that handle by short ones, so that the rest can still be released. If the driver
 * refuses, takes the part as it is. Releases the lock for the driver calls.
 */
bool try_free_or_split(struct source *source, struct alloc_request *request);

#endif
