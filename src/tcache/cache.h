/*
 * A thread's cache: blocks that the thread freed or that a refill added, by bin.
 *
 *      bin of 64 KiB   head -> stamp 7, stamp 7, stamp 9, stamp 12 <- tail
 *                      ^ handed out first, if epoch 7 is safe        ^ freed last
 *
 * Invariant: free blocks are in front of all others, whose stamps grow along the bin. One
 * comparison with the safe epoch decides: if the head may not be handed out, no block of the bin
 * may. Free and pending blocks share one list, and nothing moves when an epoch ends. A block of
 * another thread goes into the freeing thread's cache: no other thread's cache line is written. A
 * bin of large blocks covers a sixteenth of a doubling: only its head is checked for size.
 *
 * The owner enters a cache with plain stores (biased.h), other threads seize it under the pool's
 * lock. Only the thread inside writes the counters. `at` is always the index of a bin.
 */
#ifndef GPUCACHE_TCACHE_CACHE_H
#define GPUCACHE_TCACHE_CACHE_H

#include "base/biased.h"
#include "base/likely.h"
#include "heap/block.h"
#include "stats/watermark.h"
#include "tcache/transfer.h"
#include "tuning/tuning.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* Value of owned_header that no header has: every free claims a block with compare and swap. */
#define OWNED_HEADER_NONE UINT64_MAX

struct pool;

struct bin {
    _Alignas(64) struct block *head;
    struct block *tail;
    uint32_t count;
    uint32_t target;            /* blocks that the thread needs per epoch (refill_count()) */
    stat_counter allocs, frees; /* numbers of allocations and frees of blocks of this bin */
    uint64_t allocs_seen;       /* `allocs` at the last cache_bin_check_idle() */
    uint32_t own_at_miss;       /* `allocs` when the head was last found pending */
    uint32_t all_at_miss;       /* allocations of all bins at that time */
};

enum watermark_of { WATERMARK_REQUESTED, WATERMARK_ALLOCATED, WATERMARK_BLOCKS, WATERMARKS };

/* A counter's value, and the time since which it has not changed (ns or ticks; 0: not checked). */
struct unchanged {
    uint64_t number, since;
};

struct cache {
    _Alignas(64) struct biased lock; /* first field: see cache_of() */
    struct pool *pool;               /* never changes: threads reuse a cache, pools do not */
    uint64_t live_mask;              /* XOR mask: header of a cached block to that of a live one */
    uint64_t owned_header;  /* state and owner in the header of a block that only the owner frees */
    uint64_t bytes;         /* bytes of all blocks in the bins */
    _Atomic uint64_t quota; /* limit of `bytes`; written under the pool's lock */
    struct watermark watermarks[WATERMARKS];
    stat_counter large_live_bytes; /* of large blocks handed out, less those that were freed */
    uint16_t owner_id;             /* owner ID of the blocks that the cache hands out; 0: none */
    uint16_t last_flushed;         /* bin at which cache_flush_idle() stopped */
    uint32_t frees_since_event;    /* frees by this thread since an event or event_is_due() */
    uint64_t pressure_seen;        /* source.pressure at the last free under pressure */
    uint64_t bytes_since_event;    /* bytes of these frees */
    struct bin bins[BINS];
    /* numbers of large blocks, by requested bytes (stats_size_class()) */
    stat_counter large_allocs[STATS_SIZE_CLASSES], large_frees[STATS_SIZE_CLASSES];
    _Atomic(struct cache *) next_in_pool; /* written under the pool's lock, read by all */
    struct cache *previous_in_pool;
    const void *thread; /* address unique to the cache's thread, or NULL; under the pool's lock */
    struct cache *next_in_thread;                /* only for the cache's thread */
    struct cache *next_active, *previous_active; /* under the pool's lock */
    /* Allocations and frees, with the time in ns or ticks: scans for idle threads (quota.c). */
    struct unchanged seen_ns, seen_ticks;
    bool in_slow_path;        /* the thread is in alloc_once(), perhaps without the pool's lock */
    uint32_t refill_failures; /* refills without memory; reset at REFILL_FAILURES */
    bool overflowed;          /* its quota made the cache flush bins in use since the last miss */
    bool freed_others;        /* the thread freed blocks with another owner ID */
    uint64_t live_at_start;   /* live blocks that the cache counted when the thread got it */
    struct transfer transfer; /* blocks of this thread that others freed; has its own lock */
};

/** Returns the cache of a lock: the lock is the first field. */
static inline struct cache *cache_of(struct biased *lock) {
    return (struct cache *)lock;
}

/** Returns a list for cache_seize_list(): this cache in front of `others`, which may be NULL. */
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

/* Enter and leave the cache of another thread. The pool's lock is held. */
void cache_seize(struct cache *cache);
void cache_return(struct cache *cache);

/*
 * Seizes a list of caches at once: until biased_return(), no block moves between them or to a
 * transfer cache. The pool's lock is held.
 */
void cache_seize_list(struct pool *pool, struct biased *first);

static inline uint64_t cache_quota(const struct cache *cache) {
    return atomic_load_explicit(&cache->quota, memory_order_relaxed);
}

