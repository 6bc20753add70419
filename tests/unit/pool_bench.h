/*
 * Common parts of the pool's unit tests: a pool over a fake device, checked after every test. Each
 * test file includes this header once.
 */
#ifndef GPUCACHE_TESTS_POOL_BENCH_H
#define GPUCACHE_TESTS_POOL_BENCH_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "fake.h"
#include "pool/internal.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#define KIB ((uint64_t)1 << 10)
#define GIB ((uint64_t)1 << 30)

/*
 * RELAXED is more than any test reserves. With TIGHT the pool is under pressure from the first
 * segment.
 */
#define RELAXED (256 * GIB)
#define TIGHT 1

static struct fake *fake;
static struct pool *pool;

static bool maps_pages; /* pools started from now on use the pages backend */

static void start(uint64_t memory, enum reuse reuse, uint64_t budget) {
    fake = fake_new(memory);
    if (maps_pages)
        fake_map_pages(fake);
    pool = pool_create(&fake->backend, &(struct pool_config){.reuse = reuse, .budget = budget});
    assert_non_null(pool);
}

/*
 * Lets thread caches keep large blocks, as on a large device. Call it before the first allocation.
 */
static inline void keep_large_blocks(void) {
    pool->quota_most = 64 * MIB;
}

/* Gives the calling thread's cache a quota of `bytes` more, as a thread gets after some work. */
static inline void let_hold(uint64_t bytes) {
    struct cache *mine = cache_mine(pool);
    lock_acquire(&pool->source.lock);
    slow_path_recompute(pool); /* small budgets allow less quota */
    assert_true(quota_grow(mine, bytes));
    lock_release(&pool->source.lock);
}

/* Checks and deletes pool and device. Blocks may still be live. */
static int stop(void **state) {
    (void)state;
    const char *broken = pool ? pool_check(pool) : NULL;
    int failed = 0;
    if (broken) {
        print_error("%s does not hold\n", broken);
        failed = -1;
    }
    if (fake && fake->broken_laws > 0) {
        print_error("%s\n", fake->broken);
        failed = -1;
    }
    if (pool) {
        fake_finish_all(fake);
        pool_forget(pool);
    }
    if (fake && failed == 0 && maps_pages && (fake->reserved > 0 || fake->addresses > 0)) {
        print_error("%lu bytes of pages, %lu of addresses were not given back\n", fake->reserved,
                    fake->addresses);
        failed = -1;
    }
    if (fake)
        fake_free(fake);
    pool = NULL;
    fake = NULL;
    return failed;
}

/* The teardown of a test that sets maps_pages. */
static inline int stop_vmm(void **state) {
    int result = stop(state);
    maps_pages = false;
    return result;
}

#define TEST(name) cmocka_unit_test_teardown(name, stop)

/* Fails with the line of the broken invariant if the pool is inconsistent. */
#define assert_whole(pool)                                                                         \
    do {                                                                                           \
        const char *broken = pool_check(pool);                                                     \
        if (broken)                                                                                \
            fail_msg("%s does not hold", broken);                                                  \
    } while (0)

#define check() assert_whole(pool)

static inline uint64_t get(uint64_t bytes) {
    uint64_t address = 0;
    assert_int_equal(pool_alloc(pool, bytes, &address), 0);
    assert_int_equal(address % 512, 0);
    return address;
}

static inline void drop(uint64_t address) {
    assert_int_equal(fake_pool_free(address), 0);
}

/* Submits work that uses the block, then frees the block. */
static inline void use_and_drop(uint64_t address) {
    fake_submit(fake, 0);
    drop(address);
}

/*
 * Frees memory that running work uses. The fake device counts a release or an unmapping before the
 * end of that work. Returns the number of the work.
 */
static inline uint64_t drop_used(uint64_t address, uint64_t bytes) {
    uint64_t work = fake_submit(fake, 0);
    fake_reach(fake, address, bytes, 0, work);
    drop(address);
    return work;
}

/*
 * Completes all work, and lets the pool query it: all memory freed so far is free for new
 * blocks.
 */
static inline void finish_all(void) {
    uint64_t ticket = pool_sync_begin(pool);
    fake_finish_all(fake);
    pool_sync_end(pool, ticket);
}

static inline struct cache *own_cache(void) {
    return cache_of_thread(pool);
}

static inline unsigned bin_of(uint64_t bytes) {
    return bytes > SMALL_MAX_BYTES ? bin_of_large(bytes) : size_class_of(bytes);
}

static inline bool overlap(uint64_t a, uint64_t a_bytes, uint64_t b, uint64_t b_bytes) {
    return a < b + b_bytes && b < a + a_bytes;
}

#endif
