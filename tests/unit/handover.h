/*
 * Tools for tests of transfer caches: the test allocates blocks that another thread frees.
 * Included once per test.
 */
#ifndef GPUCACHE_TESTS_HANDOVER_H
#define GPUCACHE_TESTS_HANDOVER_H

#include "pool_bench.h"

#include <pthread.h>

static uint64_t blocks[4096];
static unsigned first_of, count; /* range of `blocks` that the other thread frees */

static inline void *use_and_drop_them(void *unused) {
    for (unsigned i = first_of; i < first_of + count; i++) {
        fake_submit(fake, 0);
        drop(blocks[i]);
    }
    return unused;
}

/* Frees the blocks in another thread. Returns after that thread has ended. */
static inline void let_another_free(unsigned first, unsigned how_many) {
    pthread_t thread;
    first_of = first;
    count = how_many;
    assert_int_equal(pthread_create(&thread, NULL, use_and_drop_them, NULL), 0);
    pthread_join(thread, NULL);
    check();
}

/* Allocates `how_many` blocks of `bytes`; every `every`-th one has the size `other`. */
static inline void ask_for(unsigned how_many, uint64_t bytes, unsigned every, uint64_t other) {
    assert_true(how_many <= sizeof blocks / sizeof *blocks);
    for (unsigned i = 0; i < how_many; i++)
        blocks[i] = get(i % every == every - 1 ? other : bytes);
}

static inline void hand_over(unsigned how_many, uint64_t bytes) {
    ask_for(how_many, bytes, 1, bytes);
    let_another_free(0, how_many);
}

/* Another thread that allocates blocks and stays until let_it_end(). */
static uint64_t asked_bytes;
static pthread_barrier_t step;

static inline void *ask_and_stay(void *how_many) {
    for (uintptr_t i = 0; i < (uintptr_t)how_many; i++)
        pool_alloc(pool, asked_bytes, &blocks[i]);
    pthread_barrier_wait(&step);
    pthread_barrier_wait(&step);
    return NULL;
}

static inline pthread_t let_another_ask(unsigned how_many, uint64_t bytes) {
    pthread_t thread;
    asked_bytes = bytes;
    pthread_barrier_init(&step, NULL, 2);
    assert_int_equal(pthread_create(&thread, NULL, ask_and_stay, (void *)(uintptr_t)how_many), 0);
    pthread_barrier_wait(&step);
    return thread;
}

static inline void let_it_end(pthread_t thread) {
    pthread_barrier_wait(&step);
    pthread_join(thread, NULL);
    pthread_barrier_destroy(&step);
}

/* Returns the bytes in all transfer caches. */
static inline uint64_t bytes_waiting(void) {
    uint64_t bytes = 0;
    for (struct cache *cache = atomic_load(&pool->caches); cache; cache = cache->next_in_pool)
        bytes += counter_get(&cache->transfer.bytes);
    return bytes;
}

/*
 * Without a biased lock blocks have no owner and wait in the common transfer cache: skips the
 * test.
 */
static inline void need_owners(void) {
    if (!biased_can_start())
        skip();
    assert_int_not_equal(cache_mine(pool)->owner_id, 0);
}

/*
 * Returns the transfer cache in which blocks wait for the test: its own, or the common one if
 * threads own no blocks.
 */
static inline struct transfer *own_transfer(void) {
    return &(cache_mine(pool)->owner_id > 0 ? cache_mine(pool) : pool->common)->transfer;
}

static inline uint64_t own_waiting(void) {
    return counter_get(&own_transfer()->bytes);
}

static inline bool was_freed(uint64_t address) {
    for (unsigned i = first_of; i < first_of + count; i++)
        if (blocks[i] == address)
            return true;
    return false;
}

/* Allocates `how_many` blocks. Returns how many of them the other thread had freed. */
static inline unsigned come_back(unsigned how_many, uint64_t bytes) {
    unsigned back = 0;
    for (unsigned i = 0; i < how_many; i++)
        back += was_freed(get(bytes));
    return back;
}

#endif
