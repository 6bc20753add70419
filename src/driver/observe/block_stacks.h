/*
 * Stack recording of the driver's hooks: records frees, ends of contexts and peaks for the table of
 * call stacks (stacks/stacks.h). Called with no lock held, except block_stacks_forget().
 *
 * While stacks are recorded, capture_unusual keeps allocations and frees off the fast path. Without
 * recording, the fast path therefore has no additional instruction.
 */
#ifndef GPUCACHE_DRIVER_OBSERVE_BLOCK_STACKS_H
#define GPUCACHE_DRIVER_OBSERVE_BLOCK_STACKS_H

#include "driver/state/stack_recording.h"
#include "stacks/stacks.h"

#include <stdbool.h>

struct context;

/**
 * Removes the recorded blocks of a context that has ended. Called under the registry's lock
 * (context_callbacks.c), before the pool loses its blocks.
 */
void block_stacks_forget(const struct context *context);

/** Resets the peak of a device to its live bytes. */
static inline void block_stacks_reset_peak(int device) {
    if (stack_recording_is_on()) {
        stacks_reset_peak(device);
    }
}

/**
 * Replaces the list of live sizes by one with call stacks, if stacks are recorded. Returns true.
 */
static inline bool block_stacks_read_live(int device, struct stats_device *stats) {
    if (stack_recording_is_on()) {
        stacks_read_live(device, stats);
    }
    return true;
}

/**
 * Bracket a free. block_stacks_free_begin() removes the record of a block and returns it in *block,
 * or returns false if there is none. block_stacks_free_end() restores the record if the free was
 * `refused` and the block is still live.
 */
bool block_stacks_free_begin(uint64_t address, struct stacks_block *block);
void block_stacks_free_end(const struct stacks_block *block, bool refused);

#endif
