/*
 * Who is inside a cache: its owner, with plain stores, or whoever seizes it. What the owner pays
 * nothing for is paid here (cache.h).
 */
#include "pool/internal.h"

#include <linux/membarrier.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define STORES_ARRIVE_NS 10000000
#define STORES_ARRIVE_TURNS (1u << 18) /* some milliseconds */

static atomic_bool can_bias;

static int membarrier(int command) {
    return (int)syscall(SYS_membarrier, command, 0, 0);
}

void cache_start(void) {
#if !defined(__SANITIZE_THREAD__) /* which cannot see what membarrier orders */
    can_bias = membarrier(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED) == 0;
#endif
}

bool cache_can_bias(void) {
    return can_bias;
}

static bool is_biased(const struct cache *cache) {
    return atomic_load_explicit(&cache->biased, memory_order_acquire);
}

/* The other side may have lost its processor. */
static void wait_a_turn(unsigned turns) {
    if (turns < 100) {
        cpu_relax();
    } else {
        sched_yield();
    }
}

void cache_enter_slowly(struct cache *cache) {
    for (unsigned turns = 0; is_biased(cache); turns++) {
        if (!atomic_load_explicit(&cache->wanted, memory_order_acquire) && cache_try_enter(cache)) {
            return;
        }
        wait_a_turn(turns);
    }
    for (unsigned turns = 0; atomic_exchange_explicit(&cache->locked, true, memory_order_acquire);
         turns++) {
        wait_a_turn(turns);
    }
}

static void ask_to_stay_out(struct cache *cache) {
    if (is_biased(cache)) {
        atomic_store(&cache->wanted, true);
    }
}

static void wait_for_owner(struct cache *cache) {
    for (unsigned turns = 0; atomic_load_explicit(&cache->inside, memory_order_acquire); turns++) {
        wait_a_turn(turns);
    }
}

/* After a membarrier. */
static void wait_until_out(struct cache *cache) {
    if (is_biased(cache)) {
        wait_for_owner(cache);
    } else {
        cache_enter(cache);
    }
}

/*
 * Until a store that another processor has made has arrived in memory, without that one's help: it
 * takes nanoseconds, or microseconds where lines are fought over. Turns too, where the sandbox refuses
 * sleep.
 */
static void let_stores_arrive(void) {
    nanosleep(&(struct timespec){.tv_nsec = STORES_ARRIVE_NS}, NULL);
    for (unsigned turns = 0; turns < STORES_ARRIVE_TURNS; turns++) {
        cpu_relax();
    }
}

/*
 * The kernel did membarrier once and refuses now: a sandbox was set up, or a checkpoint restored. The
 * pool's caches become spin locks, for good. All that membarrier did for the seizing thread is that the
 * owners' stores to `inside` have arrived which were made before they could see `wanted`; that is
 * waited for instead, once.
 */
static void end_bias(struct pool *pool) {
    can_bias = false;
    for (struct cache *cache = atomic_load(&pool->caches); cache; cache = cache->next_in_pool) {
        ask_to_stay_out(cache);
    }
    let_stores_arrive();
    for (struct cache *cache = atomic_load(&pool->caches); cache; cache = cache->next_in_pool) {
        if (is_biased(cache)) {
            wait_for_owner(cache);
            atomic_store_explicit(&cache->biased, false, memory_order_release);
        }
    }
}

/* All owners that have been asked to stay out know, or are seen to be inside. */
static void order_owners(struct pool *pool) {
    if (membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED) != 0) {
        end_bias(pool);
    }
}

void cache_seize(struct cache *cache) {
    ask_to_stay_out(cache);
    if (is_biased(cache)) {
        order_owners(cache->pool);
    }
    wait_until_out(cache);
}

void cache_seize_list(struct pool *pool, struct cache *first) {
    bool any = false;
    for (struct cache *cache = first; cache; cache = cache->next_seized) {
        any |= is_biased(cache);
        ask_to_stay_out(cache);
    }
    if (any) {
        order_owners(pool);
    }
    for (struct cache *cache = first; cache; cache = cache->next_seized) {
        wait_until_out(cache);
    }
}

void cache_seize_all(struct pool *pool) {
    struct cache *all = NULL;
    for (struct cache *cache = atomic_load(&pool->caches); cache; cache = cache->next_in_pool) {
        cache->next_seized = all;
        all = cache;
    }
    cache_seize_list(pool, all);
}

void cache_return_all(struct pool *pool) {
    for (struct cache *cache = atomic_load(&pool->caches); cache; cache = cache->next_in_pool) {
        cache_return(cache);
    }
}

void cache_return_list(struct cache *first) {
    for (struct cache *cache = first; cache; cache = cache->next_seized) {
        cache_return(cache);
    }
}

void cache_return(struct cache *cache) {
    if (is_biased(cache)) {
        atomic_store_explicit(&cache->wanted, false, memory_order_release);
    } else {
        cache_leave(cache);
    }
}
