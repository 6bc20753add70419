/*
 * A thread's cache: blocks and ranges it freed, by size class, in the order in which it freed them.
 *
 *      class 64 KiB    head -> stamp 7, stamp 7, stamp 9, stamp 12 <- tail
 *                      ^ handed out first, once epoch 7 is usable       ^ freed last
 *
 * Stamps only grow along a list, so one comparison with `usable` tells whether the head may go out,
 * and if it may not, nothing behind it may either: pending and ready memory need no two lists, and
 * nothing has to be moved when an epoch ends. A block freed by another thread than the one that
 * asked for it goes into the freeing thread's cache; nobody else's line is touched.
 *
 * Large blocks lie in drawers by the largest class that is not larger than they are, because they
 * are not rounded up to one: the first few are looked at for one that fits.
 *
 * A cache has one owner, who enters and leaves it with plain stores (biased). Whoever else needs
 * it, because memory is short, says so, makes every running thread of the process pass a memory
 * barrier (membarrier(2)), and then waits for the owner to leave: the price of the exclusion lies
 * with the rare side. Where the kernel cannot do that, and in the common cache that several threads
 * use, an ordinary spin lock takes its place. The counters have one writer, who is inside.
 */
#ifndef GPUCACHE_POOL_CACHE_H
#define GPUCACHE_POOL_CACHE_H

#include "pool/arena.h"
#include "pool/page.h"
#include "pool/size_class.h"
#include "stats/books.h"

#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* Parked in one cache, all classes together: this part of the device's memory, within bounds. Half
 * of it in one class. */
#define CACHE_BYTES_SHARE 1024
#define CACHE_BYTES_LEAST ((uint64_t)4 << 20)
#define CACHE_BYTES_MOST ((uint64_t)48 << 20)
#define CACHE_BIN_BLOCKS 256 /* and no more than so many of a class */

/* Large blocks have so many times as much; one of them may take up to a quarter of that. */
#define CACHE_LARGE_FACTOR 1
#define CACHE_LARGE_SHARE 4
#define CACHE_LARGE_TRIES 4 /* ranges of a drawer that are looked at */
#define LARGE_DRAWERS (SIZE_CLASSES - SMALL_CLASSES + 1)

struct pool;

/* Some blocks of one class, in the order of their stamps. */
struct batch {
    struct block *first, *last;
    uint32_t count;
};

struct bin {
    struct block *head, *tail;
    uint32_t count;
    uint32_t room;   /* how many blocks may be parked here */
    uint32_t target; /* how many blocks should go round: grows with every visit to the pool */
    books_counter allocs, frees; /* of requests of this class, whatever block they got */
};

struct drawer {
    struct range *head, *tail;
    uint32_t count;
    uint32_t target;
    books_counter allocs, frees; /* of requests of the class, whatever range they got */
};

/* What the owner has taken less what it has given back, and the highest that was since the pool
 * last looked. Modulo 2^64, to be read as signed: a thread may free more than it asked for. */
struct tide {
    books_counter live, peak;
};

enum tide_of { TIDE_REQUESTED, TIDE_ALLOCATED, TIDE_COUNT, TIDES };

struct cache {
    _Alignas(64) bool biased; /* set once; else `inside` is a spin lock */
    atomic_bool inside;       /* somebody is */
    atomic_bool wanted;       /* biased: somebody else waits for the owner to stay out */
    struct pool *pool;  /* for ever: a cache is reused by other threads, never by other pools */
    uint64_t bytes;     /* of small blocks parked */
    uint64_t bytes_max; /* as many may be */
    uint64_t large_bytes, large_bytes_max; /* the same of large ones */
    bool large_freed; /* one was parked since the thread last took from the shelf of large ones */
    uint64_t bytes_since_close; /* freed by this thread since an event was last due */
    uint32_t frees_since_close;
    uint64_t total_at_room; /* requested_total when room was last made */
    books_counter requested_total, allocated_total;
    struct tide tides[TIDES];
    struct bin bins[SMALL_CLASSES];
    struct drawer drawers[LARGE_DRAWERS];
    struct cache *next_in_pool;   /* set once */
    struct cache *next_in_thread; /* the owner's */
    const void *owner; /* something only the owning thread has; NULL: none; under the pool's lock */
};

