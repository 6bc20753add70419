/*
 * A thread's cache: blocks it freed, by bin, in the order in which it freed them.
 *
 *      bin of 64 KiB   head -> stamp 7, stamp 7, stamp 9, stamp 12 <- tail
 *                      ^ handed out first, once epoch 7 is usable       ^ freed last
 *
 * Stamps only grow along a list, so one comparison with `usable` tells whether the head may go out, and
 * if it may not, nothing behind it may either: pending and ready memory need no two lists, and nothing
 * has to be moved when an epoch ends. A block freed by another thread than the one that asked for it goes
 * into the freeing thread's cache; nobody else's line is touched.
 *
 * A bin of large blocks holds sizes within a sixteenth of a doubling: the first few are looked at.
 *
 * Its owner enters a cache with plain stores (biased.h). The counters have one writer, who is inside.
 */
#ifndef GPUCACHE_POOL_CACHE_H
#define GPUCACHE_POOL_CACHE_H

#include "memory/block.h"
#include "memory/tuning.h"
#include "pool/transfer.h"
#include "process/biased.h"
#include "stats/watermark.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define CACHE_OWNS_NONE UINT64_MAX

struct pool;

struct bin {
    _Alignas(64) struct block *head;
    struct block *tail;
    uint32_t count;
    uint32_t target; /* how many blocks should go round: grows with every visit to the pool */
    stat_counter allocs, frees; /* of blocks that are kept here */
    uint64_t allocs_seen;       /* when cache_flush_idle() last came by */
    uint32_t own_at_miss;       /* what its thread had asked for of this bin, */
    uint32_t all_at_miss;       /* and in all, when the head was last found to be pending */
};

enum watermark_of { WATERMARK_REQUESTED, WATERMARK_ALLOCATED, WATERMARK_COUNT, WATERMARKS };

/* A number, and since when it is known to be the same; 0: it has not been looked at. */
struct still {
    uint64_t number, since;
};

struct seen {
    struct still taken, worked; /* what the thread has asked for, and what it has done in all */
    struct still ticked;        /* the latter by ticks (decay.c) */
};

struct cache {
    _Alignas(64) struct biased lock; /* the first: see cache_of() */
    struct pool *pool;      /* for ever: a cache is reused by other threads, never by other pools */
    uint64_t hands_out;     /* what changes in the header of a block that is handed out, */
    uint64_t owns;          /* and what is the same in that of a block only the owner frees */
    uint64_t bytes;         /* of what is in the bins */
    _Atomic uint64_t quota; /* as many may be: its quota. Written under the pool's lock */
    struct watermark watermarks[WATERMARKS];
    uint16_t number; /* of the blocks it hands out; 0: they are everybody's */
    uint16_t hand;   /* the bin that cache_flush_idle() came to last */
    uint32_t frees_since_event;
    uint64_t pressure_seen;     /* the pool's, which these are counted since: */
    uint64_t bytes_since_event; /* freed by this thread */
    struct bin bins[BINS];
    stat_counter large_allocs[STATS_SIZE_CLASSES], large_frees[STATS_SIZE_CLASSES]; /* requests */
    _Atomic(struct cache *) next_in_pool; /* changed under the pool's lock; others may read it */
    struct cache *previous_in_pool;
    const void *owner; /* something only the owning thread has; NULL: none; under the pool's lock */
    struct cache *next_in_thread;                /* the owner's */
    struct cache *next_active, *previous_active; /* under the pool's lock */
    struct seen seen;
    bool in_slow_path;        /* its thread is in the pool, and may wait there without the lock */
    uint32_t refill_failures; /* visits in which there was no memory for what should go round */
    bool overflowed; /* since its last miss it had no room for more than what nobody asks for */
    bool saw_others; /* it has freed blocks of other numbers than its own */
    stat_counter peak_seen;   /* its own, when the pool was last told of it */
    uint64_t live_at_start;   /* blocks in its books when it got its thread */
    struct transfer transfer; /* what others freed of this thread's; with a lock of its own */
};

static inline struct cache *cache_of(struct biased *lock) {
    return (struct cache *)lock;
}

/** A list of caches: this one in front of others, NULL: of none. */
static inline struct biased *cache_listed(struct cache *cache, struct biased *others) {
    cache->lock.next_seized = others;
    return &cache->lock;
}

