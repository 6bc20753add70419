/*
 * Pending memory: freed by the program, and not safe yet. Free memory: safe, and in no cache.
 *
 * The pool's lock is held on entry to every function, and on return. The functions from
 * try_free_or_split() on release it around calls that can block. A function try_...() tries one
 * source for a request: if it returns true, the block is request->block, in state BLOCK_CACHED.
 * pool/slow_path.c has the order of the sources.
 */
#ifndef GPUCACHE_SYNC_PENDING_H
#define GPUCACHE_SYNC_PENDING_H

#include "source/source.h"

/** Gives a freed block to the free memory if its stamp is safe, else appends it to its queue. */
void pending_add(struct source *source, struct block *block);

/** Calls pending_add() for each block of a list that is linked by `next`. */
void pending_add_list(struct source *source, struct block *first);

/** Moves pending blocks whose stamp is safe, and at most `stamp`, to the free memory. */
#define EVERY_STAMP UINT64_MAX
void pending_release(struct source *source, uint64_t stamp);

/**
 * Returns the lowest stamp up to which `bytes` bytes are pending, or 0 if nothing is pending.
 * Counts at most BLOCKS_COUNTED blocks: returns the highest pending stamp if they have fewer bytes,
 * and for UINT64_MAX. Ignores externally visible blocks, because a barrier does not make them safe.
 */
uint64_t pending_stamp(const struct source *source, uint64_t bytes);

/**
 * Takes free memory, and pending memory that is safe by now. Waits for nothing and keeps the lock.
 * Returns false if nothing fits, or if a long handle has to be split first (request->split_first).
 */
bool try_free(struct source *source, struct alloc_request *request);

/**
 * Takes free memory, as try_free(). If a small part of a long idle handle would be taken, first
 * replaces that handle by short ones, so that the rest can still be released. If the driver
 * refuses, takes the part as it is. Releases the lock for the driver calls.
 */
bool try_free_or_split(struct source *source, struct alloc_request *request);

/**
 * Takes free memory, and memory of completed events. Queries first for the epoch that covers enough
 * bytes, then for all pending memory that is not externally visible.
 */
bool try_completed(struct source *source, struct alloc_request *request);

/**
 * Makes pending memory safe by a barrier or a wait: first just enough for the request, then all
 * that events recorded in frees cover. The second attempt is needed because another thread may take
 * the memory during a wait, and may have freed other memory since.
 */
bool try_barrier(struct source *source, struct alloc_request *request);

/** Calls try_completed(), then try_barrier(). */
bool try_pending(struct source *source, struct alloc_request *request);

#endif
