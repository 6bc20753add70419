/*
 * What the call stacks are told (stacks/stacks.h): blocks that the program gets, and those it gives back.
 *
 * While they are remembered, no allocation and no free goes the short way (capture_unusual). So where they are not,
 * the short ways have not one instruction more for it.
 */
#ifndef GPUCACHE_DRIVER_OBSERVE_BLOCK_STACKS_H
#define GPUCACHE_DRIVER_OBSERVE_BLOCK_STACKS_H

#include "driver/state/stack_recording.h"
#include "stacks/stacks.h"

#include <stdbool.h>

struct context;

/** A context has ended, and its blocks with it. */
void block_stacks_forget(const struct context *context);

/** The peak of a device begins anew. */
static inline void block_stacks_reset_peak(int device) {
    if (block_stacks_on()) {
        stacks_reset_peak(device);
    }
}

/** The list of live sizes with their stacks, in place of the one without. True. */
static inline bool block_stacks_read_live(int device, struct stats_device *stats) {
    if (block_stacks_on()) {
        stacks_read_live(device, stats);
    }
    return true;
}

/** Around a free: what is known of the block goes, and comes back where it is live still. */
bool block_stacks_free_begin(uint64_t address, struct stacks_block *block);
void block_stacks_free_end(const struct stacks_block *block, bool refused);

#endif
