/*
 * The budget: how far the pool may grow rather than put memory in order, and what it follows from.
 *
 *      peak of what is live  ->  goal, with the quotas of caches  ->  budget  ->  pressure
 *
 * A look brings all of it up to date, and with it those of the books that are known as a whole.
 */
#include "pool/internal.h"

#include <sched.h>

uint64_t budget_used(const struct pool *pool) {
    return pool->large.reserved_bytes + pool->small.reserved_bytes;
}

uint64_t budget_ready(const struct pool *pool) {
    return pool->large.free_bytes + pool->small.free_bytes + pool->held_bytes +
           (pool->runs.free_units << UNIT_SHIFT);
}

uint64_t budget_room(struct pool *pool, uint64_t *others) {
    struct backend *backend = pool->backend;
    uint64_t used = budget_used(pool);
    uint64_t room = backend->capacity > used ? backend->capacity - used : 0;
    if (backend->ops->room) {
        lock_release(&pool->lock);
        room = backend->ops->room(backend, others);
        lock_acquire(&pool->lock);
    }
    return room;
}

void budget_begin_growth(struct pool *pool) {
    pool->growers++;
    if (pool->backend->ops->begin_growth) {
        pool->backend->ops->begin_growth(pool->backend);
    }
}

void budget_end_growth(struct pool *pool, bool given_back) {
    if (pool->backend->ops->end_growth) {
        pool->backend->ops->end_growth(pool->backend, given_back);
    }
    pool->growers--;
    pool->grown++;
}

static void add_taken(const struct pool *pool, struct budget_sums *sums) {
    for (struct cache *cache = atomic_load(&pool->caches); cache; cache = cache->next_in_pool) {
        for (unsigned i = 0; i < WATERMARKS; i++) {
            sums->of[i].taken += books_get(&cache->watermarks[i].taken);
        }
    }
    atomic_thread_fence(memory_order_acquire);
}

static void add_given(const struct pool *pool, struct budget_sums *sums) {
    for (struct cache *cache = atomic_load(&pool->caches); cache; cache = cache->next_in_pool) {
        for (unsigned i = 0; i < WATERMARKS; i++) {
            sums->of[i].given += watermark_given(&cache->watermarks[i]);
            sums->of[i].highest += books_get(&cache->watermarks[i].peak);
        }
    }
    atomic_thread_fence(memory_order_acquire);
}

/*
 * Blocks change hands while one cache is read after another. So of all of them first what was taken is read, then what was
 * given back: the sum is never more than was live in between. The other way round it is never less.
 */
static struct budget_sums sum_up(const struct pool *pool, bool at_most) {
    struct budget_sums sums = {0};
    (at_most ? add_given : add_taken)(pool, &sums);
    (at_most ? add_taken : add_given)(pool, &sums); /* whoever is in the sums has to be counted */
    for (struct cache *cache = atomic_load(&pool->caches); cache; cache = cache->next_in_pool) {
        sums.used += !watermark_is_unused(&cache->watermarks[WATERMARK_COUNT]);
    }
    for (unsigned i = 0; i < WATERMARKS; i++) {
        struct budget_sum *sum = &sums.of[i];
        sum->live = (int64_t)(sum->taken - sum->given) > 0 ? sum->taken - sum->given : 0;
        sum->highest = (int64_t)(sum->highest - sum->live) > 0 ? sum->highest : sum->live;
    }
    return sums;
}

/* Whoever moves one may have lost its processor; or be the thread that a signal has interrupted. */
static unsigned moves_done(const struct pool *pool, unsigned *turns) {
    unsigned moves;
    while ((moves = atomic_load(&pool->moves)) % 2 > 0 && ++*turns < MOVE_TURNS) {
        sched_yield();
    }
    return moves;
}

/* Without the lock a cache may come or go meanwhile: then once more. */
static struct budget_sums sum_up_at_rest(const struct pool *pool, bool at_most) {
    struct budget_sums sums;
    unsigned before, turns = 0;
    do {
        before = moves_done(pool, &turns);
        sums = sum_up(pool, at_most);
        atomic_thread_fence(memory_order_acquire);
    } while (before != atomic_load(&pool->moves) && ++turns < MOVE_TURNS);
    return sums;
}

struct budget_sums budget_sums(const struct pool *pool) {
    return sum_up_at_rest(pool, false);
}

uint64_t budget_live_at_most(const struct pool *pool) {
    return sum_up_at_rest(pool, true).of[WATERMARK_ALLOCATED].live;
}

/*
 * What is live is booked in the caches of the threads. With one cache in use its own peak is the
 * truth. With several, no single moment is known: the peak is then the highest sum seen here, and
 * peak_upper what the sum of their own peaks allows. What has been summed need not be summed again;
 * only its owner may say so of a cache.
 */
