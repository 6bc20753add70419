#include "driver/observe/block_stacks.h"

#include "driver/context/context.h"
#include "driver/limit/unpooled.h"
#include "pool/pool.h"

/* Of it, or of none any more. */
static bool is_of(uint64_t address, const void *context) {
    struct pool_block block;
    return pool_find(address, &block) == 0 ? block.pool == ((const struct context *)context)->pool
                                           : outside_find(OUTSIDE_POINTER, address).bytes == 0;
}

void remember_forget(const struct context *context) {
    if (remember_on()) {
        stacks_drop(is_of, context);
    }
}

bool remember_free_begin(uint64_t address, struct stacks_block *block) {
    return remember_on() && stacks_give(address, block);
}

/* Refused, or just answered with the code of a fault that the program has met since. */
void remember_free_end(const struct stacks_block *block, bool refused) {
    struct pool_block found;
    bool there =
        refused && ((pool_find(block->address, &found) == 0 && found.address == block->address) ||
                    outside_find(OUTSIDE_POINTER, block->address).bytes != 0);
    if (there) {
        stacks_keep(block);
    }
}
