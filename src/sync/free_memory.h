/*
 * Free memory: taking blocks from it, and giving them back. The pool's lock is held on entry and on
 * return.
 */
#ifndef GPUCACHE_SYNC_FREE_MEMORY_H
#define GPUCACHE_SYNC_FREE_MEMORY_H

#include "source/source.h"

/** Makes a block free. Its stamp is safe. Keeps the lock. */
void free_memory_give(struct source *source, struct block *block);

/**
 * Takes free memory for a request as request->block, in state BLOCK_CACHED. Keeps the lock. Returns
 * false if nothing fits, or if a long handle has to be split first (request->split_first).
 */
bool free_memory_take(struct source *source, struct alloc_request *request);

#endif
