/*
 * Blocks that the test asks for and another thread frees, and magazines made by hand. Included once by each
 * test.
 */
#ifndef GPUCACHE_TESTS_HANDOVER_H
#define GPUCACHE_TESTS_HANDOVER_H

#include "pool_bench.h"

#include <pthread.h>

static uint64_t blocks[4096];
static unsigned first_of, count; /* of those that the other thread frees */

static inline void *use_and_drop_them(void *unused) {
    for (unsigned i = first_of; i < first_of + count; i++) {
        fake_submit(fake, 0);
        drop(blocks[i]);
    }
    return unused;
}

/* Another thread, which ends then. */
static inline void let_another_free(unsigned first, unsigned how_many) {
    pthread_t thread;
    first_of = first;
    count = how_many;
    assert_int_equal(pthread_create(&thread, NULL, use_and_drop_them, NULL), 0);
    pthread_join(thread, NULL);
    check();
}

/* So many, of which the last of every so many is of the second size. */
static inline void ask_for(unsigned how_many, uint64_t bytes, unsigned every, uint64_t other) {
    assert_true(how_many <= sizeof blocks / sizeof *blocks);
    for (unsigned i = 0; i < how_many; i++) {
        blocks[i] = get(i % every == every - 1 ? other : bytes);
    }
}

static inline void hand_over(unsigned how_many, uint64_t bytes) {
    ask_for(how_many, bytes, 1, bytes);
    let_another_free(0, how_many);
}

/* A thread that asks for as much and stays until it is let go. */
static uint64_t asked_bytes;
static pthread_barrier_t step;

static inline void *ask_and_stay(void *how_many) {
    for (uintptr_t i = 0; i < (uintptr_t)how_many; i++) {
        pool_alloc(pool, asked_bytes, &blocks[i]);
    }
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

/* In all transfer caches. */
static inline uint64_t bytes_waiting(void) {
    uint64_t bytes = 0;
    for (struct cache *cache = atomic_load(&pool->caches); cache; cache = cache->next_in_pool) {
        bytes += counter_get(&cache->transfer.bytes);
    }
    return bytes;
}

/* Where it waits for the test: its own, or where threads own nothing the common one. */
static inline struct transfer *own_transfer(void) {
    return &(cache_mine(pool)->number > 0 ? cache_mine(pool) : pool->common)->transfer;
}

static inline uint64_t own_waiting(void) {
    return counter_get(&own_transfer()->bytes);
}

static inline bool was_freed(uint64_t address) {
    for (unsigned i = first_of; i < first_of + count; i++) {
        if (blocks[i] == address) {
            return true;
        }
    }
    return false;
}

/* How many of so many new blocks are among those that the other thread freed. */
static inline unsigned come_back(unsigned how_many, uint64_t bytes) {
    unsigned back = 0;
    for (unsigned i = 0; i < how_many; i++) {
        back += was_freed(get(bytes));
    }
    return back;
}

/* All work is over, and the program has seen it: what is freed by now may be handed out. */
static inline void finish(void) {
    uint64_t ticket = pool_sync_begin(pool);
    fake_finish_all(fake);
    pool_sync_end(pool, ticket);
}

#endif
