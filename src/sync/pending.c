/*
 * The path of a freed block that no thread cache keeps, to the next request:
 *
 *      pending_add()  ->  queue, until the stamp is safe  ->  free memory  ->  try_free()
 *
 * Pending memory. Invariant: a queue is sorted by stamp, so its head tells whether any block is
 * safe. A block with a lower stamp than the tail's, as from the flush of a cache, gets the stamp of
 * the tail: becoming safe later than necessary is always correct. Externally visible memory has a
 * queue of its own and becomes free when its event has completed. A barrier is not enough for such
 * memory, because barriers delay work of the context only.
 *
 * Free memory. Small blocks are runs of units in slabs, large blocks are ranges of the arena
 * `large`. Slabs are ranges of the arena `small`.
 *
 * The pool's lock protects all. pending.h says which functions release it.
 */
#include "sync/pending.h"

#include "heap/page_map.h"
#include "sync/sync.h"

/* --- free memory --- */

/*
 * Makes a range free. A segment may go back to the driver only after the epochs of all its free
 * memory have finished. The segment therefore gets the highest stamp of its ranges. `stamp` is
 * safe; 0 means unknown, and the safe epoch is then an upper bound.
 */
static void free_range(struct source *source, struct arena *arena, struct range *range,
                       uint64_t stamp) {
    uint64_t tick = source->decay.tick;
    stamp = stamp > 0 ? stamp : atomic_load_explicit(&source->epochs.safe, memory_order_relaxed);
    for (struct segment *s = range->segment; s; s = range_next_segment(range, s)) {
        s->stamp = max_u64(stamp, s->stamp);
        /* pool/decay.c sets `tick` back for a while: `since` must not decrease */
        s->since = (int64_t)(tick - s->since) > 0 ? tick : s->since;
    }
    arena_give(arena, range);
}

/* Moves a block with a safe stamp to free memory. */
static void free_block(struct source *source, struct block *block) {
    if (block_is_large(block)) {
        free_range(source, &source->large, range_of(block), block->stamp);
        return;
    }
    struct range *emptied = runs_give(&source->runs, block);
    if (emptied)
        free_range(source, &source->small, emptied, 0);
}

/* --- pending memory --- */

/* Returns the highest stamp that may be handed out, of memory with that reach. */
static uint64_t safe_stamp(const struct source *source, enum reach reach) {
    return reach == REACH_EXTERNAL
               ? source->epochs.finished
               : atomic_load_explicit(&source->epochs.safe, memory_order_acquire);
}

void pending_add(struct source *source, struct block *block) {
    ASSERT_HELD(&source->lock);
    bool visible = block_is_large(block) ? range_is_externally_visible(range_of(block))
                                         : atomic_load_explicit(&slab_of(block)->externally_visible,
                                                                memory_order_relaxed);
    enum reach reach = visible ? REACH_EXTERNAL : REACH_CONTEXT;
    if (block->stamp <= safe_stamp(source, reach)) {
        free_block(source, block); /* no need to wait for blocks ahead in the queue */
        return;
    }
    struct pending *queue = &source->pending[reach];
    block->next = NULL;
    if (queue->head) {
        block->stamp = max_u64(block->stamp, queue->tail->stamp);
        queue->tail->next = block;
    } else {
        queue->head = block;
    }
    queue->tail = block;
    source->pending_bytes += block_bytes(block);
}

void pending_add_list(struct source *source, struct block *first) {
    while (first) {
        struct block *next = first->next;
        pending_add(source, first);
        first = next;
    }
}

void pending_release(struct source *source, uint64_t stamp) {
    ASSERT_HELD(&source->lock);
    for (enum reach reach = 0; reach < REACHES; reach++) {
        uint64_t last = min_u64(safe_stamp(source, reach), stamp);
        struct pending *queue = &source->pending[reach];
        while (queue->head && queue->head->stamp <= last) {
            struct block *block = queue->head;
            queue->head = block->next;
            source->pending_bytes -= block_bytes(block);
            free_block(source, block);
        }
    }
}

uint64_t pending_stamp(const struct source *source, uint64_t bytes) {
    const struct pending *queue = &source->pending[REACH_CONTEXT];
    uint64_t sum = 0;
    unsigned count = 0;
    for (const struct block *block = bytes < UINT64_MAX ? queue->head : NULL;
         block && count < BLOCKS_COUNTED; block = block->next, count++) {
        sum += block_bytes(block);
        if (sum >= bytes)
            return block->stamp;
    }
    return queue->head ? queue->tail->stamp : 0;
}