static inline void cache_enter(struct cache *cache) {
    biased_enter(&cache->lock);
}

static inline void cache_leave(struct cache *cache) {
    biased_leave(&cache->lock);
}

/* For everybody else, under the pool's lock: one cache, or those of all threads and the common one. */
void cache_seize(struct cache *cache);
void cache_return(struct cache *cache);
void cache_seize_all(struct pool *pool);
void cache_return_all(struct pool *pool);

/* A list of a pool's at once: nothing goes from one of them to another meanwhile, or to a transfer cache. */
void cache_seize_list(struct pool *pool, struct biased *first);

static inline uint64_t cache_quota(const struct cache *cache) {
    return atomic_load_explicit(&cache->quota, memory_order_relaxed);
}

/** Whether a cache holds more than it may, in the bin or in all. */
static inline bool cache_overflows(const struct cache *cache, const struct bin *bin) {
    return bin->count > CACHE_BIN_BLOCKS || cache->bytes > cache_quota(cache);
}

/* All below: the caller is inside. */

/** The one that a small block of that header lies in. */
_Static_assert(sizeof(struct bin) == 1 << HEADER_BIN_SHIFT, "a header has a bin's place as it is");
static inline struct bin *cache_bin(struct cache *cache, uint64_t header) {
    return (struct bin *)((char *)cache->bins + (header & HEADER_BIN));
}

/** The head of a bin of small blocks, if memory with its stamp may be handed out; else NULL. */
static inline struct block *cache_pop_from(struct cache *cache, struct bin *bin, uint64_t safe,
                                           uint64_t *header) {
    struct block *block = bin->head;
    if (!block || block->stamp > safe) {
        return NULL;
    }
    bin->head = block->next;
    block_fetch(bin->head); /* for the next one; nothing happens if there is none */
    bin->count--;
    *header = block_header(block);
    cache->bytes -= header_bytes(*header);
    return block;
}

static inline struct block *cache_pop(struct cache *cache, unsigned at, uint64_t safe) {
    uint64_t header;
    return cache_pop_from(cache, &cache->bins[at], safe, &header);
}

/** Puts in a block of `bytes` whose stamp is at least that of every block freed by this thread before. */
static inline void cache_push(struct cache *cache, struct bin *bin, struct block *block,
                              uint64_t bytes) {
    block->next = NULL;
    if (bin->head) {
        bin->tail->next = block;
    } else {
        bin->head = block;
    }
    bin->tail = block;
    bin->count++;
    cache->bytes += bytes;
}

/** The largest bin that will do for a request; and what is here for it, that or a block somewhat larger, if it may be handed out. */
struct alloc_request;
unsigned request_last_bin(const struct alloc_request *request, bool much);
struct block *cache_find(struct cache *cache, const struct alloc_request *request, uint64_t safe);

/** The least `usable` with which that finds one, of the bin itself if it is small; 0: none to find. */
uint64_t cache_stamp(const struct cache *cache, const struct alloc_request *request);

/** Puts in blocks that are all usable already, of one bin: in front of all others. Touches none of them
 * where the bin is empty. */
void cache_push_magazine(struct cache *cache, unsigned at, const struct magazine *magazine);
void cache_push_free(struct cache *cache, struct block *block);

/** Takes the `count` oldest blocks of a bin out; or all there are, without touching small ones. */
struct magazine cache_take(struct cache *cache, unsigned at, uint32_t count);

/** Whether nothing has been asked of a bin since that was last asked. */
static inline bool cache_bin_check_idle(struct bin *bin) {
    uint64_t allocs = counter_get(&bin->allocs);
    bool idle = allocs == bin->allocs_seen;
    bin->allocs_seen = allocs;
    return idle;
}

/** flush.c, under the pool's lock: until no more than `most` bytes are here: bins that nothing has been asked of since this last came
 * by go to the pool, but `keep`; half of each bin does, of `keep` last. */
void cache_flush_idle(struct cache *cache, unsigned keep, uint64_t most);
void cache_flush_half(struct cache *cache, unsigned keep, uint64_t most);

/** Everything goes to the pool, from that bin on. */
void cache_flush(struct cache *cache, unsigned first);

/** Seized: the context is gone, and the memory with it. */
void cache_forget(struct cache *cache);

#endif
