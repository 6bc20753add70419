#include "pool/internal.h"

/* A block somewhat larger beats a visit to the pool (programs whose sizes never repeat live on this),
 * and one up to twice as large beats growing when memory is short, or much is cached. */
unsigned want_last_bin(const struct want *want, bool much) {
    unsigned further = want->large ? much ? LARGER_BINS_OF_LARGE_WHEN_SHORT : LARGER_BINS_OF_LARGE
                       : want->bin < LARGER_LEAST_BIN ? 0
                       : much                         ? LARGER_BINS_WHEN_SHORT
                                                      : LARGER_BINS;
    unsigned last = want->bin + further, end = want->large ? BINS - 1 : SMALL_CLASSES - 1;
    return last < end ? last : end;
}

/* What there is plenty of is better used than added to. */
static unsigned last_bin(const struct cache *cache, const struct want *want) {
    return want_last_bin(want, want->is_short || cache->bytes > cache_room(cache) / 2);
}

/* A block that was found, and the one before it in its bin; NULL: none, and it is the first. */
struct fit {
    struct block *block, *before;
};

/** The first large block of a bin that holds `bytes`, if it may be handed out. Stamps grow along a
 * bin: if it may not, none behind it may. */
static struct fit find_fit(const struct bin *bin, uint64_t bytes, uint64_t usable) {
    struct fit fit = {bin->head, NULL};
    for (unsigned tries = 0; fit.block && range_of(fit.block)->bytes < bytes; tries++) {
        fit.before = fit.block;
        fit.block = tries + 1 < CACHE_TRIES ? fit.block->next : NULL;
    }
    if (fit.block && fit.block->stamp > usable) {
        fit.block = NULL;
    }
    return fit;
}

static struct block *pop_large(struct cache *cache, unsigned at, uint64_t bytes, uint64_t usable) {
    struct bin *bin = &cache->bins[at];
    struct fit fit = find_fit(bin, bytes, usable);
    if (fit.block) {
        *(fit.before ? &fit.before->next : &bin->head) = fit.block->next;
        bin->tail = bin->tail == fit.block ? fit.before : bin->tail;
        bin->count--;
        cache->bytes -= range_of(fit.block)->bytes;
    }
    return fit.block;
}

struct block *cache_find(struct cache *cache, const struct want *want, uint64_t usable) {
    unsigned last = last_bin(cache, want);
    struct block *block = NULL;
    for (unsigned at = want->bin; !block && at <= last; at++) {
        block =
            want->large ? pop_large(cache, at, want->bytes, usable) : cache_pop(cache, at, usable);
    }
    return block;
}

uint64_t cache_stamp(const struct cache *cache, const struct want *want) {
    if (!want->large) {
        const struct block *head = cache->bins[want->bin].head;
        return head ? head->stamp : 0;
    }
    unsigned last = last_bin(cache, want);
    uint64_t stamp = 0;
    for (unsigned at = want->bin; at <= last; at++) {
        struct fit fit = find_fit(&cache->bins[at], want->bytes, UINT64_MAX);
        if (fit.block && (stamp == 0 || fit.block->stamp < stamp)) {
            stamp = fit.block->stamp;
        }
    }
    return stamp;
}

void cache_push_magazine(struct cache *cache, unsigned at, const struct magazine *magazine) {
    struct bin *bin = &cache->bins[at];
    *(bin->head ? &magazine->last->next : &bin->tail) = bin->head ? bin->head : magazine->last;
    bin->head = magazine->first;
    bin->count += magazine->count;
    cache->bytes += magazine->bytes;
}

void cache_push_ready(struct cache *cache, struct block *block) {
    block->next = NULL;
    cache_push_magazine(
        cache, block_bin(block),
        &(struct magazine){.first = block, .last = block, .count = 1, .bytes = block_bytes(block)});
}

struct magazine cache_take(struct cache *cache, unsigned at, uint32_t count) {
    struct bin *bin = &cache->bins[at];
    struct magazine taken = {.first = bin->head, .last = bin->tail, .bin = at};
    bool all = count >= bin->count, large = at >= SMALL_CLASSES;
    if (count == 0 || bin->count == 0) {
        return (struct magazine){0};
    }
    taken.count = all ? bin->count : count;
    taken.bytes = large ? 0 : taken.count * size_class_bytes(at);
    for (uint32_t i = 0; (!all || large) && i < taken.count; i++) {
        taken.last = i == 0 ? taken.first : taken.last->next;
        taken.bytes += large ? range_of(taken.last)->bytes : 0;
    }
    bin->head = all ? NULL : taken.last->next;
    taken.last->next = NULL;
    taken.stamp = taken.last->stamp;
    bin->count -= taken.count;
    cache->bytes -= taken.bytes;
    return taken;
}

/* --- away from here --- */

static void spill(struct cache *cache, unsigned at, uint32_t count) {
    pending_add_list(cache->pool, cache_take(cache, at, count).first);
}

/* Whether nothing has been asked of a bin since that was last asked. */
static bool is_idle(struct bin *bin) {
    uint64_t allocs = books_get(&bin->allocs);
    bool idle = allocs == bin->allocs_seen;
    bin->allocs_seen = allocs;
    return idle;
}

