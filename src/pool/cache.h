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
 * with the rare side. Where the kernel does not do that, or no longer, and in the common cache that all
 * may use, an ordinary spin lock takes its place. The counters have one writer, who is inside.
 *
 * In the same way a block is freed without a locked instruction by the thread that asked for it. The
 * number of its cache stands in the block, and only that thread changes the state of such a block,
 * inside the cache. The first other thread that frees one ends that, for all blocks of that number
 * and for good: from then on every free of them is a compare and swap.
 */
#ifndef GPUCACHE_POOL_CACHE_H
#define GPUCACHE_POOL_CACHE_H

#include "pool/arena.h"
#include "pool/page.h"
#include "pool/shelf.h"
#include "pool/size_class.h"
#include "pool/tide.h"

#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* Parked in one cache, all classes together: this part of the device's memory, within bounds. Half
 * of it in one class. */
#define CACHE_BYTES_SHARE 1024
#define CACHE_BYTES_LEAST ((uint64_t)4 << 20)
#define CACHE_BYTES_MOST ((uint64_t)48 << 20)
#define CACHE_BIN_BLOCKS 512 /* and no more than so many of a class */

#define CACHES_FULL 16      /* with more caches that hold much than this, each may hold less, */
#define CACHE_FULL_SHARE 16 /* which begins at one part in this of what one may, and never less */

#define CACHE_GIFTS 4 /* a full cache is given away so often before it is in parts */

/* Large blocks have so many times as much; one of them may take up to a quarter of that. */
#define CACHE_LARGE_FACTOR 1
#define CACHE_LARGE_SHARE 4
#define CACHE_LARGE_TRIES 4 /* ranges of a drawer that are looked at */
#define CACHE_OWNS_NONE UINT64_MAX
#define LARGE_DRAWERS (SIZE_CLASSES - SMALL_CLASSES + 1)

struct pool;

struct bin {
    _Alignas(64) struct block *head;
    struct block *tail;
    uint32_t count;
    uint32_t room;   /* how many blocks may be parked here */
    uint32_t target; /* how many blocks should go round: grows with every visit to the pool */
    books_counter allocs, frees; /* of blocks of this class */
};

struct drawer {
    struct range *head, *tail;
    uint32_t count;
    uint32_t target;
    books_counter allocs, frees; /* of requests of the class, whatever range they got */
};

enum tide_of { TIDE_REQUESTED, TIDE_ALLOCATED, TIDE_COUNT, TIDES };

/* A number, and since when it is known to be the same; 0: it has not been looked at. */
struct still {
    uint64_t number, since;
};

struct seen {
    struct still taken, worked; /* what the thread has asked for, and what it has done in all */
};

