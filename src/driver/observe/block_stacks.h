/*
 * Updates the table of live blocks and their call stacks (stacks/stacks.h) at frees, at the end of
 * a context, and when peaks are reset. hooks/memory.c records the allocations itself.
 *
 * This file has no lock of its own. Callers hold no lock, but the caller of block_stacks_forget()
 * holds REGISTRY.
 */
#ifndef GPUCACHE_DRIVER_OBSERVE_BLOCK_STACKS_H
#define GPUCACHE_DRIVER_OBSERVE_BLOCK_STACKS_H

#include "driver/state/stack_recording.h"
#include "stacks/stacks.h"

#include <stdbool.h>

struct context;

/**
 * Removes the records of the blocks of a context that has ended. Called under the registry's lock
 * (context_callbacks.c), before the pool forgets its blocks.
 */
void block_stacks_forget(const struct context *context);

/** Resets the peak of a device to its live bytes. */
static inline void block_stacks_reset_peak(int device) {
    if (stack_recording_is_on())
        stacks_reset_peak(device);
}

/** Replaces the list of live sizes in *stats by one with call stacks, if stacks are recorded. */
static inline void block_stacks_read_live(int device, struct stats_device *stats) {
    if (stack_recording_is_on())
        stacks_read_live(device, stats);
}

/**
 * Removes the record of a block before its free, and stores it in *block. Returns false if there is
 * no record. Otherwise block_stacks_free_end() must follow the free: it restores the record if the
 * free was `refused` and the block is still live.
 */
bool block_stacks_free_begin(uint64_t address, struct stacks_block *block);
void block_stacks_free_end(const struct stacks_block *block, bool refused);

#endif
