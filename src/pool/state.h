/* A pool, whole: what its files have in common. Nobody outside this room includes it. */
#ifndef GPUCACHE_POOL_STATE_H
#define GPUCACHE_POOL_STATE_H

#include "memory/arena.h"
#include "memory/arith.h"
#include "memory/page.h"
#include "memory/survey.h"
#include "memory/tuning.h"
#include "pool/cache.h"
#include "pool/epoch.h"
#include "pool/pool.h"
#include "process/lock.h"
#include "stats/books.h"

/* Freed memory waiting for its epoch, oldest stamp first. */
struct pending {
    struct block *head, *tail;
};

/* Memory that only the context's own work reaches, and memory that something else reaches too. */
enum reach { REACH_CONTEXT, REACH_OUTSIDE, REACHES };

/* What has been idle for the decay time: decay.c. Under the pool's lock, but for what only the ticking thread has. */
struct decay {
    uint64_t tick;
    bool watched;                 /* somebody ticks, or has been told to */
    uint64_t before[DECAY_TICKS]; /* what was freed before one of the last ticks has that stamp at
                                     most */
};

struct pool {
    /* Read by every allocation and free, and hardly ever written: a cache line of its own. */
    _Alignas(64) struct pool_config config;
    struct backend *backend;
    _Atomic uint64_t budget;                   /* kept where the peak changes */
    _Atomic uint64_t tight;                    /* not 0: under pressure (tight_from()); */
    _Atomic uint64_t close_least, close_bytes; /* then a free records an event after so much */
    bool program_orders; /* the program uses the context's records and waits itself */
    uint64_t quota_most; /* of one thread's cache */

    _Alignas(64) struct lock lock;
    struct epochs epochs;
    struct arena large; /* ranges for blocks above 1 MiB */
    struct arena small; /* ranges of 2 MiB for pages */
    struct lock mapper; /* taken before `lock`, by whoever has the driver map memory (mapper.c) */
    struct decay decay;
    struct runs runs;
    struct pending pending[REACHES];
    uint64_t pending_bytes; /* in the queues */
    uint64_t
        refused_at; /* the reserve when growing was last refused: no budget exceeds it; 0: never was */
    unsigned refused_seen;     /* the backend's, when `tight` was last set */
    bool budget_follows;       /* what it follows from has changed since */
    uint64_t looks, summed_at; /* visits; and as many when the peaks were last looked at */
    uint64_t taken_unseen;     /* bytes of large blocks that the pool has handed out since then */
    uint64_t goal;             /* the budget without what caches may hold */
    bool budget_is_fresh;      /* has been looked at in this visit */
    atomic_bool advancing; /* a thread is asking the driver what has finished; others may wait for
                              its answer */
    _Atomic uint64_t
        lives; /* contexts it has outlived: what an earlier one was asked for is not this one's */
    unsigned
        waiting; /* threads inside a call of the backend that names what the context has made */
    uint64_t freed_large; /* large blocks the pool got back since the last event on time */
    uint64_t returning;   /* bytes that were released, and that the driver may not have yet */
    bool unmanageable;    /* the driver's addresses are not what the pool's map can hold */
    uint64_t growing;     /* bytes that threads inside backend->reserve ask for, */
    uint64_t
        held_bytes; /* free memory that one of them keeps: what it grows beside, and what has come; */
    uint64_t growers;               /* so many threads, */
    uint64_t grown;                 /* and how many came back */
    _Atomic uint64_t retired_bytes; /* freed, and held back by what no epoch knows of */
    _Atomic uint64_t left_bytes;    /* see pool_left_bytes() */
    bool any_refused;               /* segments are marked as refused; under the mapper's lock */
    unsigned halvings;              /* of the length of new segments (look_at_pins()), likewise; */
    uint64_t made_bytes;            /* so much has been made since the last one */
    uint64_t mapping_ns;            /* what mapping memory anew has taken */
    uint64_t mapping_since_ns;      /* since then, */
    uint64_t mapping_peak;          /* when the peak was this; */
    uint64_t mapping_slack;         /* and what the goal has been raised by for it, */
    unsigned mapping_parts;         /* of so many parts of the peak; likewise */
    _Atomic uint64_t leaving_bytes; /* no longer in the reserve, and not yet the driver's */
    _Atomic unsigned retiring; /* threads whose block may be neither live nor counted there yet */
    struct books books;        /* of everything but the thread caches' own counters: what is live */
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

/*
 * What stands in `tight` under pressure: the epoch that was open when that began, or, odd, that of the last event on
 * time since. So it changes with whatever makes frees be counted anew.
 */
static inline uint64_t tight_from(uint64_t epoch, bool by_event) {
    return 2 * epoch + by_event;
}

/* Nobody has left an event on time since pressure began. */
static inline bool tight_is_new(uint64_t tight) {
    return tight % 2 == 0;
}

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

/* The same of all pools: what another one has got back makes room for this one. */
static inline bool settle_all(struct pool *pool) {
    const struct backend_ops *ops = pool->backend->ops;
    return ops->settle && ops->settle(pool->backend, true);
}

#endif