static void look_at_peaks(struct pool *pool) {
    struct books *books = &pool->books;
    struct books_metric *const metrics[WATERMARKS] = {&books->requested, &books->allocated,
                                                      &books->allocations};
    struct budget_sums sums = budget_sums(pool);
    pool->summed_at = pool->looks;
    pool->taken_unseen = 0;
    for (struct cache *cache = atomic_load(&pool->caches); cache; cache = cache->next_in_pool) {
        for (unsigned i = 0; i < WATERMARKS && (cache->owner == &cache_last || !cache->owner);
             i++) {
            watermark_restart(&cache->watermarks[i]);
        }
    }
    bool shared = books_get(&books->peaks_shared) || sums.used > 1;
    books_set(&books->peaks_shared, shared);
    for (unsigned i = 0; i < WATERMARKS; i++) {
        books_raise(&metrics[i]->peak, shared ? sums.of[i].live : sums.of[i].highest);
    }
    books_raise(&books->peak_upper, sums.of[WATERMARK_REQUESTED].highest);
}

static _Atomic unsigned expected_streams;

void pool_expect_streams(unsigned streams) {
    atomic_store_explicit(&expected_streams, streams, memory_order_relaxed);
}

unsigned budget_streams(void) {
    return atomic_load_explicit(&expected_streams, memory_order_relaxed);
}

/* What a pool may keep whatever is live: for each stream enough to stay side by side with the others. */
static uint64_t budget_floor(const struct pool *pool) {
    uint64_t share = pool->backend->capacity / BUDGET_FLOOR_SHARE;
    uint64_t streams = bounded(1, budget_streams(), BUDGET_STREAMS);
    uint64_t each = streams > 1 ? bounded(BUDGET_FLOOR, share, 2 * BUDGET_FLOOR) : BUDGET_FLOOR;
    return least_of(each * streams, most_of(share * BUDGET_STREAMS, BUDGET_FLOOR));
}

bool budget_is_beyond_floor(const struct pool *pool) {
    return budget_streams() <= 1 || books_get(&pool->books.allocated.peak) > budget_floor(pool);
}

/* What a program that uses little may keep, whatever the floor and the caches. */
uint64_t budget_little(const struct pool *pool) {
    uint64_t peak = books_get(&pool->books.allocated.peak);
    return peak <= BUDGET_LITTLE_PEAK ? BUDGET_LITTLE : peak * BUDGET_TIMES;
}

uint64_t budget_mapping_slack_most(const struct pool *pool) {
    return books_get(&pool->books.allocated.peak) / LINE_SLACK_MORE * pool->mapping_parts;
}

/* What the pool may hold besides what caches may. */
static uint64_t goal_of(const struct pool *pool) {
    if (pool->config.budget > 0) {
        return pool->config.budget;
    }
    uint64_t peak = books_get(&pool->books.allocated.peak), floor = budget_floor(pool);
    uint64_t more = least_of(pool->mapping_slack,
                             budget_mapping_slack_most(pool)); /* the peak may have been reset */
    uint64_t slack = backend_maps(pool->backend) ? peak / LINE_SLACK + more : peak / BUDGET_SLACK;
    return most_of(peak + most_of(slack, BUDGET_FLOOR), floor);
}

uint64_t budget_with(const struct pool *pool, uint64_t bytes) {
    uint64_t budget = atomic_load_explicit(&pool->budget, memory_order_relaxed);
    uint64_t peak = books_get(&pool->books.allocated.peak);
    uint64_t then = budget_used(pool) - budget_ready(pool) - pool->pending_bytes + bytes;
    uint64_t more = then > peak && pool->config.budget == 0 ? then - peak : 0;
    return pool->refused_at > 0 ? budget : budget + more + more / LINE_SLACK;
}

/* Every thread has the line. */
static void set_if_changed(_Atomic uint64_t *at, uint64_t bytes) {
    if (atomic_load_explicit(at, memory_order_relaxed) != bytes) {
        atomic_store_explicit(at, bytes, memory_order_relaxed);
    }
}

