/*
 * What may be handed out: pages for small blocks, the arena for large ones. Taking and giving wait for nothing.
 */
#include "source/internal.h"

#include "memory/page_map.h"

/*
 * The unit that a page keeps back (page.h) takes a whole block out of the few large ones that fit there.
 * That is borne for little memory only, and where it takes half a page not near the budget.
 */
static bool take_small(struct source *source, struct alloc_request *request) {
    bool half = request->bytes == SMALL_MAX_BYTES && source->config.budget == 0 &&
                !budget_allows(source, PAGE_BYTES);
    bool dear =
        request->bytes > FIRST_UNIT_LEAST && source->small.reserved_bytes > FIRST_UNIT_BYTES;
    bool any = request->any || dear || half;
    request->block =
        runs_take(&source->runs, (unsigned)(request->bytes >> UNIT_SHIFT), request->bin, any);
    return request->block != NULL;
}

static bool take_large(struct source *source, struct alloc_request *request) {
    request->split_first = source->large.is_vmm && request->placement != PLACE_ANYWHERE &&
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

/* 2 MiB for small blocks. */
static struct range *take_slab(struct source *source) {
    return arena_take(&source->small, PAGE_BYTES, PLACE_ANYWHERE);
}

bool heap_take(struct source *source, struct alloc_request *request) {
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

/* The segment may go back to the driver when the epoch of all that is free in it has finished. One that
 * nobody knows is at the latest that of what has just become usable. */
static void give_range(struct source *source, struct arena *arena, struct range *range,
                       uint64_t stamp) {
    uint64_t tick = source->decay.tick;
    stamp = stamp > 0 ? stamp : atomic_load_explicit(&source->epochs.safe, memory_order_relaxed);
    for (struct segment *s = range->segment; s; s = range_next_segment(range, s)) {
        s->stamp = max_u64(stamp, s->stamp);
        s->since =
            (int64_t)(tick - s->since) > 0 ? tick : s->since; /* what was pending may be older */
    }
    arena_give(arena, range);
}

void heap_give(struct source *source, struct block *block) {
    if (block_is_large(block)) {
        give_range(source, &source->large, range_of(block), block->stamp);
        return;
    }
    struct range *emptied = runs_give(&source->runs, block);
    if (emptied) {
        give_range(source, &source->small, emptied, 0);
    }
}
