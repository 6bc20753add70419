#include "driver/observe/block_stacks.h"

#include "driver/context/context.h"
#include "driver/limit/unpooled.h"
#include "pool/pool.h"

/* Returns whether to drop a record: the block belongs to `context`, or is not live any more. */
static bool must_drop(uint64_t address, const void *context) {
    struct pool_block block;
    return pool_find(address, &block) == 0 ? block.pool == ((const struct context *)context)->pool
                                           : unpooled_find(UNPOOLED_POINTER, address).bytes == 0;
}

void block_stacks_forget(const struct context *context) {
    if (stack_recording_is_on())
        stacks_remove_if(must_drop, context);
}

bool block_stacks_free_begin(uint64_t address, struct stacks_block *block) {
    return stack_recording_is_on() && stacks_remove(address, block);
}

/* Checks that the block is live: a free that returns an error may have freed the block, because the
 * error can come from an earlier fault. */
void block_stacks_free_end(const struct stacks_block *block, bool refused) {
    struct pool_block found;
    bool is_live =
        refused && ((pool_find(block->address, &found) == 0 && found.address == block->address) ||
                    unpooled_find(UNPOOLED_POINTER, block->address).bytes != 0);
    if (is_live)
        stacks_restore(block);
}