struct cache {
    _Alignas(64) atomic_bool inside; /* biased: the owner is */
    atomic_bool wanted;              /* biased: somebody else waits for the owner to stay out */
    atomic_bool biased; /* never again, once not: then wanted for ever, and `locked` is a lock */
    atomic_bool locked;
    uint16_t number;    /* of the blocks it hands out; 0: they are everybody's */
    struct pool *pool;  /* for ever: a cache is reused by other threads, never by other pools */
    uint64_t hands_out; /* what changes in the life of a block that is handed out, */
    uint64_t owns;      /* and what is the same in that of a block only the owner frees */
    uint64_t bytes;     /* of small blocks parked */
    uint64_t bytes_max; /* as many may be */
    struct tide tides[TIDES];
    _Atomic(struct cache *) next_in_pool; /* changed under the pool's lock; others may read it */
    struct cache *previous_in_pool;
    const void *owner; /* something only the owning thread has; NULL: none; under the pool's lock */
    struct cache *next_in_thread;              /* the owner's */
    struct cache *next_awake, *previous_awake; /* under the pool's lock */
    struct cache *next_seized;
    atomic_bool asleep; /* changed under the pool's lock: it holds nothing (idle.c) */
    struct seen seen;
    bool visiting;          /* its thread is in the pool, and may wait there without the lock */
    bool full;              /* it is one of those that hold much */
    bool works;             /* its thread has allocated much since it woke, */
    uint64_t taken_asleep;  /* when so much had been taken */
    uint64_t parked;        /* the most that a visit of its thread has seen here since it woke */
    bool saw_others;        /* it has freed blocks of other numbers than its own */
    uint64_t live_at_start; /* blocks in its books when it got its thread */
    uint64_t large_bytes, large_bytes_max; /* the same of large ones, */
    uint64_t large_most;                   /* none of which is larger than this */
    bool large_freed; /* one was parked since the thread last took from the shelf of large ones */
    uint64_t tight_seen, on_time_seen; /* gear and on-time event that these are counted since: */
    uint64_t bytes_since_close;        /* freed by this thread */
    uint32_t frees_since_close;
    uint64_t total_at_room; /* taken, of bytes requested, when room was last made */
    uint32_t gifts;         /* how often on end room was made and nothing had been asked for */
    uint64_t given_at_miss; /* given back, of blocks, when the shelf last had nothing that fits */
    uint16_t serves; /* number of the cache whose block this thread freed last; 0: everybody's */
    struct bin bins[SMALL_CLASSES];
    struct drawer drawers[LARGE_DRAWERS];
    _Alignas(
        64) struct shelf shelf; /* what others freed of this thread's; with a lock of its own */
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

/** False: not biased, or somebody else wants it; then it has not been entered. */
static inline bool cache_try_enter(struct cache *cache) {
    atomic_store_explicit(&cache->inside, true, memory_order_relaxed);
    atomic_signal_fence(memory_order_seq_cst); /* the other side's membarrier makes a fence of it */
    if (__builtin_expect(!atomic_load_explicit(&cache->wanted, memory_order_acquire), 1)) {
        return true;
    }
    atomic_store_explicit(&cache->inside, false, memory_order_release);
    return false;
}

static inline void cache_enter(struct cache *cache) {
    if (!cache_try_enter(cache)) {
        cache_enter_slowly(cache);
    }
}

/** After cache_try_enter(). */
static inline void cache_leave_biased(struct cache *cache) {
    atomic_store_explicit(&cache->inside, false, memory_order_release);
}

static inline void cache_leave(struct cache *cache) {
    bool biased = atomic_load_explicit(&cache->biased, memory_order_relaxed);
    atomic_store_explicit(biased ? &cache->inside : &cache->locked, false, memory_order_release);
}

/* For everybody else, under the pool's lock. */
void cache_seize(struct cache *cache);
void cache_return(struct cache *cache);

/* Several of a pool at once, linked by `next_seized`: nothing goes from one of them to another
 * meanwhile, or to a shelf. */
void cache_seize_list(struct pool *pool, struct cache *first);
void cache_return_list(struct cache *first);

/* Those of all threads, and the common one. */
void cache_seize_all(struct pool *pool);
void cache_return_all(struct pool *pool);

/* Not false: every free of a block of that number is a compare and swap. */
#define CACHE_NUMBERS (1u << 16)
extern atomic_bool cache_shared[CACHE_NUMBERS];

/** Makes it so. Without any lock held. */
void cache_share(unsigned number);

static inline bool cache_is_shared(unsigned number) {
    return atomic_load_explicit(&cache_shared[number], memory_order_acquire);
}

/** Before any other thread than the one that asked for a block of that number frees it. */
static inline void cache_share_once(unsigned number) {
    if (__builtin_expect(!cache_is_shared(number), 0)) {
        cache_share(number);
    }
}

/** The cache that had a number which stands in a block. */
struct cache *cache_numbered(unsigned number);

/** Says how much a new cache may park. */
void cache_set_room(struct cache *cache, uint64_t bytes);

/** Again as much in all as any of its pool. */
void cache_open_room(struct cache *cache);

/** Makes a zeroed cache one that any thread may use. */
void cache_start_common(struct cache *cache, struct pool *pool);

/** Whether a cache has parked more than it may, of the class or of all. */
static inline bool cache_overflows(const struct cache *cache, const struct bin *bin) {
    return bin->count > bin->room || cache->bytes > cache->bytes_max;
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
    block_fetch(bin->head); /* for the next one; nothing happens if there is none */
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

/** The thread has taken a block of that number from the program. */
static inline void cache_see(struct cache *cache, unsigned number) {
    cache->saw_others |= number != cache->number;
}

/** The thread frees a block of the cache of that number. */
static inline void cache_serve(struct cache *cache, unsigned number) {
    cache_see(cache, number);
    if (number != cache->number) {
        cache->serves = (uint16_t)number;
    }
}

/** Parks a block, of the class and size that its life tells, whose stamp is at least that of every
 * block freed by this thread before. */
static inline void cache_park(struct cache *cache, struct bin *bin, struct block *block,
                              uint64_t bytes) {
    block->next = NULL;
    *(bin->head ? &bin->tail->next : &bin->head) = block;
    bin->tail = block;
    bin->count++;
    cache->bytes += bytes;
}

static inline void cache_push(struct cache *cache, struct block *block) {
    cache_park(cache, &cache->bins[block_bin(block)], block, block_bytes(block));
}

/** Parks blocks of one class that are all usable already, the last one linked to none: in front of
 * all others. Touches none of them where the bin is empty. */
static inline void cache_push_batch(struct cache *cache, unsigned size_class, struct batch batch) {
    struct bin *bin = &cache->bins[size_class];
    *(bin->head ? &batch.last->next : &bin->tail) = bin->head ? bin->head : batch.last;
    bin->head = batch.first;
    bin->count += batch.count;
    cache->bytes += batch.count * size_class_bytes(size_class);
}

static inline void cache_push_ready(struct cache *cache, struct block *block) {
    block->next = NULL;
    cache_push_batch(cache, block_bin(block), (struct batch){block, block, 1});
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
    return bytes <= cache->large_most;
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

/** Books: a block of `bytes` for a request of `requested` went out; came back. The counter is that of
 * a small block's own class, of a large request's. */
static inline void cache_book_alloc(struct cache *cache, books_counter *allocs, uint64_t requested,
                                    uint64_t bytes) {
    books_add(allocs, 1);
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

/** Takes the `count` oldest blocks of a class out; or all there are, without touching them. */
struct batch cache_take(struct cache *cache, unsigned size_class, uint32_t count);

/**
 * A free finds the cache full. Whether its thread only frees: then what it has parked should go to
 * those who ask for it. Also says how much it may park from now on.
 */
bool cache_gives(struct cache *cache);

/* Under the pool's lock: */

/** Some of what is parked goes to the pool, after a free of that class; of large blocks. */
void cache_make_room(struct cache *cache, unsigned size_class);
void cache_make_room_for_large(struct cache *cache);

/** What takes most room goes to the pool, until no more than so many bytes of small blocks are left. */
void cache_spill(struct cache *cache, uint64_t bytes);

/** Everything parked goes to the pool; the first two only with what is large, or small. */
void cache_empty_drawers(struct cache *cache);
void cache_empty_bins(struct cache *cache);
void cache_empty(struct cache *cache);

/** The calling thread's cache for a pool, made if need be; the pool's common one for a thread that
 * cannot have its own. */
struct cache *cache_find(struct pool *pool);

/** The cache this thread used last, or one of no pool that cannot be entered; checked by the caller
 * against the pool it wants. */
extern _Thread_local struct cache *cache_last __attribute__((tls_model("initial-exec")));

static inline struct cache *cache_mine(struct pool *pool) {
    struct cache *cache = cache_last;
    return __builtin_expect(cache->pool == pool, 1) ? cache : cache_find(pool);
}

#endif
