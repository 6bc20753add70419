/*
 * Owner numbers: which thread's cache a block was handed out by.
 *
 * A block is freed without a locked instruction by the thread that asked for it. The
 * number of its cache stands in the block, and only that thread changes the state of such a block,
 * inside the cache. The first other thread that frees one ends that, for all blocks of that number
 * and for good: from then on every free of them is a compare and swap.
 */
#ifndef GPUCACHE_POOL_OWNER_ID_H
#define GPUCACHE_POOL_OWNER_ID_H

#include <stdatomic.h>
#include <stdbool.h>

struct cache;

/* Not false: every free of a block of that number is a compare and swap. */
#define OWNER_IDS (1u << 16)
extern atomic_bool owner_id_shared[OWNER_IDS];

/** Makes it so. Without any lock held. */
void owner_id_share(unsigned number);

static inline bool owner_id_is_shared(unsigned number) {
    return atomic_load_explicit(&owner_id_shared[number], memory_order_acquire);
}

/** Before any other thread than the one that asked for a block of that number frees it. */
static inline void owner_id_share_once(unsigned number) {
    if (__builtin_expect(!owner_id_is_shared(number), 0)) {
        owner_id_share(number);
    }
}

/** The cache that had a number which stands in a block. */
struct cache *owner_id_cache(unsigned number);

/** Of a cache with a new owner: another one. Of one that has none: no number. */
void owner_id_take(struct cache *cache);
void owner_id_clear(struct cache *cache);

/** Whether only its thread has freed blocks of its number, no others, and as many as it had asked for. */
bool owner_id_is_exclusive(const struct cache *cache);

/** From now on every free of its blocks is a compare and swap. The owner is outside, or gone. */
void owner_id_stop_owning(struct cache *cache);

#endif
