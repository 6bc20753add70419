#include "driver/observe/block_stacks.h"

#include "driver/context/context.h"
#include "driver/limit/unpooled.h"
#include "pool/pool.h"

/* Of it, or of none any more. */
static bool is_of(uint64_t address, const void *context) {
    struct pool_block block;
    return pool_find(address, &block) == 0 ? block.pool == ((const struct context *)context)->pool
                                           : unpooled_find(UNPOOLED_POINTER, address).bytes == 0;
}

void block_stacks_forget(const struct context *context) {
    if (block_stacks_on()) {
        stacks_drop(is_of, context);
    }
}

bool block_stacks_free_begin(uint64_t address, struct stacks_block *block) {
    return block_stacks_on() && stacks_give(address, block);
}

/* Refused, or just answered with the code of a fault that the program has met since. */
void block_stacks_free_end(const struct stacks_block *block, bool refused) {
    struct pool_block found;
    bool there =
        refused && ((pool_find(block->address, &found) == 0 && found.address == block->address) ||
                    unpooled_find(UNPOOLED_POINTER, block->address).bytes != 0);
    if (there) {
        stacks_keep(block);
    }
}