void cache_drop_idle(struct cache *cache, unsigned keep, uint64_t most) {
    for (unsigned turns = 0; cache->bytes > most && turns < BINS; turns++) {
        cache->hand = (uint16_t)((cache->hand + 1u) % BINS);
        struct bin *bin = &cache->bins[cache->hand];
        if (is_idle(bin) && cache->hand != keep) {
            spill(cache, cache->hand, bin->count);
            bin->target = 0;
        }
    }
}

/* Of bytes, not of blocks: halving a bin of tiny ones makes no room, and the next free is back. */
static unsigned largest_bin(const struct cache *cache, unsigned keep) {
    unsigned largest = keep;
    uint64_t most = 0;
    for (unsigned at = 0; at < BINS; at++) {
        const struct bin *bin = &cache->bins[at];
        uint64_t each = at < SMALL_CLASSES ? size_class_bytes(at) : size_class_bytes(at - 1);
        if (bin->count * each > most && at != keep) {
            most = bin->count * each;
            largest = at;
        }
    }
    return largest;
}

void cache_drop_half(struct cache *cache, unsigned keep, uint64_t most) {
    while (cache->bytes > most) {
        unsigned at = largest_bin(cache, keep);
        spill(cache, at, (cache->bins[at].count + 1) / 2);
        cache->bins[at].target /= 2;
    }
}

/* In parts, so that the other thread finds some at any time. False: there is no room. */
static bool ship(struct cache *cache, struct transfer *transfer, unsigned at, uint32_t count) {
    uint32_t each = magazine_blocks(at);
    while (count > 0 && cache->bins[at].count > 0) {
        struct magazine magazine = cache_take(cache, at, count < each ? count : each);
        if (!transfer_has_room(transfer, magazine.bytes)) {
            cache_push_magazine(cache, at, &magazine);
            return false;
        }
        transfer_put(transfer, &magazine);
        count -= magazine.count;
    }
    return true;
}

bool cache_ship(struct cache *cache, unsigned at, unsigned number) {
    struct bin *bin = &cache->bins[at];
    struct transfer *transfer = transfer_lock(cache->pool, number);
    uint32_t each = magazine_blocks(at);
    uint32_t whole = bin->count > bin->target ? (bin->count - bin->target) / each * each : 0;
    bool any = ship(cache, transfer, at, whole), full = cache->bytes > cache_room(cache);
    for (unsigned other = 0; any && full && other < BINS; other++) {
        bin = &cache->bins[other];
        if (bin->count > 0 && is_idle(bin)) {
            any = ship(cache, transfer, other, bin->count);
        }
    }
    transfer_unlock(transfer);
    return any;
}

void cache_empty(struct cache *cache, unsigned first) {
    for (unsigned at = first; cache->bytes > 0 && at < BINS; at++) {
        spill(cache, at, cache->bins[at].count);
    }
}

static void forget(struct cache *cache) {
    for (unsigned at = 0; at < BINS; at++) {
        struct bin *bin = &cache->bins[at];
        bin->head = bin->tail = NULL;
        bin->count = bin->target = 0;
        books_set(&bin->frees, books_get(&bin->allocs));
    }
    for (unsigned i = 0; i < STATS_SIZE_CLASSES; i++) {
        books_set(&cache->large_frees[i], books_get(&cache->large_allocs[i]));
    }
    cache->bytes = 0;
    cache->saw_others = true; /* what it had asked for is not known to be gone */
    transfer_forget(&cache->transfer);
    for (unsigned i = 0; i < TIDES; i++) {
        tide_ebb(&cache->tides[i]);
    }
}

void cache_forget_all(struct pool *pool) {
    cache_seize_all(pool);
    for (struct cache *cache = atomic_load(&pool->caches); cache; cache = cache->next_in_pool) {
        forget(cache);
    }
    cache_return_all(pool);
}

/* --- seized --- */

static void end_bias(void *with) {
    struct pool *pool = with;
    for (struct cache *cache = atomic_load(&pool->caches); cache; cache = cache->next_in_pool) {
        biased_ask(&cache->lock);
    }
    biased_wait_for_stores();
    for (struct cache *cache = atomic_load(&pool->caches); cache; cache = cache->next_in_pool) {
        biased_end(&cache->lock);
    }
}

void cache_seize_list(struct pool *pool, struct biased *first) {
    biased_seize(first, end_bias, pool);
}

void cache_seize(struct cache *cache) {
    cache->lock.next_seized = NULL;
    cache_seize_list(cache->pool, &cache->lock);
}

void cache_return(struct cache *cache) {
    cache->lock.next_seized = NULL;
    biased_return(&cache->lock);
}

void cache_seize_all(struct pool *pool) {
    struct biased *all = NULL;
    for (struct cache *cache = atomic_load(&pool->caches); cache; cache = cache->next_in_pool) {
        cache->lock.next_seized = all;
        all = &cache->lock;
    }
    cache_seize_list(pool, all);
}

void cache_return_all(struct pool *pool) {
    for (struct cache *cache = atomic_load(&pool->caches); cache; cache = cache->next_in_pool) {
        cache_return(cache);
    }
}
