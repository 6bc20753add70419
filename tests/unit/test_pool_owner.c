/*
 * Owners of blocks: the thread that allocated a block frees it without a locked instruction,
 * until another thread frees one of its blocks. A block is freed once, even if two threads free
 * it at the same time.
 */
#include "pool_bench.h"

#include "tcache/owner_id.h"

#include <pthread.h>
#include <sched.h>
#include <stdlib.h>

static bool owns_blocks(const struct cache *cache) {
    return cache->owned_header != OWNED_HEADER_NONE;
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

/* ---- exclusive and shared owner IDs ---- */

static void a_thread_owns_its_blocks_until_another_frees_one(void **state) {
    (void)state;
    start(GIB, REUSE_BARRIER, RELAXED);
    if (!biased_can_start())
        skip();
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

static void a_wrong_free_by_another_thread_changes_no_owner(void **state) {
    (void)state;
    start(GIB, REUSE_BARRIER, RELAXED);
    uint64_t block = get(4096);
    bool owned = owns_blocks(own_cache());
    assert_int_equal(drop_elsewhere(block + 512), -EINVAL);
    assert_int_equal(drop_elsewhere(block + 1), -EINVAL);
    assert_int_equal(owns_blocks(own_cache()), owned);
    /* a query of the block's ID does not make the owner ID shared */
    assert_int_not_equal(pool_block_id(block), 0);
    drop(block);
    assert_int_equal(drop_elsewhere(block), -EINVAL);
    assert_int_equal(owns_blocks(own_cache()), owned);
}

/* A thread that frees another thread's block must wait until that thread has left its cache. */
static atomic_bool has_freed, about_to_free;

static void *drop_and_say(void *argument) {
    about_to_free = true;
    void *result = drop_it(argument);
    has_freed = true;
    return result;
}

static void the_owner_is_not_disturbed_in_the_middle_of_a_free(void **state) {
    (void)state;
    start(GIB, REUSE_BARRIER, RELAXED);
    if (!biased_can_start())
        skip();
    uint64_t block = get(4096);
    has_freed = about_to_free = false;
    cache_enter(own_cache());
    pthread_t thread;
    void *result;
    assert_int_equal(pthread_create(&thread, NULL, drop_and_say, &block), 0);
    while (!about_to_free)
        nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
    nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
    bool too_early = has_freed;
    cache_leave(own_cache());
    pthread_join(thread, &result);
    assert_false(too_early);
    assert_null(result);
    assert_int_equal(fake_pool_free(block), -EINVAL);
}

/* ---- ended threads ---- */

static unsigned number_of_ended;

static void *ask_and_end(void *unused) {
    (void)unused;
    uint64_t address = 0;
    pool_alloc(pool, 4096, &address);
    number_of_ended = own_cache()->owner_id;
    return (void *)(uintptr_t)address;
}

static void *end_another(void *unused) {
    unsigned before = number_of_ended;
    void *address = ask_and_end(unused);
    return number_of_ended == 0 || number_of_ended != before ? address : NULL;
}

static void the_next_thread_of_a_cache_does_not_own_old_blocks(void **state) {
    (void)state;
    start(GIB, REUSE_BARRIER, RELAXED);
    uint64_t left = (uintptr_t)run(ask_and_end, NULL);
    uint64_t other = (uintptr_t)run(end_another, NULL);
    assert_int_not_equal(other, 0);
    assert_int_equal(drop_elsewhere(left), 0);
    assert_int_equal(fake_pool_free(left), -EINVAL);
    drop(other);
    assert_int_equal(drop_elsewhere(other), -EINVAL);
}

static void blocks_of_an_ended_thread_stay_counted(void **state) {
    (void)state;
    start(GIB, REUSE_BARRIER, RELAXED);
    uint64_t left = (uintptr_t)run(ask_and_end, NULL);
    struct stats_device counters = fake_books(pool);
    assert_int_equal(counters.allocated.current, 4096);
    assert_int_equal(counters.allocated.total, 4096);
    assert_int_equal(counters.allocations.current, 1);
    assert_true(counters.peaks_exact);
    uint64_t more = get(4096);
    drop(left);
    drop(more);
    counters = fake_books(pool);
    assert_int_equal(counters.allocated.current, 0);
    assert_int_equal(counters.allocated.peak, 8192);
    assert_int_equal(counters.allocated.total, 8192);
    assert_int_equal(counters.allocated.freed, 8192);
    assert_int_equal(counters.allocations.freed, 2);
}

/* Allocates a block and frees `other`, or else its own block. */
static void *ask_drop_and_end(void *other) {
    uint64_t address = 0;
    pool_alloc(pool, 4096, &address);
    fake_pool_free(other ? *(uint64_t *)other : address);
    number_of_ended = own_cache()->owner_id;
    return NULL;
}

static unsigned number_after(uint64_t *other) {
    run(ask_drop_and_end, other);
    return number_of_ended;
}

/* A program that starts a thread for every request would otherwise use up all IDs. */
static void an_unused_owner_id_goes_to_the_next_thread(void **state) {
    (void)state;
    start(GIB, REUSE_BARRIER, RELAXED);
    if (!biased_can_start())
        skip();
    unsigned number = number_after(NULL);
    assert_int_equal(number_after(NULL), number);
    assert_int_equal(number_after(NULL), number);
    uint64_t block = get(4096), large = get(3 * MIB), later = get(4096);
    number_after(&block); /* the cache's ID is shared now */
    unsigned next = number_after(NULL);
    assert_int_not_equal(next, number);
    number_after(&large);
    assert_int_not_equal(number_after(NULL), next);
    check();
    drop(later);
}

static void *ask_forget_and_end(void *unused) {
    uint64_t address = 0;
    pool_alloc(pool, 4096, &address);
    pool_forget(pool);
    return ask_and_end(unused);
}

static void blocks_of_an_ended_context_keep_their_owner_id(void **state) {
    (void)state;
    start(GIB, REUSE_BARRIER, RELAXED);
    if (!biased_can_start())
        skip();
    /* the next thread's cache then starts with one live block */
    uint64_t left = (uintptr_t)run(ask_and_end, NULL);
    assert_int_not_equal(left, 0);
    uint64_t other = (uintptr_t)run(ask_forget_and_end, NULL);
    unsigned number = number_of_ended;
    assert_int_not_equal(number_after(NULL), number);
    drop(other);
}

/* ---- the list of caches ---- */

static unsigned listed(void) {
    unsigned caches = 0;
    for (struct cache *cache = atomic_load(&pool->caches); cache; cache = cache->next_in_pool)
        caches++;
    return caches;
}

enum { MANY = 20 };
static pthread_barrier_t all_up, may_end;

static void *ask_drop_and_stay(void *unused) {
    uint64_t small = 0, large = 0;
    pool_alloc(pool, 5000, &small);
    pool_alloc(pool, 3 * MIB, &large);
    fake_pool_free(small);
    fake_pool_free(large);
    pthread_barrier_wait(&all_up);
    pthread_barrier_wait(&may_end);
    return unused;
}

static void caches_of_threads_that_ended_leave_the_list_and_their_counts_stay(void **state) {
    (void)state;
    start(GIB, REUSE_BARRIER, RELAXED);
    drop(get(5000));
    for (unsigned round = 0; round < 3; round++) {
        pthread_t threads[MANY];
        pthread_barrier_init(&all_up, NULL, MANY + 1);
        pthread_barrier_init(&may_end, NULL, MANY + 1);
        for (unsigned i = 0; i < MANY; i++)
            assert_int_equal(pthread_create(&threads[i], NULL, ask_drop_and_stay, NULL), 0);
        pthread_barrier_wait(&all_up);
        assert_int_equal(listed(), MANY + 2);
        check();
        pthread_barrier_wait(&may_end);
        for (unsigned i = 0; i < MANY; i++)
            pthread_join(threads[i], NULL);
        assert_int_equal(listed(), 2);
        struct stats_device counters = fake_books(pool);
        uint64_t total = 0, live = 0;
        for (unsigned i = 0; i < STATS_SIZE_CLASSES; i++) {
            total += counters.size_classes[i].total;
            live += counters.size_classes[i].live;
        }
        assert_int_equal(total, 1 + 2 * MANY * (round + 1));
        assert_int_equal(live, 0);
        assert_int_equal(counters.allocations.total, total);
        check();
    }
}

/*
 * While threads start and end, sums without the lock neither miss nor count twice the blocks of
 * ended threads.
 */
static atomic_bool churns;

static void *churn(void *unused) {
    while (churns)
        run(ask_drop_and_end, NULL);
    return unused;
}

static void sums_are_right_while_threads_come_and_go(void **state) {
    (void)state;
    start(GIB, REUSE_BARRIER, RELAXED);
    for (unsigned i = 0; i < 32; i++)
        run(ask_and_end, NULL); /* the next thread takes over the counts of ended threads */
    get(MIB);
    churns = true;
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, churn, NULL), 0);
    for (int i = 0; i < 200000; i++) {
        uint64_t live = peaks_sums(pool, false).of[WATERMARK_ALLOCATED].live;
        /* plus or minus one pair of an allocation and a free in flight */
        if (live < MIB + 31 * 4096 || live > MIB + 33 * 4096) {
            churns = false;
            assert_in_range(live, MIB + 31 * 4096, MIB + 33 * 4096);
        }
    }
    churns = false;
    pthread_join(thread, NULL);
}

