/*
 * Quotas: how much each thread's cache may hold, and all of them together.
 *
 * A cache has no quota, and holds nothing, until its thread frees something or asks for more than it has.
 * Then it gets a small one, which grows while its thread needs more, up to its share of what many caches
 * may hold. The budget follows the sum. What has to be taken back is looked for only where there is a
 * quota, however many threads there are.
 *
 *      awake    newest -> [ thread 9 ] [ thread 2 ] ... [ thread 5 ] [ common ]
 *                                                        ^ looked at first
 *
 * Before the pool grows past what its program needs, threads that have not been seen at work for a while
 * give up what they hold, and their quota.
 */
#include "pool/internal.h"

uint64_t quota_of_capacity(uint64_t capacity) {
    uint64_t share = capacity / QUOTA_SHARE;
    return share < QUOTA_LEAST ? QUOTA_LEAST : share > QUOTA_MOST ? QUOTA_MOST : share;
}

/* What one of many may have if all of them, with their transfer caches, are to hold no more than a part of
 * what the program has, and a little. */
static uint64_t part_of_peak(const struct pool *pool) {
    uint64_t peak = books_get(&pool->books.allocated.peak);
    uint64_t each = (peak / QUOTA_MANY_SHARE + QUOTA_MANY_BYTES) / pool->awake_count;
    each -= each / 3; /* for the transfer cache */
    return each < QUOTA_FIRST ? QUOTA_FIRST : each;
}

/* What one may have. With more awake than QUOTA_CACHES they hold less together, too: twice as many, half
 * of it. And no more than suits the program. */
static uint64_t quota_limit(const struct pool *pool) {
    uint64_t most = pool->quota_most, least = most / QUOTA_PARTS, little = budget_little(pool);
    uint64_t awake = pool->awake_count;
    if (awake > QUOTA_CACHES) {
        uint64_t share = most * QUOTA_CACHES / awake * QUOTA_CACHES / awake;
        share = share < least ? least : share;
        uint64_t part = awake > QUOTA_MANY ? part_of_peak(pool) : share;
        return share < part ? share : part;
    }
    return awake <= 1 && most > little ? little : most;
}

static uint64_t transfer_limit(const struct pool *pool) {
    uint64_t most = quota_limit(pool);
    return pool->awake_count > QUOTA_MANY ? most / 2 : most;
}

static void set_quota(struct pool *pool, _Atomic uint64_t *room, uint64_t quota) {
    pool->quotas += quota - atomic_load_explicit(room, memory_order_relaxed);
    atomic_store_explicit(room, quota, memory_order_relaxed);
    pool->budget_follows = true;
}

static void link_awake(struct pool *pool, struct cache *cache) {
    cache->previous_awake = NULL;
    cache->next_awake = pool->awake;
    *(pool->awake ? &pool->awake->previous_awake : &pool->awake_last) = cache;
    pool->awake = cache;
}

static void unlink_awake(struct pool *pool, struct cache *cache) {
    struct cache *next = cache->next_awake, *previous = cache->previous_awake;
    *(previous ? &previous->next_awake : &pool->awake) = next;
    *(next ? &next->previous_awake : &pool->awake_last) = previous;
}

bool quota_grow(struct cache *cache, uint64_t bytes) {
    struct pool *pool = cache->pool;
    uint64_t before = cache_room(cache);
    if (before == 0) {
        pool->awake_count++;
        cache->seen = (struct seen){0};
        link_awake(pool, cache);
        transfer_set_number(&cache->transfer, cache->number);
    }
    uint64_t most = quota_limit(pool), quota = before > QUOTA_FIRST ? before : QUOTA_FIRST;
    while (quota < bytes && quota < most) {
        quota *= 2;
    }
    quota = quota > most ? most : quota;
    if (quota != before) {
        set_quota(pool, &cache->room, quota);
    }
    return cache_room(cache) >= bytes;
}

void quota_grow_transfer(struct cache *cache) {
    struct pool *pool = cache->pool;
    _Atomic uint64_t *room = &cache->transfer.room;
    uint64_t before = atomic_load_explicit(room, memory_order_relaxed), most = transfer_limit(pool);
    uint64_t quota = before > 0 ? 2 * before : QUOTA_TRANSFER_FIRST;
    quota_grow(cache, 0);
    set_quota(pool, room, quota > most ? most : quota);
}

void quota_make_room(struct cache *cache, unsigned keep, uint64_t bytes) {
    uint64_t room = cache_room(cache), most = room - room / ROOM_SHARE;
    most = most > bytes ? most - bytes : 0;
    cache_drop_idle(cache, keep, most);
    bool full = cache->bytes + bytes > room;
    if (full &&
        !(quota_is_little(cache, QUOTA_KEEPING_SHARE) && quota_grow(cache, cache->bytes + bytes))) {
        cache->overflowed = true;
        cache_drop_half(cache, keep, most);
    }
}

void quota_follow_miss(struct cache *cache) {
    quota_grow(cache, cache->overflowed ? 2 * cache_room(cache) : 0);
    cache->overflowed = false;
}

