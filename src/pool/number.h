/*
 * Owner numbers: which thread's cache a block was handed out by.
 *
 * A block is freed without a locked instruction by the thread that asked for it. The
 * number of its cache stands in the block, and only that thread changes the state of such a block,
 * inside the cache. The first other thread that frees one ends that, for all blocks of that number
 * and for good: from then on every free of them is a compare and swap.
 */
#ifndef GPUCACHE_POOL_NUMBER_H
#define GPUCACHE_POOL_NUMBER_H

#include <stdatomic.h>
#include <stdbool.h>

struct cache;

/* Not false: every free of a block of that number is a compare and swap. */
#define NUMBERS (1u << 16)
extern atomic_bool number_shared[NUMBERS];

/** Makes it so. Without any lock held. */
void number_share(unsigned number);

static inline bool number_is_shared(unsigned number) {
    return atomic_load_explicit(&number_shared[number], memory_order_acquire);
}

/** Before any other thread than the one that asked for a block of that number frees it. */
static inline void number_share_once(unsigned number) {
    if (__builtin_expect(!number_is_shared(number), 0)) {
        number_share(number);
    }
}

/** The cache that had a number which stands in a block. */
struct cache *number_cache(unsigned number);

/** Of a cache with a new owner: another one. Of one that has none: no number. */
void number_take(struct cache *cache);
void number_clear(struct cache *cache);

/** Whether only its thread has freed blocks of its number, no others, and as many as it had asked for. */
bool number_is_its_own(const struct cache *cache);

/** From now on every free of its blocks is a compare and swap. The owner is outside, or gone. */
void number_stop_owning(struct cache *cache);

#endif