static inline void cpu_relax(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/** Turns bias on for caches made from now on, if the kernel can do it. Called once. */
void cache_start(void);
bool cache_can_bias(void);

/* For the owner, or any user of the common cache. */
void cache_enter_slowly(struct cache *cache);

static inline void cache_enter(struct cache *cache) {
    if (__builtin_expect(cache->biased, 1)) {
        atomic_store_explicit(&cache->inside, true, memory_order_relaxed);
        atomic_signal_fence(
            memory_order_seq_cst); /* the other side's membarrier makes a fence of it */
        if (__builtin_expect(!atomic_load_explicit(&cache->wanted, memory_order_acquire), 1)) {
            return;
        }
    } else if (!atomic_exchange_explicit(&cache->inside, true, memory_order_acquire)) {
        return;
    }
    cache_enter_slowly(cache);
}

static inline void cache_leave(struct cache *cache) {
    atomic_store_explicit(&cache->inside, false, memory_order_release);
}

/* For everybody else, under the pool's lock. */
void cache_seize(struct cache *cache);
void cache_return(struct cache *cache);

/** Says how much a new cache may park. */
void cache_set_room(struct cache *cache, uint64_t bytes);

/** Whether a cache has parked more than it may, of the class or of all. */
static inline bool cache_overflows(const struct cache *cache, unsigned size_class) {
    return cache->bins[size_class].count > cache->bins[size_class].room ||
           cache->bytes > cache->bytes_max;
}

/* All below: the caller is inside. */

/** The head of the class if memory stamped up to `usable` may be handed out and the head is; else
 * NULL. */
static inline struct block *cache_pop(struct cache *cache, unsigned size_class, uint64_t usable) {
    struct bin *bin = &cache->bins[size_class];
    struct block *block = bin->head;
    if (!block || block->stamp > usable) {
        return NULL;
    }
    bin->head = block->next;
    bin->count--;
    cache->bytes -= block_bytes(block);
    return block;
}

/**
 * The same from one of the next classes, up to `more` of them: a block somewhat larger beats a visit to the pool (programs whose
 * sizes never repeat live on this), and one up to twice as large beats growing when memory is short.
 */
#define CACHE_LARGER 4
#define CACHE_LARGER_WHEN_SHORT 16
static inline struct block *cache_pop_larger(struct cache *cache, unsigned size_class,
                                             unsigned more, uint64_t usable) {
    struct block *block = NULL;
    unsigned last = size_class + more < SMALL_CLASSES ? size_class + more : SMALL_CLASSES - 1;
    for (unsigned next = size_class + 1; !block && size_class >= 16 && next <= last; next++) {
        block = cache_pop(cache, next, usable);
    }
    return block;
}

/** How many classes larger: what is parked in plenty is better used than added to. */
static inline unsigned cache_larger(const struct cache *cache) {
    return cache->bytes > cache->bytes_max / 2 ? CACHE_LARGER_WHEN_SHORT : CACHE_LARGER;
}

/** Parks a block whose stamp is at least that of every block freed by this thread before. */
static inline void cache_push(struct cache *cache, struct block *block) {
    struct bin *bin = &cache->bins[block->bin];
    block->next = NULL;
    if (bin->head) {
        bin->tail->next = block;
    } else {
        bin->head = block;
    }
    bin->tail = block;
    bin->count++;
    cache->bytes += block_bytes(block);
}

/** Parks blocks of one class that are all usable already: in front of all others. */
static inline void cache_push_batch(struct cache *cache, struct batch batch) {
    struct bin *bin = &cache->bins[batch.first->bin];
    batch.last->next = bin->head;
    if (!bin->head) {
        bin->tail = batch.last;
    }
    bin->head = batch.first;
    bin->count += batch.count;
    cache->bytes += batch.count * block_bytes(batch.first);
}

static inline void cache_push_ready(struct cache *cache, struct block *block) {
    cache_push_batch(cache, (struct batch){block, block, 1});
}

/* --- large blocks --- */

/** The drawer that a range of `bytes` > 1 MiB lies in; where a request for as much begins to look. */
static inline unsigned drawer_of(uint64_t bytes) {
    return size_class_below(bytes) - (SMALL_CLASSES - 1);
}

/** Where requests of that size are counted. */
static inline struct drawer *drawer_counting(struct cache *cache, uint64_t requested) {
    unsigned size_class = size_class_of(requested);
    return &cache->drawers[(size_class < SIZE_CLASSES ? size_class : SIZE_CLASSES - 1) -
                           (SMALL_CLASSES - 1)];
}

/** Whether more large blocks are parked than may be. */
static inline bool cache_overflows_with_large(const struct cache *cache) {
    return cache->large_bytes > cache->large_bytes_max;
}

/** Whether blocks of that size are parked at all. */
static inline bool cache_keeps(const struct cache *cache, uint64_t bytes) {
    return bytes <= cache->large_bytes_max / CACHE_LARGE_SHARE;
}

static inline struct range *cache_unlink(struct cache *cache, struct drawer *drawer,
                                         struct range *before, struct range *range) {
    *(before ? &before->queue_next : &drawer->head) = range->queue_next;
    if (drawer->tail == range) {
        drawer->tail = before;
    }
    drawer->count--;
    cache->large_bytes -= range->bytes;
    return range;
}

/**
 * How many drawers further than its own a request looks, each a sixteenth of a doubling: a range
 * is at most an eighth larger than asked for, or three eighths where so much is parked that using it
 * beats adding to it.
 */
#define CACHE_DRAWERS_FURTHER 1
#define CACHE_DRAWERS_WHEN_MUCH 5
static inline unsigned cache_drawers_further(const struct cache *cache) {
    return cache->large_bytes > cache->large_bytes_max / 2 ? CACHE_DRAWERS_WHEN_MUCH
                                                           : CACHE_DRAWERS_FURTHER;
}

/* A range that was found, and the one before it in its drawer; NULL: none, and it is the first. */
struct fit {
    struct range *range, *before;
};

/** The first range of a drawer that holds `bytes`, if it may be handed out. Stamps grow along a
 * drawer: if it may not, none behind it may. */
static inline struct fit cache_fit_in(const struct drawer *drawer, uint64_t bytes,
                                      uint64_t usable) {
    struct fit fit = {drawer->head, NULL};
    for (unsigned tries = 0; fit.range && fit.range->bytes < bytes; tries++) {
        fit.before = fit.range;
        fit.range = tries + 1 < CACHE_LARGE_TRIES ? fit.range->queue_next : NULL;
    }
    if (fit.range && fit.range->stamp > usable) {
        fit.range = NULL;
    }
    return fit;
}

/** A range of at least `bytes`, not much larger, that may be handed out; else NULL. */
static inline struct range *cache_pop_range(struct cache *cache, uint64_t bytes, uint64_t usable) {
    unsigned first = drawer_of(bytes), last = first + cache_drawers_further(cache);
    for (unsigned at = first; at <= last && at < LARGE_DRAWERS; at++) {
        struct fit fit = cache_fit_in(&cache->drawers[at], bytes, usable);
        if (fit.range) {
            return cache_unlink(cache, &cache->drawers[at], fit.before, fit.range);
        }
    }
    return NULL;
}

/** The least `usable` with which that finds one; 0: it has none to find. */
static inline uint64_t cache_range_stamp(const struct cache *cache, uint64_t bytes) {
    unsigned first = drawer_of(bytes), last = first + cache_drawers_further(cache);
    uint64_t stamp = 0;
    for (unsigned at = first; at <= last && at < LARGE_DRAWERS; at++) {
        struct fit fit = cache_fit_in(&cache->drawers[at], bytes, UINT64_MAX);
        if (fit.range && (stamp == 0 || fit.range->stamp < stamp)) {
            stamp = fit.range->stamp;
        }
    }
    return stamp;
}

/** Parks a range whose stamp is at least that of every one freed by this thread before. */
static inline void cache_push_range(struct cache *cache, struct range *range) {
    struct drawer *drawer = &cache->drawers[drawer_of(range->bytes)];
    range->queue_next = NULL;
    *(drawer->head ? &drawer->tail->queue_next : &drawer->head) = range;
    drawer->tail = range;
    drawer->count++;
    cache->large_bytes += range->bytes;
    cache->large_freed = true;
}

/** Parks a range that is usable already: in front of all others. */
static inline void cache_push_ready_range(struct cache *cache, struct range *range) {
    struct drawer *drawer = &cache->drawers[drawer_of(range->bytes)];
    range->queue_next = drawer->head;
    if (!drawer->head) {
        drawer->tail = range;
    }
    drawer->head = range;
    drawer->count++;
    cache->large_bytes += range->bytes;
}

/* --- books --- */

static inline void tide_rise(struct tide *tide, uint64_t amount) {
    uint64_t live = books_get(&tide->live) + amount;
    books_set(&tide->live, live);
    if ((int64_t)live > (int64_t)books_get(&tide->peak)) {
        books_set(&tide->peak, live);
    }
}

static inline void tide_fall(struct tide *tide, uint64_t amount) {
    books_set(&tide->live, books_get(&tide->live) - amount);
}

/** Books: a block of `bytes` for a request of `requested` went out; came back. The counter is that of
 * the request's class. */
static inline void cache_book_alloc(struct cache *cache, books_counter *allocs, uint64_t requested,
                                    uint64_t bytes) {
    books_add(allocs, 1);
    books_add(&cache->requested_total, requested);
    books_add(&cache->allocated_total, bytes);
    tide_rise(&cache->tides[TIDE_REQUESTED], requested);
    tide_rise(&cache->tides[TIDE_ALLOCATED], bytes);
    tide_rise(&cache->tides[TIDE_COUNT], 1);
}

static inline void cache_book_free(struct cache *cache, books_counter *frees, uint64_t requested,
                                   uint64_t bytes) {
    books_add(frees, 1);
    tide_fall(&cache->tides[TIDE_REQUESTED], requested);
    tide_fall(&cache->tides[TIDE_ALLOCATED], bytes);
    tide_fall(&cache->tides[TIDE_COUNT], 1);
}

/** Takes the `count` oldest blocks of a class out, or all there are. */
struct batch cache_take(struct cache *cache, unsigned size_class, uint32_t count);

/* Under the pool's lock: */

/** A free of that class finds the cache full. */
void cache_make_room(struct cache *cache, unsigned size_class);

/** The same after the free of a large block. */
void cache_make_room_for_large(struct cache *cache);

/** Everything parked goes to the pool; the first only with what is large. */
void cache_empty_drawers(struct cache *cache);
void cache_empty(struct cache *cache);

/** The calling thread's cache for a pool, made if need be; the pool's common one for a thread that
 * cannot have its own. */
struct cache *cache_find(struct pool *pool);

/** The cache this thread used last; checked by the caller against the pool it wants. */
extern _Thread_local struct cache *cache_last __attribute__((tls_model("initial-exec")));

static inline struct cache *cache_mine(struct pool *pool) {
    struct cache *cache = cache_last;
    return __builtin_expect(cache && cache->pool == pool, 1) ? cache : cache_find(pool);
}

#endif
