#include "pool/internal.h"

#include "memory/host.h"
#include "memory/page_map.h"
#include "process/nap.h"

#include <errno.h>

/* --- life --- */

struct pool *pool_create(struct backend *backend, const struct pool_config *config) {
    struct pool *pool = host_map(sizeof *pool, 4096);
    struct cache *common = host_map(sizeof *common, 4096);
    if (!pool || !common) {
        host_unmap(pool, sizeof *pool);
        host_unmap(common, sizeof *common);
        return NULL;
    }
    biased_start();
    lock_start(&pool->lock, LOCK_POOL);
    lock_start(&pool->mapper, LOCK_MAPPER);
    pool->backend = backend;
    pool->config = *config;
    pool->started_ns = backend_clock(pool->backend);
    epochs_start(&pool->epochs);
    arena_start(&pool->large, pool, backend_maps(backend));
    arena_start(&pool->small, pool, backend_maps(backend));
    runs_start(&pool->runs, pool);
    pool->quota_most = quota_of_capacity(backend->capacity);
    cache_start_common(common, pool);
    pool->common = common;
    atomic_store(&pool->caches, common);
    lock_acquire(&pool->lock);
    budget_look_at_all(pool);
    lock_release(&pool->lock);
    return pool;
}

static void forget_pages(struct pool *pool) {
    for (struct segment *segment = pool->small.segments; segment; segment = segment->next) {
        for (struct range *range = segment_first(segment); segment_has(segment, range);
             range = range->next) {
            if (range_state(range) == BLOCK_PAGE) {
                runs_forget_page(&pool->runs, range->page);
            }
        }
    }
    runs_forget(&pool->runs);
    runs_trim(&pool->runs);
}

static void forget_caches(struct pool *pool) {
    cache_seize_all(pool);
    for (struct cache *cache = atomic_load(&pool->caches); cache; cache = cache->next_in_pool) {
        cache_forget(cache);
        transfer_forget(&cache->transfer);
    }
    cache_return_all(pool);
}

/*
 * First nobody finds the memory any more. Then the caches are seized: a free that had found a block
 * is through with it, because it looks inside its cache, and what it has put there goes with the rest.
 * Only then are the descriptors used again.
 */
uint64_t pool_forget(struct pool *pool) {
    lock_acquire(&pool->mapper);
    lock_acquire(&pool->lock);
    bool maps = backend_maps(pool->backend);
    uint64_t bytes = maps ? 0 : pool->large.reserved_bytes + pool->small.reserved_bytes;
    arena_leave_map(&pool->small);
    arena_leave_map(&pool->large);
    forget_caches(pool);
    atomic_fetch_add(&pool->lives, 1);
    forget_pages(pool);
    if (maps) {
        mapper_end(pool, &pool->small);
        mapper_end(pool, &pool->large);
    }
    arena_forget(&pool->small);
    arena_forget(&pool->large);
    for (enum reach reach = 0; reach < REACHES; reach++) {
        pool->pending[reach] = (struct pending){0};
    }
    pool->pending_bytes = 0;
    pool->returning = 0;
    atomic_store(&pool->retired_bytes, 0);
    epochs_forget(&pool->epochs);
    budget_look_at_all(pool);
    lock_release(&pool->lock);
    lock_release(&pool->mapper);
    return bytes;
}

void pool_drain(struct pool *pool) {
    lock_acquire(&pool->lock);
    while (pool->waiting > 0) {
        lock_release(&pool->lock);
        nap(50000);
        lock_acquire(&pool->lock);
    }
    lock_release(&pool->lock);
}

void pool_set_capacity(struct pool *pool, uint64_t capacity) {
    lock_acquire(&pool->lock);
    atomic_store(&pool->backend->capacity, capacity);
    pool->refused_at = 0;
    budget_look_at_all(pool);
    lock_release(&pool->lock);
}

struct backend *pool_backend(struct pool *pool) {
    return pool->backend;
}

int pool_broken(struct pool *pool) {
    return epochs_broken(&pool->epochs);
}

void pool_break(struct pool *pool, int code) {
    atomic_store_explicit(&pool->epochs.broken, code, memory_order_relaxed);
}

void pool_hold(struct pool *pool) {
    lock_acquire(&pool->lock);
}

void pool_release(struct pool *pool) {
    lock_release(&pool->lock);
}

void pool_before_capture(struct pool *pool) {
    lock_acquire(&pool->lock);
    order_cheaply(pool, epochs_stamp(&pool->epochs));
    lock_release(&pool->lock);
}

/* Recording is done under the lock: from here on none is in the middle of it. */
void pool_capture_announced(struct pool *pool) {
    lock_acquire(&pool->lock);
    budget_look_at_all(pool);
    lock_release(&pool->lock);
}

void pool_program_orders(struct pool *pool, bool records) {
    pool->program_orders = true;
    pool->epochs.foreign |= records;
    budget_look_at_all(pool);
}

/* --- what else is asked of it --- */

