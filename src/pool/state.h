/* A pool, whole: what its files have in common. Nobody outside this room includes it. */
#ifndef GPUCACHE_POOL_STATE_H
#define GPUCACHE_POOL_STATE_H

#include "memory/survey.h"
#include "pool/cache.h"
#include "pool/pool.h"
#include "source/state.h"

/* When the peaks of the caches were last added up (peaks.c). */
struct peaks {
    uint64_t updates, summed_at; /* visits; and as many at that time */
    uint64_t unaggregated_bytes; /* bytes of large blocks that have been handed out since */
    bool budget_is_updated;      /* has been looked at in this visit */
};

struct pool {
    struct source source; /* where its memory comes from and goes to, with the pool's lock */

    /* Read by every large allocation and free: a cache line that nobody writes. */
    _Alignas(64) uint64_t quota_most; /* of one cache */

    /* The caches of threads (owner.c), and what they may hold (quota.c). */
    _Alignas(64) _Atomic(struct cache *) caches; /* the newest first, and the common one */
    struct cache *common;  /* for threads that cannot have one of their own; the last of them */
    struct cache *unowned; /* those that wait for a thread */
    struct cache *active, *active_last; /* those that may hold something */
    _Atomic unsigned caches_owned;      /* by threads, now */
    atomic_uint moves;     /* odd: caches come or go, and what they have counted with them */
    uint64_t next_scan_ns; /* when idle ones are looked for again */
    struct peaks peaks;

    /* Whether a thread is asking the driver what has finished; others may wait for its answer. */
    atomic_bool advancing;

    _Atomic uint64_t deferred_bytes; /* freed, and held back by what no epoch knows of */
    _Atomic uint64_t reclaims;       /* how often pool_reclaim() has made a block free */
    _Atomic unsigned deferring;  /* threads whose block may be neither live nor counted there yet */
    _Atomic uint64_t left_bytes; /* see pool_left_bytes() */
    struct live_sizes live_sizes;
};

/* What was retired and is held back no longer is reclaimed. Without any lock. True if there was any. */
static inline bool reclaim_deferred(struct pool *pool, bool all) {
    const struct backend_ops *ops = pool->source.backend->ops;
    return atomic_load_explicit(&pool->deferred_bytes, memory_order_relaxed) > 0 &&
           ops->reclaim_deferred && ops->reclaim_deferred(pool->source.backend, all);
}

/* The same of all pools: what another one has got back makes room for this one. */
static inline bool reclaim_all_deferred(struct pool *pool) {
    const struct backend_ops *ops = pool->source.backend->ops;
    return ops->reclaim_deferred && ops->reclaim_deferred(pool->source.backend, true);
}

/* The same, after waiting for the barriers that hold streams up. */
static inline bool settle_behind_barriers(struct pool *pool) {
    const struct backend_ops *ops = pool->source.backend->ops;
    return ops->pass_barriers && ops->pass_barriers(pool->source.backend) &&
           reclaim_all_deferred(pool);
}

#endif
