/*
 * Whose block it is: the thread that asked for a block frees it without a locked instruction, until
 * another thread frees one of its blocks. Whatever they do at once, a block is freed once.
 */
#include "pool_bench.h"

#include <pthread.h>
#include <sched.h>
#include <stdlib.h>

static struct cache *own_cache(void) {
    return cache_find(pool);
}

static bool owns_blocks(const struct cache *cache) {
    return cache->owns != CACHE_OWNS_NONE;
}

static void *run(void *(*body)(void *), void *argument) {
    pthread_t thread;
    void *result = NULL;
    assert_int_equal(pthread_create(&thread, NULL, body, argument), 0);
    pthread_join(thread, &result);
    return result;
}

static void *drop_it(void *argument) {
    return (void *)(intptr_t)fake_pool_free(*(uint64_t *)argument);
}

static int drop_elsewhere(uint64_t address) {
    return (int)(intptr_t)run(drop_it, &address);
}

/* ---- */

static void a_block_is_its_threads_until_another_one_frees_one(void **state) {
    (void)state;
    start(GIB, POOL_BARRIER, RELAXED);
    if (!cache_can_bias()) {
        skip();
    }
    uint64_t first = get(4096), second = get(4096), third = get(8192);
    drop(first);
    assert_true(owns_blocks(own_cache()));
    assert_int_equal(drop_elsewhere(second), 0);
    assert_false(owns_blocks(own_cache()));
    assert_int_equal(fake_pool_free(second), -EINVAL);
    drop(third);
    assert_int_equal(fake_pool_free(third), -EINVAL);
    uint64_t later = get(8192);
    drop(later);
    assert_int_equal(drop_elsewhere(later), -EINVAL);
}

static void a_wrong_free_by_another_thread_takes_nothing_away(void **state) {
    (void)state;
    start(GIB, POOL_BARRIER, RELAXED);
    uint64_t block = get(4096);
    bool owned = owns_blocks(own_cache());
    assert_int_equal(drop_elsewhere(block + 512), -EINVAL);
    assert_int_equal(drop_elsewhere(block + 1), -EINVAL);
    assert_int_equal(owns_blocks(own_cache()), owned);
    assert_int_not_equal(pool_block_id(block), 0); /* nor does a question */
    drop(block);
    assert_int_equal(drop_elsewhere(block), -EINVAL);
    assert_int_equal(owns_blocks(own_cache()), owned);
}

/* Whoever wants to free another thread's block waits for that thread to be outside its cache. */
static atomic_bool has_freed;

static void *drop_and_say(void *argument) {
    void *result = drop_it(argument);
    has_freed = true;
    return result;
}

static void the_owner_is_not_disturbed_in_the_middle_of_a_free(void **state) {
    (void)state;
    start(GIB, POOL_BARRIER, RELAXED);
    if (!cache_can_bias()) {
        skip();
    }
    uint64_t block = get(4096);
    has_freed = false;
    cache_enter(own_cache());
    pthread_t thread;
    void *result;
    assert_int_equal(pthread_create(&thread, NULL, drop_and_say, &block), 0);
    nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
    bool too_early = has_freed;
    cache_leave(own_cache());
    pthread_join(thread, &result);
    assert_false(too_early);
    assert_null(result);
    assert_int_equal(fake_pool_free(block), -EINVAL);
}

/* ---- threads that end ---- */

static unsigned number_of_ended;

static void *ask_and_end(void *unused) {
    (void)unused;
    uint64_t address = 0;
    pool_alloc(pool, 4096, &address);
    number_of_ended = own_cache()->number;
    return (void *)(uintptr_t)address;
}

static void *end_another(void *unused) {
    unsigned before = number_of_ended;
    void *address = ask_and_end(unused);
    return number_of_ended == 0 || number_of_ended != before ? address : NULL;
}