void pool_settle(struct pool *pool) {
    lock_acquire(&pool->lock);
    order_settle(pool);
    lock_release(&pool->lock);
}

/* Another thread's call that may end the context is waited for: what is kept can go back then, or has gone with it. Nothing
 * is kept of one that has ended, and it stays quiet until the pool is used again. */
static bool ended_meanwhile(struct pool *pool, uint64_t limit_ns) {
    uint64_t lives = pool_lives(pool);
    if (budget_used(pool) + pool->returning > 0) {
        order_wait_for_answers(pool, limit_ns);
    }
    return lives != pool_lives(pool);
}

/* Lock held. */
static int give_back(struct pool *pool, uint64_t bytes, bool wait, uint64_t ending_ns) {
    if (wait && ended_meanwhile(pool, ending_ns)) {
        return 0;
    }
    pending_take_usable(pool);
    if (source_idle(pool) < bytes) {
        quota_take_all_back(pool);
    }
    bool finished = true, all = bytes == UINT64_MAX;
    uint64_t limit_ns = wait && !pool->backend->quiet ? TRIM_WAIT_NS : 0, before;
    uint64_t last = epochs_stamp(&pool->epochs);
    int r;
    do { /* of what some wait for others of the pool take nothing first */
        before = pool->epochs.finished;
        if (pool->pending_bytes + source_idle(pool) > 0) {
            finished = order_finish(pool, limit_ns, all);
        }
        pending_take_usable(pool);
        r = source_release_idle(pool, bytes);
    } while (r != 0 && finished && pool->epochs.finished > before && pool->epochs.finished < last);
    if (pool->returning > 0) {
        source_wait_for_return(pool, TRIM_WAIT_NS);
    }
    if (all) { /* what has not finished was freed since, if work was waited for */
        uint64_t ready = budget_ready(pool);
        uint64_t left = finished ? ready - source_idle(pool) : ready + pool->pending_bytes;
        atomic_store(&pool->left_bytes, left);
    }
    return r;
}

int pool_give_back(struct pool *pool, uint64_t bytes, bool wait) {
    settle(pool, true);
    lock_acquire(&pool->lock);
    if (wait) {
        order_finish_on_time(pool);
    }
    int r = give_back(pool, bytes, wait, LATE_WAIT_NS);
    budget_look(pool);
    lock_release(&pool->lock);
    return r;
}

bool pool_finish(struct pool *pool) {
    lock_acquire(&pool->lock);
    bool any = order_finish_on_time(pool);
    lock_release(&pool->lock);
    return any;
}

int pool_trim(struct pool *pool, bool wait) {
    settle(pool, true);
    lock_acquire(&pool->lock);
    int r = give_back(pool, UINT64_MAX, wait, TRIM_WAIT_NS);
    runs_trim(&pool->runs);
    budget_look_at_all(pool);
    lock_release(&pool->lock);
    return r == -ENOENT ? 0 : r;
}

uint64_t pool_left_bytes(struct pool *pool) {
    return atomic_load(&pool->left_bytes);
}

uint64_t pool_stuck_bytes(struct pool *pool) {
    settle(pool, true);
    lock_acquire(&pool->lock);
    epochs_poll(&pool->epochs, pool->backend);
    pending_take_usable(pool);
    uint64_t stuck = budget_ready(pool) - source_idle(pool);
    /* Beside nothing but what is cached or pending nothing is stuck: all of it goes back with them. */
    bool retired = atomic_load(&pool->retired_bytes) > 0;
    stuck -= retired ? 0 : arena_loose_bytes(&pool->large);
    budget_look(pool);
    lock_release(&pool->lock);
    bool live = budget_live_at_most(pool) > 0;
    return live || retired ? stuck : 0;
}

uint64_t pool_stamp_in_free(struct pool *pool) {
    lock_acquire(&pool->lock);
    uint64_t stamp = epochs_stamp(&pool->epochs);
    order_close_on_time(pool);
    lock_release(&pool->lock);
    return stamp;
}

bool pool_has_finished(struct pool *pool, uint64_t stamp) {
    lock_acquire(&pool->lock);
    if (pool->epochs.finished < stamp && order_cheaply(pool, stamp)) {
        epochs_poll(&pool->epochs, pool->backend); /* usable behind a barrier is not enough */
    }
    bool finished = pool->epochs.finished >= stamp;
    lock_release(&pool->lock);
    return finished;
}

bool pool_is_idle(struct pool *pool) {
    lock_acquire(&pool->lock);
    bool idle = order_is_idle(pool);
    lock_release(&pool->lock);
    return idle;
}

/*
 * The program waits for all its work by itself, so an epoch ends for nothing: its number is taken
 * before the wait, and is finished after it.
 */
uint64_t pool_sync_begin(struct pool *pool) {
    return atomic_fetch_add(&pool->epochs.open, 1);
}

void pool_sync_end(struct pool *pool, uint64_t ticket) {
    lock_acquire(&pool->lock);
    epochs_finish(&pool->epochs, ticket);
    lock_release(&pool->lock);
}
