/* What the files of this room share. Nobody else includes it. */
#ifndef GPUCACHE_POOL_INTERNAL_H
#define GPUCACHE_POOL_INTERNAL_H

#include "pool/arena.h"
#include "pool/cache.h"
#include "pool/epoch.h"
#include "pool/layout.h"
#include "pool/page.h"
#include "pool/pool.h"
#include "pool/tuning.h"
#include "process/lock.h"
#include "stats/books.h"

#define likely(x) __builtin_expect(!!(x), 1)
#define unlikely(x) __builtin_expect(!!(x), 0)

/* Freed memory waiting for its epoch, oldest stamp first. */
struct pending {
    struct block *head, *tail;
};

/* Memory that only the context's own work reaches, and memory that something else reaches too. */
enum reach { REACH_CONTEXT, REACH_OUTSIDE, REACHES };

/* Live blocks by requested size, while a report is written. */
#define LIVE_SIZES 256
struct live_sizes {
    struct stats_live rows[LIVE_SIZES];
    unsigned used;
    atomic_bool busy;
};

struct pool {
    /* Read by every allocation and free, and hardly ever written: a cache line of its own. */
    _Alignas(64) struct pool_config config;
    struct backend *backend;
    _Atomic uint64_t budget; /* kept where the peak changes */
    _Atomic uint64_t tight;  /* not 0: under pressure, and this epoch was open when that began; */
    _Atomic uint64_t close_least, close_bytes; /* then a free records an event after so much */
    bool program_orders; /* the program uses the context's records and waits itself */
    uint64_t quota_most; /* of one thread's cache */

    _Alignas(64) struct lock lock;
    struct epochs epochs;
    struct arena large;     /* ranges for blocks above 1 MiB */
    struct arena small;     /* ranges of 2 MiB for pages */
    struct layouts layouts; /* both, where the backend maps pages */
    struct lock mapper; /* taken before `lock`, by whoever has the driver map pages (mapper.c) */
    struct runs runs;
    struct pending pending[REACHES];
    uint64_t pending_bytes; /* in the queues */
    uint64_t
        refused_at; /* the reserve when growing was last refused: no budget exceeds it; 0: never was */
    unsigned refused_seen;     /* the backend's, when `tight` was last set */
    bool budget_follows;       /* what it follows from has changed since */
    uint64_t looks, summed_at; /* visits; and as many when the peaks were last looked at */
    uint64_t goal;             /* the budget without what caches may hold */
    bool budget_is_fresh;      /* has been looked at in this visit */
    atomic_bool advancing; /* a thread is asking the driver what has finished; others may wait for
                              its answer */
    _Atomic uint64_t
        lives; /* contexts it has outlived: what an earlier one was asked for is not this one's */
    unsigned
        waiting; /* threads inside a call of the backend that names what the context has made */
    uint64_t last_on_time,
        freed_large;   /* large blocks the pool got back since that event on time */
    bool returning;    /* something was released, and the driver may not have it yet */
    bool unmanageable; /* the driver's addresses are not what the pool's map can hold */
    uint64_t growing;  /* bytes that threads inside backend->reserve ask for, */
    uint64_t growers;  /* so many threads, */
    uint64_t grown;    /* and how many came back */
    _Atomic uint64_t retired_bytes; /* freed, and held back by what no epoch knows of */
    struct books books; /* of everything but the thread caches' own counters: what is live */
    _Atomic(struct cache *) caches;   /* those of threads, the newest first, and the common one */
    struct cache *retired;            /* those that wait for a thread */
    struct cache *awake, *awake_last; /* those that may hold something, */
    unsigned awake_count;
    uint64_t quotas;     /* the sum of theirs */
    uint64_t look_at_ns; /* when idle threads are looked for again */
    atomic_uint moves;   /* odd: caches come or go, and what they have counted with them */
    _Atomic unsigned caches_owned; /* by threads, now */
    uint64_t waited_for,
        waited_ns; /* waits with a limit that have been in vain, for as long in all: this
                                       epoch has not finished since */
    uint64_t started_ns,
        excess_ns; /* when it was made; time giving back ahead of growing has taken, or has forgone */
    struct cache *common; /* for threads that cannot have one of their own; the last of `caches` */
    struct live_sizes live_sizes;
};