/* --- the sources of a request, cheapest first --- */

/*
 * Takes a small block from the runs of the slabs. The reserved first unit of a slab (heap/slab.c)
 * costs a whole block if only a few blocks fit a slab. The block may start there only if no other
 * run fits, and one of these holds:
 *
 *   1. the request may take any memory (request->any_memory),
 *   2. the block is larger than FIRST_UNIT_LEAST, and all slabs together than FIRST_UNIT_BYTES, or
 *   3. the block is half a slab, and the computed budget does not allow another slab.
 */
static bool take_small(struct source *source, struct alloc_request *request) {
    bool half = request->bytes == SMALL_MAX_BYTES && source->config.budget == 0 &&
                !budget_allows(source, PAGE_BYTES);
    bool wasteful =
        request->bytes > FIRST_UNIT_LEAST && source->small.reserved_bytes > FIRST_UNIT_BYTES;
    bool any = request->any_memory || wasteful || half;
    request->block =
        runs_take(&source->runs, (unsigned)(request->bytes >> UNIT_SHIFT), request->bin, any);
    return request->block != NULL;
}

/*
 * Takes the best free range for a large block. If the block would occupy only a part of a long idle
 * handle, takes nothing and sets request->split_first: try_free_or_split() then splits the handle
 * and retries.
 */
static bool take_large(struct source *source, struct alloc_request *request) {
    request->split_first = source->policy->split && request->placement != PLACEMENT_ANYWHERE &&
                           arena_to_split(&source->large, request->bytes, source->epochs.finished);
    if (request->split_first)
        return false;
    struct range *range = arena_take(&source->large, request->bytes, request->placement);
    if (range) {
        page_map_set_start(range->block.address, range);
        request->block = &range->block;
    }
    return range != NULL;
}

bool try_free(struct source *source, struct alloc_request *request) {
    pending_release(source, EVERY_STAMP);
    if (request->large)
        return take_large(source, request);
    if (take_small(source, request))
        return true;
    struct range *range = arena_take(&source->small, PAGE_BYTES, PLACEMENT_ANYWHERE);
    if (!range)
        return false;
    block_become(&range->block, BLOCK_SLAB);
    if (runs_add_slab(&source->runs, range) != 0) {
        arena_give(&source->small, range);
        return false;
    }
    return take_small(source, request);
}

/** Keeps PLACEMENT_ANYWHERE set after a failed split: no later step tries to split again. */
bool try_free_or_split(struct source *source, struct alloc_request *request) {
    ASSERT_HELD(&source->lock);
    bool served;
    while (!(served = try_free(source, request)) && request->split_first) {
        request->placement =
            source->policy->split(source, request->bytes) ? request->placement : PLACEMENT_ANYWHERE;
    }
    return served;
}

bool try_completed(struct source *source, struct alloc_request *request) {
    ASSERT_HELD(&source->lock);
    if (try_free_or_split(source, request))
        return true;
    uint64_t enough = pending_stamp(source, request->bytes),
             all = pending_stamp(source, UINT64_MAX);
    if (enough == 0)
        return false;
    sync_query(source, enough);
    if (try_free_or_split(source, request))
        return true;
    return all > enough && sync_query(source, all) && try_free_or_split(source, request);
}

bool try_barrier(struct source *source, struct alloc_request *request) {
    ASSERT_HELD(&source->lock);
    enum sync_effort effort = request->any_memory ? SYNC_ANY_WAIT : SYNC_WAIT;
    uint64_t enough = pending_stamp(source, request->bytes),
             all = epochs_latest_in_free(&source->epochs);
    if (enough > 0 && enough < all && sync_make_safe(source, enough, effort) &&
        try_free_or_split(source, request))
        return true;
    all = epochs_latest_in_free(&source->epochs);
    return all > 0 && !epochs_is_safe(&source->epochs, all) &&
           sync_make_safe(source, all, effort) && try_free_or_split(source, request);
}

bool try_pending(struct source *source, struct alloc_request *request) {
    return try_completed(source, request) || try_barrier(source, request);
}
