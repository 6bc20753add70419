/*
 * Pending memory: freed, and waiting in a queue until its epoch is usable.
 *
 * A queue is sorted by stamp, so one look at its head is enough. A block that arrives with an older
 * stamp than the last one (a thread's cache was emptied into the queue) is given the younger stamp:
 * later than necessary is always right.
 *
 * Memory that something outside the context can reach waits in queues of its own, for its event to
 * have *finished*: a barrier orders the context's work and nothing else.
 */
#include "pool/internal.h"

static uint64_t line_for(const struct pool *pool, enum reach reach) {
    return reach == REACH_OUTSIDE
               ? pool->epochs.finished
               : atomic_load_explicit(&pool->epochs.usable, memory_order_acquire);
}

/* The segment may go back to the driver when the epoch of all that is free in it has finished. One that
 * nobody knows is at the latest that of what has just become usable. */
static void give_range(struct pool *pool, struct arena *arena, struct range *range,
                       uint64_t stamp) {
    struct segment *segment = range->segment;
    stamp = stamp > 0 ? stamp : atomic_load_explicit(&pool->epochs.usable, memory_order_relaxed);
    segment->stamp = stamp > segment->stamp ? stamp : segment->stamp;
    arena_give(arena, range);
}

static void give_block(struct pool *pool, struct block *block) {
    struct range *emptied = runs_give(&pool->runs, block);
    if (emptied) {
        give_range(pool, &pool->small, emptied, 0);
    }
}

void reclaim_block(struct pool *pool, struct block *block) {
    enum reach reach = page_of(block)->reached_from_outside ? REACH_OUTSIDE : REACH_CONTEXT;
    if (block->stamp <= line_for(pool, reach)) {
        give_block(pool, block); /* not behind others that are not */
        return;
    }
    struct block_queue *queue = &pool->pending_blocks[reach];
    block->next = NULL;
    if (queue->head) {
        if (block->stamp < queue->tail->stamp) {
            block->stamp = queue->tail->stamp;
        }
        queue->tail->next = block;
    } else {
        queue->head = block;
    }
    queue->tail = block;
    pool->pending_bytes += block_bytes(block);
}

void reclaim_list(struct pool *pool, struct block *first) {
    while (first) {
        struct block *next = first->next;
        reclaim_block(pool, first);
        first = next;
    }
}

void reclaim_range(struct pool *pool, struct range *range) {
    enum reach reach = range->segment->reached_from_outside ? REACH_OUTSIDE : REACH_CONTEXT;
    if (range->stamp <= line_for(pool, reach)) {
        give_range(pool, &pool->large, range, range->stamp);
        return;
    }
    struct range_queue *queue = &pool->pending_ranges[reach];
    range->queue_next = NULL;
    if (queue->head) {
        if (range->stamp < queue->tail->stamp) {
            range->stamp = queue->tail->stamp;
        }
        queue->tail->queue_next = range;
    } else {
        queue->head = range;
    }
    queue->tail = range;
    pool->pending_bytes += range->bytes;
}

void reclaim_usable(struct pool *pool) {
    for (enum reach reach = 0; reach < REACHES; reach++) {
        uint64_t line = line_for(pool, reach);
        struct block_queue *blocks = &pool->pending_blocks[reach];
        while (blocks->head && blocks->head->stamp <= line) {
            struct block *block = blocks->head;
            blocks->head = block->next;
            pool->pending_bytes -= block_bytes(block);
            give_block(pool, block);
        }
        struct range_queue *ranges = &pool->pending_ranges[reach];
        while (ranges->head && ranges->head->stamp <= line) {
            struct range *range = ranges->head;
            ranges->head = range->queue_next;
            pool->pending_bytes -= range->bytes;
            give_range(pool, &pool->large, range, range->stamp);
        }
    }
}

bool reclaim_shelves(struct pool *pool, bool (*empty)(struct pool *, struct shelf *)) {
    bool any = false;
    bool shelved = atomic_load_explicit(&pool->shelved, memory_order_relaxed) > 0;
    for (struct cache *cache = shelved ? pool->awake : NULL; cache; cache = cache->next_awake) {
        any |= empty(pool, &cache->shelf);
    }
    return any;
}

uint64_t reclaim_stamp(const struct pool *pool, uint64_t bytes) {
    uint64_t stamp = 0, sum = 0;
    for (const struct range *range = pool->pending_ranges[REACH_CONTEXT].head; range;
         range = range->queue_next) {
        stamp = range->stamp;
        sum += range->bytes;
        if (sum >= bytes) {
            return stamp;
        }
    }
    const struct block *newest = pool->pending_blocks[REACH_CONTEXT].tail;
    return newest && pool->pending_blocks[REACH_CONTEXT].head && newest->stamp > stamp
               ? newest->stamp
               : stamp;
}