static void the_next_thread_of_a_cache_does_not_own_what_the_last_one_left(void **state) {
    (void)state;
    start(GIB, POOL_BARRIER, RELAXED);
    uint64_t left = (uintptr_t)run(ask_and_end, NULL);
    uint64_t other = (uintptr_t)run(end_another, NULL);
    assert_int_not_equal(other, 0);
    assert_int_equal(drop_elsewhere(left), 0);
    assert_int_equal(fake_pool_free(left), -EINVAL);
    drop(other);
    assert_int_equal(drop_elsewhere(other), -EINVAL);
}

static void what_a_thread_that_ended_had_taken_stays_in_the_books(void **state) {
    (void)state;
    start(GIB, POOL_BARRIER, RELAXED);
    uint64_t left = (uintptr_t)run(ask_and_end, NULL);
    struct stats_device books = fake_books(pool);
    assert_int_equal(books.allocated.current, 4096);
    assert_int_equal(books.allocated.total, 4096);
    assert_int_equal(books.allocations.current, 1);
    assert_true(books.peaks_exact);
    uint64_t more = get(4096);
    drop(left);
    drop(more);
    books = fake_books(pool);
    assert_int_equal(books.allocated.current, 0);
    assert_int_equal(books.allocated.peak, 8192);
    assert_int_equal(books.allocated.total, 8192);
    assert_int_equal(books.allocated.freed, 8192);
    assert_int_equal(books.allocations.freed, 2);
}

static void when_numbers_have_run_out_blocks_are_everybodys(void **state) {
    (void)state;
    start(GIB, POOL_BARRIER, RELAXED);
    if (!cache_can_bias()) {
        skip();
    }
    const char *text = getenv("POOL_TEST_OPS"); /* fewer under valgrind: then they do not run out */
    unsigned threads = text ? 100 : CACHE_NUMBERS;
    for (unsigned i = 0; i < threads; i++) {
        uint64_t block = (uintptr_t)run(ask_and_end, NULL);
        drop(block);
    }
    assert_true(text || number_of_ended == 0);
    uint64_t block = (uintptr_t)run(ask_and_end, NULL);
    assert_int_equal(drop_elsewhere(block), 0);
    assert_int_equal(fake_pool_free(block), -EINVAL);
}

/* ---- two threads free one block at once ---- */

static uint64_t contested;
static atomic_int at_start;

static void *contest(void *unused) {
    (void)unused;
    uint64_t mine = 0;
    while (pool_alloc(pool, 4096, &mine) != 0) {
    }
    contested = mine;
    atomic_fetch_add(&at_start, 1);
    while (atomic_load(&at_start) < 2) {
    }
    return (void *)(intptr_t)pool_free(mine);
}

/* A new thread each time: it is the first free by another one that matters. */
static void of_two_frees_at_once_one_is_right(void **state) {
    (void)state;
    start(GIB, POOL_BARRIER, RELAXED);
    const char *text = getenv("POOL_TEST_OPS");
    int rounds = text ? 200 : 4000;
    for (int i = 0; i < rounds; i++) {
        at_start = 0;
        pthread_t thread;
        assert_int_equal(pthread_create(&thread, NULL, contest, NULL), 0);
        while (atomic_load(&at_start) < 1) {
            sched_yield();
        }
        uint64_t address = contested;
        atomic_fetch_add(&at_start, 1);
        for (volatile int turn = 0; turn < i % 64; turn++) {
        }
        int ours = pool_free(address);
        void *theirs;
        pthread_join(thread, &theirs);
        assert_true((ours == 0) != (theirs == NULL));
        assert_true(ours == 0 || ours == -EINVAL);
        check();
    }
    assert_int_equal(fake_books(pool).allocations.current, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(a_block_is_its_threads_until_another_one_frees_one),
        TEST(a_wrong_free_by_another_thread_takes_nothing_away),
        TEST(the_owner_is_not_disturbed_in_the_middle_of_a_free),
        TEST(the_next_thread_of_a_cache_does_not_own_what_the_last_one_left),
        TEST(what_a_thread_that_ended_had_taken_stays_in_the_books),
        TEST(of_two_frees_at_once_one_is_right),
        TEST(when_numbers_have_run_out_blocks_are_everybodys),
    };
    return cmocka_run_group_tests_name("whose block it is", tests, NULL, NULL);
}
