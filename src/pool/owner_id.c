#include "pool/owner_id.h"

#include "pool/internal.h"

/*
 * A number stays with its cache, so whoever has one from a block finds the cache that had it. The next
 * thread of the cache gets it only if no block can have it any more. Which are shared is asked at every
 * free by another thread, and stands apart from the caches, whose owners keep writing.
 */
static _Atomic(struct cache *) numbered[OWNER_IDS];
atomic_bool owner_id_shared[OWNER_IDS] = {true};
static _Atomic uint32_t last_number;

static void set_number(struct cache *cache, uint16_t number) {
    uint64_t owner = (uint64_t)number << HEADER_OWNER_SHIFT;
    cache->number = number;
    cache->hands_out = (uint64_t)(BLOCK_LIVE ^ BLOCK_CACHED) | owner;
    cache->owns = number > 0 ? (uint64_t)BLOCK_LIVE | owner : CACHE_OWNS_NONE;
}

/* 0, when they have run out: anybody may free those blocks. */
static uint16_t next_number(void) {
    uint32_t number = atomic_load(&last_number);
    while (number < OWNER_IDS - 1 &&
           !atomic_compare_exchange_weak(&last_number, &number, number + 1)) {
    }
    return number < OWNER_IDS - 1 ? (uint16_t)(number + 1) : 0;
}

void owner_id_take(struct cache *cache) {
    set_number(cache, biased_is_on(&cache->lock) ? next_number() : 0);
    atomic_store(&numbered[cache->number], cache);
}

bool owner_id_is_exclusive(const struct cache *cache) {
    return cache->number > 0 && !owner_id_is_shared(cache->number) && !cache->saw_others &&
           watermark_live(&cache->watermarks[WATERMARK_COUNT]) == cache->live_at_start;
}

void owner_id_stop_owning(struct cache *cache) {
    cache->owns = CACHE_OWNS_NONE;
    atomic_store(&owner_id_shared[cache->number], true);
}

void owner_id_clear(struct cache *cache) {
    set_number(cache, 0);
}

struct cache *owner_id_cache(unsigned number) {
    return atomic_load(&numbered[number]);
}

void owner_id_share(unsigned number) {
    struct cache *cache = owner_id_cache(number);
    lock_acquire(&cache->pool->source.lock);
    if (cache->number == number) {
        cache_seize(cache);
        owner_id_stop_owning(cache);
        cache_return(cache);
    }
    lock_release(&cache->pool->source.lock);
}
