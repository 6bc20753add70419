/*
 * What may be handed out: pages for small blocks, the arena for large ones. Taking and giving wait for nothing.
 */
#include "source/internal.h"

#include "memory/page_map.h"

/*
 * The unit that a page keeps back (page.h) takes a whole block out of the few large ones that fit there.
 * That is borne for little memory only, and where it takes half a page not near the budget.
 */
static bool take_small(struct source *source, struct want *want) {
    bool half = want->bytes == SMALL_MAX_BYTES && source->config.budget == 0 &&
                !budget_allows(source, PAGE_BYTES);
    bool dear = want->bytes > STARTS_LEAST && source->small.reserved_bytes > STARTS_BYTES;
    bool any = want->any || dear || half;
    want->block = runs_take(&source->runs, (unsigned)(want->bytes >> UNIT_SHIFT), want->bin, any);
    return want->block != NULL;
}

static bool take_large(struct source *source, struct want *want) {
    want->splits = source->large.in_line && want->care != ARENA_ALL &&
                   arena_pinned_by(&source->large, want->bytes, source->epochs.finished);
    if (want->splits) {
        return false;
    }
    struct range *range = arena_take(&source->large, want->bytes, want->care);
    if (range) {
        page_map_set_start(range->block.address, range);
        want->block = &range->block;
    }
    return range != NULL;
}

/* 2 MiB for small blocks. */
static struct range *take_page(struct source *source) {
    return arena_take(&source->small, PAGE_BYTES, ARENA_ALL);
}

bool ready_take(struct source *source, struct want *want) {
    if (want->large) {
        return take_large(source, want);
    }
    if (take_small(source, want)) {
        return true;
    }
    struct range *range = take_page(source);
    if (!range) {
        return false;
    }
    block_become(&range->block, BLOCK_PAGE);
    if (runs_add_page(&source->runs, range, range->block.address) != 0) {
        arena_give(&source->small, range);
        return false;
    }
    return take_small(source, want);
}

/* The segment may go back to the driver when the epoch of all that is free in it has finished. One that
 * nobody knows is at the latest that of what has just become usable. */
static void give_range(struct source *source, struct arena *arena, struct range *range,
                       uint64_t stamp) {
    uint64_t tick = source->decay.tick;
    stamp = stamp > 0 ? stamp : atomic_load_explicit(&source->epochs.usable, memory_order_relaxed);
    for (struct segment *s = range->segment; s; s = range_next_segment(range, s)) {
        s->stamp = most_of(stamp, s->stamp);
        s->since =
            (int64_t)(tick - s->since) > 0 ? tick : s->since; /* what was pending may be older */
    }
    arena_give(arena, range);
}

void ready_give(struct source *source, struct block *block) {
    if (block_is_large(block)) {
        give_range(source, &source->large, range_of(block), block->stamp);
        return;
    }
    struct range *emptied = runs_give(&source->runs, block);
    if (emptied) {
        give_range(source, &source->small, emptied, 0);
    }
}