/* Returns whether the test runs under valgrind, ThreadSanitizer or qemu. */
static bool runs_short(void) {
    const char *text = getenv("POOL_TEST_OPS");
    return text && atol(text) < 100000;
}

static void when_ids_have_run_out_blocks_have_no_owner(void **state) {
    (void)state;
    start(GIB, REUSE_BARRIER, RELAXED);
    if (!biased_can_start())
        skip();
    bool short_run = runs_short(); /* then the IDs are not used up */
    unsigned threads = short_run ? 100 : OWNER_IDS;
    for (unsigned i = 0; i < threads; i++) {
        uint64_t block = (uintptr_t)run(ask_and_end, NULL);
        drop(block);
    }
    assert_true(short_run || number_of_ended == 0);
    uint64_t block = (uintptr_t)run(ask_and_end, NULL);
    assert_int_equal(drop_elsewhere(block), 0);
    assert_int_equal(fake_pool_free(block), -EINVAL);
}

/* ---- two frees of one block at the same time ---- */

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

/*
 * Uses a new thread in each round: only the first free by another thread makes an owner ID
 * shared.
 */
static void of_two_concurrent_frees_one_succeeds(void **state) {
    (void)state;
    start(GIB, REUSE_BARRIER, RELAXED);
    int rounds = runs_short() ? 200 : 3000;
    for (int i = 0; i < rounds; i++) {
        at_start = 0;
        pthread_t thread;
        assert_int_equal(pthread_create(&thread, NULL, contest, NULL), 0);
        while (atomic_load(&at_start) < 1)
            sched_yield();
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
        TEST(a_thread_owns_its_blocks_until_another_frees_one),
        TEST(a_wrong_free_by_another_thread_changes_no_owner),
        TEST(the_owner_is_not_disturbed_in_the_middle_of_a_free),
        TEST(the_next_thread_of_a_cache_does_not_own_old_blocks),
        TEST(blocks_of_an_ended_thread_stay_counted),
        TEST(of_two_concurrent_frees_one_succeeds),
        TEST(an_unused_owner_id_goes_to_the_next_thread),
        TEST(blocks_of_an_ended_context_keep_their_owner_id),
        TEST(caches_of_threads_that_ended_leave_the_list_and_their_counts_stay),
        TEST(sums_are_right_while_threads_come_and_go),
        TEST(when_ids_have_run_out_blocks_have_no_owner),
    };
    return cmocka_run_group_tests_name("owners of blocks", tests, NULL, NULL);
}
