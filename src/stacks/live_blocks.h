/*
 * The table of live blocks: address to size and call site. The table has 64 parts. Each part has a
 * lock of its own and grows up to a bound.
 */
#ifndef GPUCACHE_STACKS_LIVE_BLOCKS_H
#define GPUCACHE_STACKS_LIVE_BLOCKS_H

#include "stacks/stacks.h"

/** Starts the table with a bound of live blocks in each part. */
void live_blocks_start(uint32_t most_of_part);

/**
 * Records a block. Puts the previous entry of its address into *replaced; site 0 means there was
 * none. Returns false if the part is full or host memory is missing.
 */
bool live_blocks_add(const struct stacks_block *block, struct stacks_block *replaced);

/** Removes a block and copies it to *block. Returns false if the address has no entry. */
bool live_blocks_remove(uint64_t address, struct stacks_block *block);

/** Copies the entry of an address to *block. Returns false if there is none. */
bool live_blocks_find(uint64_t address, struct stacks_block *block);

/**
 * Removes one block for which gone() is true and copies it to *block. The search continues at *at,
 * which begins at 0. Returns false if no such block remains.
 */
bool live_blocks_remove_if(bool (*gone)(uint64_t address, const void *with), const void *with,
                           uint64_t *at, struct stacks_block *block);

/**
 * Calls see() for every block, without a lock. A block that is recorded or removed during the call
 * may be missed. Its row may also be read half: the bytes of one block with the site of the next.
 */
void live_blocks_each(void (*see)(const struct stacks_block *block, void *with), void *with);

/** Returns how many blocks were not recorded for want of memory in the table. */
uint64_t live_blocks_lost(void);

#endif