/* Under the lock, or inside a cache: then, until that is left, the pool has not forgotten yet. */
static inline uint64_t pool_lives(const struct pool *pool) {
    return atomic_load_explicit(&pool->lives, memory_order_relaxed);
}

/* What was retired and is held back no longer is reclaimed. Without any lock. True if there was any. */
static inline bool settle(struct pool *pool, bool all) {
    const struct backend_ops *ops = pool->backend->ops;
    return atomic_load_explicit(&pool->retired_bytes, memory_order_relaxed) > 0 && ops->settle &&
           ops->settle(pool->backend, all);
}

/* Nothing can be recorded until a capture ends. */
static inline bool order_is_captured(const struct pool *pool) {
    const struct backend_ops *ops = pool->backend->ops;
    return ops->captured && ops->captured(pool->backend);
}

/* budget.c: peaks, and what follows from them. Under the lock, but for the sums. */
struct budget_sums {
    struct budget_sum {
        uint64_t taken, live;
        uint64_t highest; /* no more can have been live since the last look */
    } of[TIDES];
    unsigned used; /* how many caches have counted anything */
};
struct budget_sums budget_sums(const struct pool *pool); /* of all caches */
void budget_look(struct pool *pool);         /* after every visit: what has changed in the books */
void budget_sum_at_times(struct pool *pool); /* the peaks, unless that was done just before */
void budget_look_at_all(struct pool *pool);  /* peaks, budget and pressure too */
uint64_t
budget_little(const struct pool *pool);      /* most for a program of one thread that uses little */
void budget_book_reserve(struct pool *pool); /* the books of what is reserved and free */
unsigned budget_streams(void);               /* of the program, besides the default one */
uint64_t budget_used(const struct pool *pool); /* the reserve */
/* What the driver has left; *others: what other pools have idle. Lets go of the lock. */
uint64_t budget_room(struct pool *pool, uint64_t *others);
uint64_t budget_ready(const struct pool *pool);          /* what of it may be handed out */
bool budget_is_short(struct pool *pool, uint64_t bytes); /* growing by so much would exceed it */

/* The reserve, with what threads are asking the driver for. */
static inline uint64_t budget_expected(const struct pool *pool) {
    return pool->large.reserved_bytes + pool->small.reserved_bytes + pool->layouts.reserved_bytes +
           pool->growing;
}

/* In segments that are wholly free, or in frames. */
static inline uint64_t source_idle(const struct pool *pool) {
    return pool->large.idle_bytes + pool->small.idle_bytes + pool->layouts.free_bytes +
           pool->layouts.kept_bytes;
}

/* As far as is known: the peak may have risen since the last look. */
static inline bool budget_has_room(const struct pool *pool, uint64_t bytes) {
    return budget_expected(pool) + bytes <=
           atomic_load_explicit(&pool->budget, memory_order_relaxed);
}

/* pending.c: pending memory. Under the lock. */
void pending_add(struct pool *pool,
                 struct block *block); /* at once to the source if usable, else into its queue */
void pending_add_list(struct pool *pool, struct block *first); /* of blocks linked by `next` */
void pending_take_usable(struct pool *pool); /* what may be handed out goes to the source */
uint64_t pending_stamp(const struct pool *pool,
                       uint64_t bytes); /* epoch that frees `bytes`; 0: nothing is pending */

/* Tight, a thread that has freed more than this since anybody's last event on time leaves one. */
static inline uint64_t order_event_bytes(uint64_t budget) {
    uint64_t share = budget / CLOSE_SHARE + SMALL_MAX_BYTES;
    return share < CLOSE_BYTES ? share : CLOSE_BYTES;
}

/* order.c: time, and making it usable. Under the lock, which is let go of around a wait. */
uint64_t order_clock(const struct pool *pool); /* ns */
/* What a free prepares or waits for, by reuse mode; `due` counts as pressure. */
void order_in_free(struct pool *pool, bool due);
bool order_is_due(struct pool *pool, uint64_t freed); /* for large blocks, without pressure too */
bool order_finish_stamp(struct pool *pool, uint64_t stamp); /* waits for an on-time event */
bool order_cheaply(struct pool *pool, uint64_t stamp); /* queries only; true if `stamp` is usable */
bool order_now(
    struct pool *pool, uint64_t stamp,
    bool at_any_price); /* a barrier; or a wait, where that is the way or nothing else is */