void quota_sleep(struct cache *cache) {
    struct pool *pool = cache->pool;
    if (!quota_sleeps(cache)) {
        cache_empty(cache, 0);
        set_quota(pool, &cache->transfer.room, 0); /* first: the common one's keeps its number */
        transfer_set_number(&cache->transfer, 0);
        transfer_empty(&cache->transfer);
        unlink_awake(pool, cache);
        pool->awake_count--;
        set_quota(pool, &cache->room, 0);
    }
}

/* --- idle threads --- */

/* Whether a number has been the same for so long, as far as is known. */
static bool is_still(struct still *still, uint64_t number, uint64_t now, uint64_t least) {
    if (number != still->number || still->since == 0) {
        *still = (struct still){number, now};
    }
    return now - still->since >= least;
}

static uint64_t worked(const struct cache *cache) {
    const struct watermark *mark = &cache->watermarks[WATERMARK_COUNT];
    return books_get(&mark->taken) + books_get(&mark->crest);
}

/* What waits for a thread that asks for nothing is of no use there. */
static bool look_at(struct cache *cache, uint64_t now, bool *any) {
    uint64_t taken = books_get(&cache->watermarks[WATERMARK_COUNT].taken);
    if (is_still(&cache->seen.taken, taken, now, IDLE_NS)) {
        *any |= transfer_empty(&cache->transfer);
    }
    return is_still(&cache->seen.worked, worked(cache), now, IDLE_NS);
}

/* Those linked by `next_idle`. */
static struct biased *seize(struct pool *pool, struct cache *first) {
    struct biased *locks = NULL;
    for (struct cache *cache = first; cache; cache = cache->next_idle) {
        cache->lock.next_seized = locks;
        locks = &cache->lock;
    }
    cache_seize_list(pool, locks);
    return locks;
}

bool quota_put_to_sleep(struct pool *pool, struct cache *first) {
    struct biased *locks = seize(pool, first);
    bool any = false;
    for (struct cache *cache = first; cache; cache = cache->next_idle) {
        any |= quota_cached(cache) > 0;
        quota_sleep(cache);
    }
    biased_return(locks);
    return any;
}

bool quota_take_back(struct pool *pool, uint64_t growth) {
    if (budget_used(pool) + growth <= pool->goal) {
        return false;
    }
    struct cache *idle = NULL, *before, *newest = pool->awake;
    uint64_t now = backend_clock(pool->backend);
    if (now < pool->look_at_ns) {
        return false;
    }
    bool any = false;
    unsigned looks = 0;
    for (struct cache *cache = pool->awake_last; cache && looks < IDLE_LOOKS; cache = before) {
        before = cache == newest ? NULL : cache->previous_awake;
        looks++;
        if (!cache->visiting && look_at(cache, now, &any)) {
            cache->next_idle = idle;
            idle = cache;
        } else {
            unlink_awake(pool, cache);
            link_awake(pool, cache);
        }
    }
    any |= quota_put_to_sleep(pool, idle);
    pool->look_at_ns = any ? 0 : now + LOOK_NS;
    return any;
}

static bool halve_largest(struct cache *cache, struct cache *others) {
    struct cache *largest = cache;
    for (; others; others = others->next_idle) {
        largest = others->bytes > largest->bytes ? others : largest;
    }
    uint64_t most = (cache->bytes + largest->bytes) / 2;
    if (largest->bytes / 2 <= cache->bytes) {
        return false;
    }
    cache_drop_idle(largest, BINS, most);
    cache_drop_half(largest, BINS, most);
    return true;
}

bool quota_even_out(struct cache *cache) {
    struct pool *pool = cache->pool;
    struct cache *others = NULL, *other = pool->awake_last;
    uint64_t now = backend_clock(pool->backend);
    if (now < pool->look_at_ns) {
        return false;
    }
    for (unsigned looks = 0; other && looks < IDLE_LOOKS; other = other->previous_awake, looks++) {
        if (other != cache && !other->visiting) {
            other->next_idle = others;
            others = other;
        }
    }
    struct biased *locks = seize(pool, others);
    bool any = halve_largest(cache, others);
    biased_return(locks);
    pool->look_at_ns = any ? 0 : now + LOOK_NS;
    return any;
}

struct cache *quota_find_idle(struct pool *pool) {
    struct cache *idle = NULL;
    for (struct cache *cache = pool->awake; cache; cache = cache->next_awake) {
        bool still = is_still(&cache->seen.ticked, worked(cache), pool->decay.tick, DECAY_TICKS);
        if (still && !cache->visiting && !transfer_empty(&cache->transfer)) {
            cache->next_idle = idle;
            idle = cache;
        }
    }
    return idle;
}

bool quota_take_all_back(struct pool *pool) {
    struct cache *all = NULL;
    for (struct cache *cache = pool->awake; cache; cache = cache->next_awake) {
        cache->next_idle = all;
        all = cache;
    }
    return quota_put_to_sleep(pool, all);
}

bool quota_empty_transfers(struct pool *pool) {
    bool any = false;
    for (struct cache *cache = pool->awake; cache; cache = cache->next_awake) {
        any |= books_get(&cache->transfer.bytes) > 0 && transfer_empty(&cache->transfer);
    }
    return any;
}