static void look_at_budget(struct pool *pool) {
    uint64_t goal = goal_of(pool), budget = goal;
    if (pool->config.budget == 0) {
        uint64_t little = budget_little(pool);
        goal = least_of(goal, little);
        uint64_t more =
            pool->quotas + pool->quotas / BUDGET_QUOTA_SHARE; /* cut from pages that others share */
        uint64_t slack = goal - least_of(books_get(&pool->books.allocated.peak), goal);
        bool small = pool->awake_count <= 1 && slack <= BUDGET_FLOOR;
        if (small || backend_maps(pool->backend)) { /* which has no holes */
            more -= least_of(more, slack);
        }
        if (backend_maps(pool->backend)) { /* of a large program they are part of it */
            uint64_t most = least_of(pool->awake_count, BUDGET_CACHES) * BUDGET_CACHES_EACH;
            more = least_of(more, most - least_of(slack, most));
        }
        budget = pool->awake_count > 1 ? goal + more : least_of(goal + more, little);
    }
    uint64_t capacity = pool->backend->capacity; /* what lies idle in a line can go at any time */
    uint64_t left = backend_maps(pool->backend) ? 0 : capacity / BUDGET_DEVICE_SHARE;
    budget = least_of(budget, capacity - left);
    budget = pool->refused_at > 0 ? least_of(budget, pool->refused_at) : budget;
    goal = least_of(goal, budget);
    pool->goal = goal;
    unsigned refused = pool->backend->refused;
    bool doubt = refused > 0 && pool->backend->has_events; /* so frees show whether it records */
    bool tight = pool->config.reuse == POOL_SYNC || pool->program_orders || doubt ||
                 order_is_captured(pool) || budget_used(pool) > budget - goal / TIGHT_SHARE;
    set_if_changed(&pool->budget, budget);
    if (tight != (atomic_load_explicit(&pool->tight, memory_order_relaxed) > 0)) {
        uint64_t since = tight ? tight_from(epochs_stamp(&pool->epochs), false) : 0;
        atomic_store_explicit(&pool->tight, since, memory_order_relaxed);
    }
    bool sync = pool->config.reuse == POOL_SYNC; /* in every free */
    uint64_t most = sync ? 0 : order_event_bytes(pool, budget);
    set_if_changed(&pool->close_least, least_of(budget / CLOSE_LEAST_SHARE, most));
    set_if_changed(&pool->close_bytes, most);
    pool->refused_seen = refused;
    pool->budget_follows = false;
}

/* With many caches a sum takes longer than most visits. */
static bool may_sum(const struct pool *pool) {
    return pool->looks - pool->summed_at >= pool->caches_owned / CACHES_PER_LOOK;
}

void budget_sum_at_times(struct pool *pool) {
    pool->looks++;
    if (may_sum(pool)) {
        look_at_peaks(pool);
    }
}

/* The peak may have risen since the last look. */
bool budget_is_short(struct pool *pool, uint64_t bytes) {
    if (budget_has_room(pool, bytes)) {
        return false;
    }
    if (!pool->budget_is_fresh) {
        if (may_sum(pool)) {
            look_at_peaks(pool);
        }
        look_at_budget(pool);
        pool->budget_is_fresh = true;
    }
    return !budget_has_room(pool, bytes);
}

void budget_book_reserve(struct pool *pool) {
    struct books *books = &pool->books;
    uint64_t reserved = budget_used(pool), ready = budget_ready(pool);
    books_become(&books->reserved, reserved);
    books_become(&books->active, reserved - ready);
    books_become(&books->segments, pool->large.segment_count + pool->small.segment_count);
    uint64_t large = arena_largest_free(&pool->large), small = arena_largest_free(&pool->small);
    books_set(&books->largest_free_bytes,
              most_of(most_of(large, small), runs_largest(&pool->runs)));
    books_set(&books->ready_bytes, ready);
    books_set(&books->releasable_bytes, source_idle(pool));
    books_set(&books->free_blocks,
              pool->large.free_count + pool->small.free_count + pool->runs.count);
}

void budget_look(struct pool *pool) {
    struct books *books = &pool->books;
    bool changed = budget_used(pool) != books_get(&books->reserved.current) ||
                   pool->backend->refused != pool->refused_seen;
    /* One cache keeps its own peak until it is asked for. Of several the sum is only known while it
     * is looked at; but that takes their cache lines away from their threads. */
    bool few = pool->caches_owned > 1 && pool->caches_owned <= FEW_CACHES;
    uint64_t looks = ++pool->looks - pool->summed_at;
    bool unseen =
        pool->caches_owned > 1 && may_sum(pool) && pool->taken_unseen > budget_unseen(pool);
    if (looks >= (few ? LOOKS_PER_SUM_OF_FEW : LOOKS_PER_SUM) || unseen ||
        (changed && may_sum(pool))) {
        look_at_peaks(pool);
        pool->budget_follows = true;
    }
    if (changed || pool->budget_follows) {
        look_at_budget(pool);
    }
    if (changed || budget_ready(pool) != books_get(&books->ready_bytes)) {
        budget_book_reserve(pool);
    }
    pool->budget_is_fresh = false;
    books_set(&books->epochs, pool->epochs.closed);
    books_set(&books->barriers, pool->epochs.barriers);
    books_set(&books->cpu_waits, pool->epochs.cpu_waits);
    books_set(&books->cpu_wait_ns, pool->epochs.cpu_wait_ns);
    decay_watch(pool);
}

void budget_look_at_all(struct pool *pool) {
    look_at_peaks(pool);
    look_at_budget(pool);
    budget_book_reserve(pool);
    budget_look(pool);
}
