/*
 * The whole state of a pool, for the files of src/tcache and src/pool only. The pool's lock,
 * source.lock, protects all fields except the atomic ones and `live_sizes`. The thread that has set
 * the `busy` flag of `live_sizes` owns it. `quota_most` and `common` never change.
 */
#ifndef GPUCACHE_TCACHE_POOL_STATE_H
#define GPUCACHE_TCACHE_POOL_STATE_H

#include "heap/survey.h"
#include "source/state.h"
#include "tcache/cache.h"

/* State of the aggregation of the caches' peaks (peaks.c). */
struct peaks {
    uint64_t updates;     /* calls of slow_path_end() and peaks_aggregate_if_due() */
    uint64_t summed_at;   /* `updates` at the last aggregation */
    bool has_large;       /* the slow path has handed out a large block since then */
    bool budget_is_fresh; /* peaks_over_budget() has updated it in this slow path */
};

struct pool {
    struct source source; /* where memory comes from; has the pool's lock */

    /* Read without the lock: on a cache line that is hardly ever written. */
    _Alignas(64) uint64_t quota_most; /* largest quota of one cache, in bytes */

    /* Caches of threads (owner.c), newest first; the common one is last. */
    _Alignas(64) _Atomic(struct cache *) caches;
    struct cache *common;          /* cache of all threads that have none of their own */
    struct cache *unowned;         /* caches of ended threads */
    struct cache *active;          /* list of active caches (quota.c) */
    _Atomic unsigned caches_owned; /* caches with a thread */
    atomic_uint moves;             /* odd while a cache and its counts are moved (owner.c) */
    struct peaks peaks;

    /* A thread queries to advance the safe epoch: others spin for the result (slow_path.c). */
    atomic_bool advancing;

    _Atomic uint64_t deferred_bytes;     /* bytes of deferred frees that are not reclaimed */
    _Atomic uint64_t reclaims;           /* deferred frees that pool_reclaim() reclaimed */
    _Atomic unsigned deferring;          /* threads inside pool_defer_free() */
    _Atomic uint64_t unreleasable_bytes; /* see pool_unreleasable_bytes() */
    struct live_sizes live_sizes;
};

#endif
