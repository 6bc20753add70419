/*
 * Owner IDs: which cache handed out a block.
 *
 * The header of a live block has the owner ID of its cache. While an ID is exclusive, only the
 * owner's thread changes the state of such blocks, inside the cache: its free needs no locked
 * instruction. The first free of such a block by another thread makes the ID shared, for ever and
 * for all its blocks. From then on every free of them is a compare and swap.
 */
#ifndef GPUCACHE_TCACHE_OWNER_ID_H
#define GPUCACHE_TCACHE_OWNER_ID_H

#include <stdatomic.h>
#include <stdbool.h>

struct cache;

/* Whether an owner ID is shared. ID 0, of blocks without an owner, always is. */
#define OWNER_IDS (1u << 16)
extern atomic_bool owner_id_shared[OWNER_IDS];

/**
 * Makes an owner ID shared. Must run before a thread frees a block of another owner. Called with no
 * lock; takes source.lock and seizes the ID's cache.
 */
void owner_id_share(unsigned owner_id);

/** Returns whether an owner ID is shared. Needs no lock. */
static inline bool owner_id_is_shared(unsigned owner_id) {
    return atomic_load_explicit(&owner_id_shared[owner_id], memory_order_acquire);
}

/** Returns the cache that has or had an owner ID, which was found in a block and is not 0. */
struct cache *owner_id_cache(unsigned owner_id);

/**
 * Gives a cache a new owner ID: 0 without a biased lock, as in the common cache, or if all IDs are
 * used. The cache has no owner yet. The pool's lock is held, or no other thread has the pool yet.
 */
void owner_id_take(struct cache *cache);

/**
 * Returns whether no live block can have the cache's ID: only the cache's thread freed blocks of
 * the ID, no others, and as many as it allocated. The pool's lock is held.
 */
bool owner_id_is_exclusive(const struct cache *cache);

/**
 * Makes the ID of a cache shared. The pool's lock is held; the owner is outside the cache, or has
 * ended.
 */
void owner_id_mark_shared(struct cache *cache);

#endif