bool order_finish(
    struct pool *pool,
    uint64_t limit_ns); /* what was submitted before has finished; waits that were in vain
                                          count, until what they were for has */
bool order_is_idle(struct pool *pool);        /* nothing is under way, as the lock is held */
void order_finish_ordered(struct pool *pool); /* what was usable behind a barrier has finished */
void order_settle(struct pool *pool);         /* the same, asked by another context's thread */

/* What is asked for, and the answer. */
struct want {
    unsigned bin;   /* where caches would keep it, */
    uint64_t bytes; /* of its size class; of a large block, in whole units */
    bool large;
    bool is_short;        /* growing would exceed the budget: larger blocks will do */
    bool any;             /* growing was refused: cut whatever fits */
    enum arena_care care; /* which large ranges are not cut for it */
    struct cache *cache;  /* of the asking thread: emptied before the pool grows past its budget */
    struct block *block;  /* the answer: BLOCK_CACHED */
};

/* cache.c */
unsigned want_last_bin(const struct want *want, bool much); /* the largest that will do */

/* source.c: pages, arena, segments. Under the lock. */
bool source_take(struct pool *pool, struct want *want); /* what is ready now */
void source_give(struct pool *pool, struct block *block);
uint64_t source_growth(const struct want *want); /* the least the pool can grow by for it */
int source_grow(struct pool *pool, const struct want *want); /* a segment from the driver */
bool source_refused(int r); /* neither the driver nor the limit has more */
int source_release_idle(struct pool *pool,
                        uint64_t bytes); /* what no work touches; 0: something is on its way back */
void source_wait_for_return(struct pool *pool, uint64_t limit_ns); /* until the driver has it */

/* mapper.c: the driver's side of layouts. Lets go of the lock in between, but for the last. */
int mapper_grow(struct pool *pool, uint32_t slots); /* a window for it, from frames new or idle */
uint64_t mapper_release(struct pool *pool, bool kept,
                        uint64_t bytes); /* so much of what is free, or kept, and has finished */
void mapper_forget(struct pool *pool);   /* its lock is held */

/* supply.c: where memory for a request comes from. Takes and returns with the lock held; lets go of it
 * in between. */
int supply(struct pool *pool, struct want *want);

/* quota.c: how much caches may hold. Under the lock. */
uint64_t quota_of_capacity(uint64_t capacity);        /* of one cache */
bool quota_grow(struct cache *cache, uint64_t bytes); /* false: it may not hold so much */
void quota_grow_transfer(struct cache *cache);        /* that of its transfer cache */
void quota_make_room(struct cache *cache, unsigned keep, uint64_t bytes); /* seized, or its owner */
void quota_follow_miss(
    struct cache *cache); /* its thread asks for what it has not: it gets a first quota, or
                                                more if it had no room for that */
void quota_sleep(
    struct cache *cache); /* seized, or without a thread: all goes to the pool, and its quota */
bool quota_take_back(struct pool *pool,
                     uint64_t growth);         /* what idle threads hold, if it is due; */
bool quota_take_all_back(struct pool *pool);   /* and the others' too; */
bool quota_empty_transfers(struct pool *pool); /* what waits for threads. True if there was any */

/* No block is cached that is larger than one part in this of what a cache may hold. */
static inline uint64_t quota_largest_block(const struct pool *pool) {
    uint64_t most = pool->quota_most / CACHE_BLOCK_SHARE;
    return backend_maps(pool->backend) && most > PAGES_CACHED ? PAGES_CACHED : most;
}

static inline bool quota_sleeps(const struct cache *cache) {
    return cache_room(cache) == 0;
}

/* Less than one part in this of what one cache may have: it grows without the thread asking for more. */
static inline bool quota_is_little(const struct cache *cache, unsigned share) {
    return cache_room(cache) < cache->pool->quota_most / share;
}

static inline uint64_t quota_parked(const struct cache *cache) {
    return cache->bytes + books_get(&cache->transfer.bytes);
}

#endif
