/*
 * Decides whether decay has to run: the pool's calls of pool_tick() and pool_decay()
 * (pool/decay.c). The caller holds the pool's lock.
 */
#ifndef GPUCACHE_TCACHE_DECAY_H
#define GPUCACHE_TCACHE_DECAY_H

#include "tcache/pool_state.h"

/*
 * Returns whether memory may go back to the driver later. Counts quotas and deferred frees too: a
 * thread may free into its cache without a slow path, so that decay_watch() would not run.
 */
static inline bool decay_is_any(const struct pool *pool) {
    return !pool->source.backend->release_waits && epochs_broken(&pool->source.epochs) == 0 &&
           pool->source.large.idle_bytes + pool->source.small.idle_bytes +
                   pool->source.returning_bytes + pool->source.pending_bytes + pool->source.quotas +
                   atomic_load_explicit(&pool->deferred_bytes, memory_order_relaxed) >
               0;
}

/*
 * Asks the backend for periodic calls of pool_tick() if memory is idle, unless it was asked
 * already. Called at the end of every slow path.
 */
static inline void decay_watch(struct pool *pool) {
    if (pool->source.config.decays && !pool->source.decay.watched && decay_is_any(pool)) {
        pool->source.decay.watched = true;
        pool->source.backend->ops->watch_idle(pool->source.backend);
    }
}

#endif
