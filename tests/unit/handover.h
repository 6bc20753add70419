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
        cache_mine(pool)->bytes_max = pool->cache_bytes_max / CRATE_SHARE;
        cache_mine(pool)->gifts = CACHE_GIFTS;
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

/* Where it waits for the test: on its own shelf, or where threads own nothing on the common one. */
static struct shelf *waiting_shelf(void) {
    return &(cache_mine(pool)->number > 0 ? cache_mine(pool) : pool->common)->shelf;
}

static bool was_freed(uint64_t address) {
    for (unsigned i = first_of; i < first_of + count; i++) {
        if (blocks[i] == address) {
            return true;
        }
    }
    return false;
}

#endif
