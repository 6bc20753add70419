/*
 * Pending memory: freed blocks, in queues until their stamps are safe.
 *
 * Invariant: a queue is sorted by stamp, so its head tells whether any block is safe. A block with
 * a lower stamp than the tail's, as from the flush of a cache, gets the stamp of the tail: becoming
 * safe later than necessary is always correct.
 *
 * Externally visible memory has a queue of its own and waits until its event has completed. A
 * barrier is not enough for it: barriers delay work of the context only. The pool's lock protects
 * both queues.
 */
#include "sync/pending.h"

#include "sync/free_memory.h"

/* Returns the highest stamp that may be handed out. */
static uint64_t stamp_done(const struct source *source, enum reach reach) {
    return reach == REACH_EXTERNAL
               ? source->epochs.finished
               : atomic_load_explicit(&source->epochs.safe, memory_order_acquire);
}

static enum reach reach_of(struct block *block) {
    bool visible = block_is_large(block) ? range_is_externally_visible(range_of(block))
                                         : atomic_load_explicit(&slab_of(block)->externally_visible,
                                                                memory_order_relaxed);
    return visible ? REACH_EXTERNAL : REACH_CONTEXT;
}

void pending_add(struct source *source, struct block *block) {
    ASSERT_HELD(&source->lock);
    enum reach reach = reach_of(block);
    if (block->stamp <= stamp_done(source, reach)) {
        free_memory_give(source, block); /* need not wait for blocks ahead in the queue */
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

void pending_release_safe(struct source *source) {
    pending_release_up_to(source, UINT64_MAX);
}

void pending_release_up_to(struct source *source, uint64_t stamp) {
    ASSERT_HELD(&source->lock);
    for (enum reach reach = 0; reach < REACHES; reach++) {
        uint64_t last = min_u64(stamp_done(source, reach), stamp);
        struct pending *queue = &source->pending[reach];
        while (queue->head && queue->head->stamp <= last) {
            struct block *block = queue->head;
            queue->head = block->next;
            source->pending_bytes -= block_bytes(block);
            free_memory_give(source, block);
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
        if (sum >= bytes) {
            return block->stamp;
        }
    }
    return queue->head ? queue->tail->stamp : 0;
}

bool try_free(struct source *source, struct alloc_request *request) {
    pending_release_safe(source);
    return free_memory_take(source, request);
}

bool try_free_or_split(struct source *source, struct alloc_request *request) {
    ASSERT_HELD(&source->lock);
    bool served;
    while (!(served = try_free(source, request)) && request->split_first) {
        request->placement =
            source->policy->split(source, request->bytes) ? request->placement : PLACE_ANYWHERE;
    }
    return served;
}
