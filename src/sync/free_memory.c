/*
 * Free memory: takes blocks from it and gives them back.
 *
 * Small blocks are runs of units in slabs, large blocks are ranges of the arena `large`. Slabs are
 * ranges of the arena `small`. The pool's lock is held in every function and never released:
 * nothing here calls the driver. pending.c is the only caller.
 */
#include "sync/free_memory.h"

#include "heap/page_map.h"
#include "policy/budget.h"

/*
 * Takes a small block from the runs of the slabs. The reserved first unit of a slab (slab.h) costs
 * a whole block if only a few blocks fit a slab. A block may start there only if
 *
 *   1. the request may take anything (`any`),
 *   2. its size is above FIRST_UNIT_LEAST and slabs have more than FIRST_UNIT_BYTES, or
 *   3. its size is half a slab, and the computed budget does not allow another slab.
 */
static bool take_small(struct source *source, struct alloc_request *request) {
    bool half = request->bytes == SMALL_MAX_BYTES && source->config.budget == 0 &&
                !budget_allows(source, PAGE_BYTES);
    bool costly =
        request->bytes > FIRST_UNIT_LEAST && source->small.reserved_bytes > FIRST_UNIT_BYTES;
    bool any = request->any || costly || half;
    request->block =
        runs_take(&source->runs, (unsigned)(request->bytes >> UNIT_SHIFT), request->bin, any);
    return request->block != NULL;
}

/*
 * Takes the best free range for a large block. If that is a small part of a long idle handle, takes
 * nothing and sets request->split_first: try_free_or_split() splits the handle and retries.
 */
static bool take_large(struct source *source, struct alloc_request *request) {
    request->split_first = source->policy->split && request->placement != PLACE_ANYWHERE &&
                           arena_pinned_by(&source->large, request->bytes, source->epochs.finished);
    if (request->split_first) {
        return false;
    }
    struct range *range = arena_take(&source->large, request->bytes, request->placement);
    if (range) {
        page_map_set_start(range->block.address, range);
        request->block = &range->block;
    }
    return range != NULL;
}

/* Takes 2 MiB of the arena `small` for a slab. */
static struct range *take_slab(struct source *source) {
    return arena_take(&source->small, PAGE_BYTES, PLACE_ANYWHERE);
}

bool free_memory_take(struct source *source, struct alloc_request *request) {
    ASSERT_HELD(&source->lock);
    if (request->large) {
        return take_large(source, request);
    }
    if (take_small(source, request)) {
        return true;
    }
    struct range *range = take_slab(source);
    if (!range) {
        return false;
    }
    block_become(&range->block, BLOCK_SLAB);
    if (runs_add_slab(&source->runs, range, range->block.address) != 0) {
        arena_give(&source->small, range);
        return false;
    }
    return take_small(source, request);
}

/*
 * Gives a range to its arena. A segment may go back to the driver only after the epochs of all free
 * memory in it have finished, so it gets the highest stamp of its ranges. Stamp 0 means unknown:
 * the safe epoch is an upper bound, since only safe memory gets here.
 */
static void give_range(struct source *source, struct arena *arena, struct range *range,
                       uint64_t stamp) {
    uint64_t tick = source->decay.tick;
    stamp = stamp > 0 ? stamp : atomic_load_explicit(&source->epochs.safe, memory_order_relaxed);
    for (struct segment *s = range->segment; s; s = range_next_segment(range, s)) {
        s->stamp = max_u64(stamp, s->stamp);
        /* Old pending memory is given back with `tick` set back: `since` must not decrease. */
        s->since = (int64_t)(tick - s->since) > 0 ? tick : s->since;
    }
    arena_give(arena, range);
}

void free_memory_give(struct source *source, struct block *block) {
    ASSERT_HELD(&source->lock);
    if (block_is_large(block)) {
        give_range(source, &source->large, range_of(block), block->stamp);
        return;
    }
    struct range *emptied = runs_give(&source->runs, block);
    if (emptied) {
        give_range(source, &source->small, emptied, 0);
    }
}
