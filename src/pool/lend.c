/*
 * The backend's pages under a live block, named to somebody outside the pool.
 *
 * A block that something outside reaches keeps its frames in its window, also when it is freed meanwhile. What may
 * still happen to them is that they go back to the backend. That is up to the mapper, whose lock is held as long as
 * somebody names them.
 */
#include "pool/internal.h"

#include "pool/page_map.h"

#include <errno.h>

/* The pool's lock is held. */
static int collect(struct pool *pool, uint64_t address, uint32_t first, struct pool_loan *loan) {
    struct pool_block block;
    struct range *range = find_range(address, &block);
    if (!range || block.pool != pool || block.address != address || !range_is_window(range) ||
        !range->segment->reached_from_outside) {
        return -ENOENT;
    }
    const struct window *window = window_of(range);
    loan->offset = address - window->segment.base;
    loan->bytes = block.requested;
    loan->pages = layouts_slots(loan->offset + loan->bytes);
    loan->pages = loan->pages > window->extent_slots ? loan->pages : window->extent_slots;
    loan->length = 1;
    if (first >= loan->pages || (first > 0 && first < window->extent_slots)) {
        return -EINVAL;
    }
    if (first < window->extent_slots) {
        loan->length = window->extent_slots;
        loan->page[0] = window->extent;
        loan->count = 1;
        return 0;
    }
    for (loan->count = 0; loan->count < POOL_LOAN && first + loan->count < loan->pages;
         loan->count++) {
        const struct slot *slot = layouts_slot(&pool->layouts, window->first + first + loan->count);
        loan->page[loan->count] = layouts_frame(&pool->layouts, slot->frame)->page;
    }
    return 0;
}

int pool_lend(uint64_t address, uint64_t id, uint32_t first, struct pool_loan *loan) {
    struct pool *pool = page_map_owner(address);
    if (!pool || !backend_maps(pool->backend)) {
        return -ENOENT;
    }
    int r = -ENOENT;
    lock_acquire(&pool->mapper);
    if (pool_block_id(address) == id) {
        lock_acquire(&pool->lock);
        r = page_map_owner(address) == pool ? collect(pool, address, first, loan) : -ENOENT;
        lock_release(&pool->lock);
    }
    loan->pool = pool;
    if (r != 0) {
        lock_release(&pool->mapper);
    }
    return r;
}

void pool_lend_end(const struct pool_loan *loan) {
    lock_release(&loan->pool->mapper);
}
