/*
 * Blocks that the test asks for and another thread frees. Included once by each of the shelves' tests.
 */
#ifndef GPUCACHE_TESTS_HANDOVER_H
#define GPUCACHE_TESTS_HANDOVER_H

#include "pool_bench.h"

#include <pthread.h>

static uint64_t blocks[1024];
static unsigned first_of, count; /* of those that the other thread frees */

/* Set: as a thread that has done nothing but free for long. */
static bool gives_in_parts;

static void *use_and_drop_them(void *unused) {
    if (gives_in_parts) {
        cache_mine(pool)->gifts = CACHE_GIFTS + 1;
    }
    for (unsigned i = first_of; i < first_of + count; i++) {
        fake_submit(fake, 0);
        drop(blocks[i]);
    }
    return unused;
}

/* Another thread, which ends then. */
static void let_another_free(unsigned first, unsigned how_many) {
    pthread_t thread;
    first_of = first;
    count = how_many;
    assert_int_equal(pthread_create(&thread, NULL, use_and_drop_them, NULL), 0);
    pthread_join(thread, NULL);
    check();
}

/* So many, of which the last of every so many is of the second size. */
static void ask_for(unsigned how_many, uint64_t bytes, unsigned every, uint64_t other) {
    assert_true(how_many <= sizeof blocks / sizeof *blocks);
    for (unsigned i = 0; i < how_many; i++) {
        blocks[i] = get(i % every == every - 1 ? other : bytes);
    }
}

static inline void hand_over_mixed(unsigned how_many, uint64_t bytes, unsigned every,
                                   uint64_t other) {
    ask_for(how_many, bytes, every, other);
    let_another_free(0, how_many);
}

static inline void hand_over(unsigned how_many, uint64_t bytes) {
    hand_over_mixed(how_many, bytes, 1, bytes);
}

/* A thread that asks for as much and stays until it is let go. */
static uint64_t asked_bytes;
static pthread_barrier_t step;

static void *ask_and_stay(void *how_many) {
    for (uintptr_t i = 0; i < (uintptr_t)how_many; i++) {
        pool_alloc(pool, asked_bytes, &blocks[i]);
    }
    pthread_barrier_wait(&step);
    pthread_barrier_wait(&step);
    return NULL;
}

static pthread_t let_another_ask(unsigned how_many, uint64_t bytes) {
    pthread_t thread;
    asked_bytes = bytes;
    pthread_barrier_init(&step, NULL, 2);
    assert_int_equal(pthread_create(&thread, NULL, ask_and_stay, (void *)(uintptr_t)how_many), 0);
    pthread_barrier_wait(&step);
    return thread;
}

static void let_it_end(pthread_t thread) {
    pthread_barrier_wait(&step);
    pthread_join(thread, NULL);
    pthread_barrier_destroy(&step);
}

static inline uint64_t bytes_on_shelves(void) {
    uint64_t bytes = 0;
    for (struct cache *cache = atomic_load(&pool->caches); cache; cache = cache->next_in_pool) {
        bytes += cache->shelf.bytes + cache->shelf.range_bytes;
    }
    return bytes;
}

/* Where it waits for the test: on its own shelf, or where threads own nothing on the common one. */
static inline struct shelf *waiting_shelf(void) {
    return &(cache_mine(pool)->number > 0 ? cache_mine(pool) : pool->common)->shelf;
}

static inline bool was_freed(uint64_t address) {
    for (unsigned i = first_of; i < first_of + count; i++) {
        if (blocks[i] == address) {
            return true;
        }
    }
    return false;
}

#endif
