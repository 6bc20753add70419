/*
 * Owner IDs: how a cache gets one, shares it and gives it up (owner_id.h).
 *
 * The pool's lock protects the ID of a cache. The two tables are atomic and read without a lock.
 * Callers: owner.c; free.c and transfer.c for blocks of other threads.
 */
#include "tcache/owner_id.h"

#include "tcache/internal.h"

/*
 * The cache of each owner ID. An ID belongs to one cache for ever, and caches are never unmapped:
 * the ID of a block always leads to a cache. The next thread of the cache keeps the ID only if no
 * live block can have it. ID 0 stands for no owner: many caches have it, and nothing reads entry 0.
 */
static _Atomic(struct cache *) cache_of_id[OWNER_IDS];
/* Every free by another thread reads these flags. Caches are often written and lie elsewhere. */
atomic_bool owner_id_shared[OWNER_IDS] = {true};
static _Atomic uint32_t last_id;

/* Sets a cache's owner ID and the header words made of it. Locks as for owner_id_take(). */
static void set_id(struct cache *cache, uint16_t owner_id) {
    uint64_t owner = (uint64_t)owner_id << HEADER_OWNER_SHIFT;
    cache->owner_id = owner_id;
    cache->live_mask = (uint64_t)(BLOCK_LIVE ^ BLOCK_CACHED) | owner;
    cache->owned_header = owner_id > 0 ? (uint64_t)BLOCK_LIVE | owner : OWNED_HEADER_NONE;
}

/*
 * Returns a new ID, or 0 if all are used. Blocks with ID 0 have no owner: every free of them is a
 * compare and swap. Needs no lock.
 */
static uint16_t new_id(void) {
    uint32_t owner_id = atomic_load(&last_id);
    while (owner_id < OWNER_IDS - 1 &&
           !atomic_compare_exchange_weak(&last_id, &owner_id, owner_id + 1)) {
    }
    return owner_id < OWNER_IDS - 1 ? (uint16_t)(owner_id + 1) : 0;
}

void owner_id_take(struct cache *cache) {
    set_id(cache, biased_is_on(&cache->lock) ? new_id() : 0);
    atomic_store(&cache_of_id[cache->owner_id], cache);
}

bool owner_id_is_exclusive(const struct cache *cache) {
    return cache->owner_id > 0 && !owner_id_is_shared(cache->owner_id) && !cache->freed_others &&
           watermark_live(&cache->watermarks[WATERMARK_BLOCKS]) == cache->live_at_start;
}

void owner_id_mark_shared(struct cache *cache) {
    cache->owned_header = OWNED_HEADER_NONE;
    atomic_store(&owner_id_shared[cache->owner_id], true);
}

struct cache *owner_id_cache(unsigned owner_id) {
    return atomic_load(&cache_of_id[owner_id]);
}

void owner_id_share(unsigned owner_id) {
    struct cache *cache = owner_id_cache(owner_id);
    lock_acquire(&cache->pool->source.lock);
    if (cache->owner_id == owner_id) {
        cache_seize(cache);
        owner_id_mark_shared(cache);
        cache_return(cache);
    }
    lock_release(&cache->pool->source.lock);
}