/**
 * Returns whether a bin has more than CACHE_BIN_BLOCKS blocks, or the cache more bytes than its
 * quota.
 */
static inline bool cache_overflows(const struct cache *cache, const struct bin *bin) {
    return bin->count > CACHE_BIN_BLOCKS || cache->bytes > cache_quota(cache);
}

/* --- the caller is inside the cache --- */

/** Returns the bin of a small block with that header, whose bin field is an offset in bytes. */
_Static_assert(sizeof(struct bin) == 1 << HEADER_BIN_SHIFT, "HEADER_BIN is an offset in bins[]");
static inline struct bin *cache_bin(struct cache *cache, uint64_t header) {
    return (struct bin *)((char *)cache->bins + (header & HEADER_BIN));
}

/**
 * Removes and returns the head of a bin of small blocks, if its stamp is safe; else returns NULL.
 * Sets *header to the block's header.
 */
static inline struct block *cache_pop_from(struct cache *cache, struct bin *bin, uint64_t safe,
                                           uint64_t *header) {
    struct block *block = bin->head;
    if (!block || block->stamp > safe)
        return NULL;
    bin->head = block->next;
    block_fetch(bin->head); /* for the next allocation; harmless for NULL */
    bin->count--;
    *header = block_header(block);
    cache->bytes -= header_bytes(*header);
    return block;
}

/**
 * Appends a block of `bytes`. Its stamp must not be older than that of any block this thread
 * freed before.
 */
static inline void cache_push(struct cache *cache, struct bin *bin, struct block *block,
                              uint64_t bytes) {
    ASSERT_INSIDE(&cache->lock);
    block->next = NULL;
    if (bin->head)
        bin->tail->next = block;
    else
        bin->head = block;
    bin->tail = block;
    bin->count++;
    cache->bytes += bytes;
}

struct alloc_request;
/** Returns the last bin that may serve a request. `much`: memory is short, or much is cached. */
unsigned request_last_bin(const struct alloc_request *request, bool much);
/** Removes and returns a safe block of the bins from request->bin to the last one, or NULL. */
struct block *cache_find(struct cache *cache, const struct alloc_request *request, uint64_t safe);

/**
 * Returns the lowest safe epoch with which cache_find() finds a block, or 0 if the cache has none
 * that fits. For small requests only the request's own bin counts.
 */
uint64_t cache_stamp(const struct cache *cache, const struct alloc_request *request);

/**
 * Insert blocks of one bin in front of all others: safe ones, or what cache_take() just removed.
 * cache_push_magazine() writes to no block if the bin is empty.
 */
void cache_push_magazine(struct cache *cache, unsigned at, const struct magazine *magazine);
void cache_push_free(struct cache *cache, struct block *block);

/** Removes and returns the `count` oldest blocks of a bin. If these are all blocks of a small bin,
 * reads only the last one. */
struct magazine cache_take(struct cache *cache, unsigned at, uint32_t count);

/** Returns whether no block of the bin was allocated since the last call. Records the count. */
static inline bool cache_bin_check_idle(struct bin *bin) {
    uint64_t allocs = counter_get(&bin->allocs);
    bool idle = allocs == bin->allocs_seen;
    bin->allocs_seen = allocs;
    return idle;
}

/** Counts a block of `bytes` that is handed out for a request of `requested` bytes. */
static inline void cache_count_alloc(struct cache *cache, stat_counter *allocs, uint64_t requested,
                                     uint64_t bytes) {
    counter_add(allocs, 1);
    /* The sign bit is set if any of the three has a new peak. */
    int64_t any_negative = watermark_rise(&cache->watermarks[WATERMARK_REQUESTED], requested) |
                           watermark_rise(&cache->watermarks[WATERMARK_ALLOCATED], bytes) |
                           watermark_rise(&cache->watermarks[WATERMARK_BLOCKS], 1);
    if (unlikely(any_negative < 0))
        for (unsigned i = 0; i < WATERMARKS; i++)
            watermark_raise(&cache->watermarks[i]);
}

static inline void cache_count_free(struct cache *cache, stat_counter *frees, uint64_t requested,
                                    uint64_t bytes) {
    counter_add(frees, 1);
    watermark_fall(&cache->watermarks[WATERMARK_REQUESTED], requested);
    watermark_fall(&cache->watermarks[WATERMARK_ALLOCATED], bytes);
    watermark_fall(&cache->watermarks[WATERMARK_BLOCKS], 1);
}

/*
 * --- flush: the caller is inside, or has seized the cache, and holds the pool's lock ---
 *
 * Move blocks to the pool until the cache holds at most `most` bytes.
 *   cache_flush_idle()   takes bins that are idle (cache_bin_check_idle()), never bin `keep`
 *   cache_flush_half()   halves the largest bin until that holds, and bin `keep` last
 */
void cache_flush_idle(struct cache *cache, unsigned keep, uint64_t most);
void cache_flush_half(struct cache *cache, unsigned keep, uint64_t most);

/** Moves all blocks of the bins from `first` on to the pool. */
void cache_flush(struct cache *cache, unsigned first);

/** Forgets all blocks: the context has ended and took the memory along. The cache is seized. */
void cache_forget(struct cache *cache);

#endif
