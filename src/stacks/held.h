/*
 * Live blocks by their addresses: who asked for each. In 64 parts with a lock each, which grow up to a bound.
 */
#ifndef GPUCACHE_STACKS_HELD_H
#define GPUCACHE_STACKS_HELD_H

#include "stacks/stacks.h"

void held_start(uint32_t most_of_part);

/** Enters a block. What stood at its address is put into *replaced (site 0: nothing did). False: no room. */
bool held_add(const struct stacks_block *block, struct stacks_block *replaced);

/** Takes a block out; false: nothing stands there. */
bool held_remove(uint64_t address, struct stacks_block *block);

/** Takes out one for which that is true, and goes on from *at, which begins at 0. False: there is none. */
bool held_remove_if(bool (*gone)(uint64_t address, const void *with), const void *with,
                    uint64_t *at, struct stacks_block *block);

/** Calls that for every block, without a lock: what changes meanwhile may be seen or not. */
void held_each(void (*see)(const struct stacks_block *block, void *with), void *with);

/** Blocks that found no room. */
uint64_t held_lost(void);

#endif
