/*
 * Tests quotas: a cache becomes active with a small quota, gets more as its thread needs it, and
 * becomes inactive when the thread is idle. All caches together hold a limited part of the
 * device. Blocks of idle threads go to other threads.
 */
#include "handover.h"

static uint64_t now_ns;

static uint64_t clock_of_test(struct backend *backend) {
    (void)backend;
    return now_ns;
}

static struct backend_ops ops;

static void begin_with(uint64_t memory, uint64_t budget) {
    start(memory, REUSE_BARRIER, budget);
    ops = *fake->backend.ops;
    ops.clock = clock_of_test;
    fake->backend.ops = &ops;
    now_ns = 1000000;
}

static void begin_on(uint64_t memory) {
    begin_with(memory, 0);
}

static void begin(void) {
    begin_on(GIB);
}

/* More than IDLE_NS. */
#define LONG_NS ((uint64_t)1000000000)

static struct cache *mine(void) {
    return cache_mine(pool);
}

static unsigned active(void) {
    unsigned caches = 0;
    const struct cache *before = NULL;
    for (struct cache *cache = pool->active; cache; cache = cache->next_active) {
        assert_ptr_equal(cache->previous_active, before);
        assert_false(quota_is_inactive(cache));
        before = cache;
        caches++;
    }
    assert_int_equal(caches, pool->source.active_caches);
    return caches;
}

/* The other thread: caches blocks, waits, and frees the block `kept` when go_on() is called. */
static uint64_t kept;
static struct cache *theirs;

static void *cache_and_stay(void *how_many) {
    uint64_t own[256];
    for (uintptr_t i = 0; i < (uintptr_t)how_many; i++)
        own[i] = get(64 * KIB);
    kept = get(64 * KIB);
    for (uintptr_t i = 0; i < (uintptr_t)how_many; i++)
        drop(own[i]);
    theirs = mine();
    pthread_barrier_wait(&step);
    pthread_barrier_wait(&step);
    drop(kept);
    pthread_barrier_wait(&step);
    pthread_barrier_wait(&step);
    return NULL;
}

static pthread_t let_another_cache(unsigned how_many) {
    pthread_t thread;
    pthread_barrier_init(&step, NULL, 2);
    assert_int_equal(pthread_create(&thread, NULL, cache_and_stay, (void *)(uintptr_t)how_many), 0);
    pthread_barrier_wait(&step);
    return thread;
}

static void go_on(void) {
    pthread_barrier_wait(&step);
    pthread_barrier_wait(&step);
}

static void grow_past_the_goal(void) {
    fake_finish_all(fake);
    uint64_t before = fake->reserved;
    while (fake->reserved <= pool->source.goal || fake->reserved == before)
        get(MIB);
}

/* ---- inactive caches ---- */

static void blocks_in_the_cache_of_an_idle_thread_go_to_the_pool(void **state) {
    (void)state;
    begin();
    pthread_t thread = let_another_cache(40);
    uint64_t in_cache = theirs->bytes;
    assert_true(in_cache > 0);
    grow_past_the_goal(); /* scans the thread's cache for the first time */
    get(30 * MIB);
    assert_int_equal(theirs->bytes, in_cache); /* the thread was not idle for long enough */
    now_ns += LONG_NS;
    get(30 * MIB);
    check();
    assert_int_equal(theirs->bytes, 0);
    assert_true(quota_is_inactive(theirs));
    assert_int_equal(theirs->transfer.owner_id, 0);
    go_on();
    assert_false(quota_is_inactive(theirs)); /* a free activates the cache */
    assert_int_equal(theirs->transfer.owner_id, theirs->owner_id);
    check();
    let_it_end(thread);
}

static void within_the_goal_idle_threads_keep_their_blocks(void **state) {
    (void)state;
    begin();
    get(64 * MIB);
    pthread_t thread = let_another_cache(40);
    uint64_t in_cache = theirs->bytes;
    for (int i = 0; i < 3; i++) {
        now_ns += LONG_NS;
        get(8 * MIB);
    }
    assert_true(in_cache > 0);
    assert_int_equal(theirs->bytes, in_cache);
    go_on();
    let_it_end(thread);
}

static void a_busy_thread_keeps_its_cached_blocks(void **state) {
    (void)state;
    begin();
    pthread_t thread = let_another_cache(40);
    grow_past_the_goal();
    get(30 * MIB);
    now_ns += LONG_NS;
    go_on(); /* the thread frees `kept` */
    get(30 * MIB);
    uint64_t in_cache = theirs->bytes;
    assert_true(in_cache > 0);
    theirs->in_slow_path = true; /* like a thread that waits for the driver in the slow path */
    now_ns += LONG_NS;
    get(30 * MIB);
    assert_int_equal(theirs->bytes, in_cache);
    theirs->in_slow_path = false;
    now_ns += LONG_NS;
    get(30 * MIB);
    assert_int_equal(theirs->bytes, 0);
    check();
    let_it_end(thread);
}

/*
 * Blocks in the transfer cache of a thread that does not allocate go to the pool, even if it
 * frees.
 */
static void blocks_for_a_thread_that_only_frees_go_to_the_pool(void **state) {
    (void)state;
    begin();
    get(64 * MIB);
    need_owners();
    pthread_t asking = let_another_ask(400, 60 * KIB);
    let_another_free(0, 400);
    assert_true(bytes_waiting() > 0);
    grow_past_the_goal();
    get(30 * MIB);
    now_ns += LONG_NS;
    get(30 * MIB);
    assert_int_equal(bytes_waiting(), 0);
    check();
    let_it_end(asking);
}

static void taking_all_quotas_back_skips_inactive_caches(void **state) {
    (void)state;
    begin();
    get(512);
    pthread_t thread = let_another_cache(40);
    assert_int_equal(active(), 2);
    assert_int_equal(pool_trim(pool, false), 0);
    assert_int_equal(active(), 0);
    assert_int_equal(pool->source.quotas, 0);
    assert_int_equal(theirs->bytes + mine()->bytes, 0);
    check();
    go_on();
    assert_int_equal(active(), 1);
    assert_int_equal(pool_trim(pool, false), 0);
    assert_int_equal(active(), 0);
    assert_int_equal(theirs->bytes, 0);
    check();
    let_it_end(thread);
    assert_int_equal(active(), 0);
}

static void an_ended_threads_cache_is_inactive(void **state) {
    (void)state;
    begin();
    pthread_t thread = let_another_cache(40);
    go_on();
    assert_true(theirs->bytes > 0);
    let_it_end(thread);
    assert_true(quota_is_inactive(theirs));
    assert_int_equal(theirs->bytes + counter_get(&theirs->transfer.bytes), 0);
    assert_int_equal(active() + pool->source.quotas, 0);
    check();
}

static void an_inactive_cache_may_be_deactivated_again(void **state) {
    (void)state;
    begin();
    get(100);
    lock_acquire(&pool->source.lock);
    for (int i = 0; i < 2; i++) {
        cache_enter(mine());
        quota_deactivate(mine());
        cache_leave(mine());
    }
    lock_release(&pool->source.lock);
    assert_int_equal(active() + pool->source.quotas, 0);
    drop(get(100));
    assert_int_equal(active(), 1);
    check();
}

/* ---- the size of quotas ---- */

static void the_budget_follows_active_caches_and_not_former_ones(void **state) {
    (void)state;
    begin_on(8 * GIB);
    /* a small program with one thread has no budget for quotas in addition to its slack */
    get(2 * GIB);
    for (int i = 0; i < 30; i++)
        let_it_end(let_another_ask(4, 4096));
    lock_acquire(&pool->source.lock);
    slow_path_recompute(pool);
    uint64_t alone = pool->source.quotas, budget = atomic_load(&pool->source.budget);
    lock_release(&pool->source.lock);
    assert_int_equal(alone, cache_quota(mine()));
    assert_true(budget >= pool->source.goal + alone);
    pthread_t thread = let_another_cache(56);
    lock_acquire(&pool->source.lock);
    slow_path_recompute(pool);
    lock_release(&pool->source.lock);
    assert_true(pool->source.quotas >= alone + theirs->bytes);
    assert_true(atomic_load(&pool->source.budget) >= pool->source.goal + pool->source.quotas);
    go_on();
    let_it_end(thread);
    lock_acquire(&pool->source.lock);
    slow_path_recompute(pool);
    lock_release(&pool->source.lock);
    assert_int_equal(pool->source.quotas, alone);
    check();
}

static void a_small_program_of_one_thread_keeps_no_more_than_the_floor(void **state) {
    (void)state;
    begin_on(8 * GIB);
    for (uint64_t bytes = 4096; bytes <= 512 * MIB; bytes *= 2) {
        drop(get(bytes));
        lock_acquire(&pool->source.lock);
        slow_path_recompute(pool);
        lock_release(&pool->source.lock);
        uint64_t peak = counter_get(&pool->source.counters.allocated.peak);
        assert_true(atomic_load(&pool->source.budget) <= peak + peak / 10 * 3 + 64 * MIB);
    }
    check();
}

static void a_cache_starts_small_and_stays_within_its_quota(void **state) {
    (void)state;
    begin();
    keep_large_blocks();
    get(64 * MIB);
    assert_true(cache_quota(mine()) <= pool->quota_most / 16);
    for (uint64_t i = 0; i < 1000; i++) {
        blocks[i] = get(1 + i * 3777 % (3 * MIB));
        if (i >= 40)
            use_and_drop(blocks[i - 40]);
        assert_true(mine()->bytes <= cache_quota(mine()));
        assert_true(cache_quota(mine()) <= pool->quota_most);
        if (i % 50 == 0)
            finish_all();
    }
    for (int i = 960; i < 1000; i++) {
        use_and_drop(blocks[i]);
        assert_true(mine()->bytes <= cache_quota(mine()));
    }
    check();
}

/* Otherwise the cache would stay small, and its thread would always take the slow path. */
static void a_miss_on_flushed_blocks_raises_the_quota(void **state) {
    (void)state;
    static const uint64_t sizes[] = {4096, 64 * KIB, 256 * KIB};
    for (int s = 0; s < 3; s++) {
        begin();
        keep_large_blocks();
        drop(get(64 * MIB));
        uint64_t first = 0, slow_paths = 0;
        for (int round = 0; round < 60; round++) {
            uint64_t before = pool->peaks.updates;
            for (int i = 0; i < 48; i++)
                blocks[i] = get(sizes[s]);
            for (int i = 0; i < 48; i++)
                use_and_drop(blocks[i]);
            slow_paths = pool->peaks.updates - before;
            first = round == 0 ? slow_paths : first;
            finish_all();
        }
        assert_true(first > 1);
        assert_true(slow_paths <= 1);
        assert_true(mine()->bytes >= 40 * sizes[s]);
        check();
        assert_int_equal(stop(NULL), 0);
    }
}

static void a_small_program_caches_little(void **state) {
    (void)state;
    begin();
    keep_large_blocks();
    for (int round = 0; round < 60; round++) {
        for (int i = 0; i < 8; i++)
            blocks[i] = get((1 + (uint64_t)(round + i) % 15) * 8 * KIB);
        for (int i = 0; i < 8; i++)
            use_and_drop(blocks[i]);
        finish_all();
    }
    struct cache *own = mine();
    lock_acquire(&pool->source.lock);
    assert_false(quota_grow(own, 64 * MIB));
    lock_release(&pool->source.lock);
    assert_true(cache_quota(own) <= budget_highest_goal(&pool->source));
    assert_true(fake->reserved <= budget_highest_goal(&pool->source));
    check();
}

static void a_full_transfer_cache_gets_a_larger_quota(void **state) {
    (void)state;
    begin();
    keep_large_blocks();
    get(200 * MIB);
    need_owners();
    uint64_t before = cache_quota(own_transfer()->cache);
    for (int i = 0; i < 4; i++)
        hand_over(200, MIB);
    uint64_t then = cache_quota(own_transfer()->cache);
    assert_true(then > before);
    assert_true(then <= pool->quota_most);
    check();
}

enum { MANY = 48 };

static uint64_t quotas_seen[MANY];

static void *fill_and_stay(void *at) {
    uint64_t own[16];
    struct cache *cache = mine();
    lock_acquire(&pool->source.lock);
    quota_grow(cache, UINT64_MAX / 2);
    *(uint64_t *)at = cache_quota(cache);
    lock_release(&pool->source.lock);
    for (unsigned i = 0; i < 16; i++)
        own[i] = get(64 * KIB);
    for (unsigned i = 0; i < 16; i++)
        drop(own[i]);
    pthread_barrier_wait(&step);
    pthread_barrier_wait(&step);
    return NULL;
}

static void many_caches_share_the_limit_of_a_few(void **state) {
    (void)state;
    begin();
    get(200 * MIB);
    lock_acquire(&pool->source.lock);
    slow_path_recompute(pool);
    quota_grow(mine(), UINT64_MAX / 2);
    lock_release(&pool->source.lock);
    uint64_t alone = cache_quota(mine());
    pthread_t threads[MANY];
    pthread_barrier_init(&step, NULL, MANY + 1);
    for (unsigned i = 0; i < MANY; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, fill_and_stay, &quotas_seen[i]), 0);
    pthread_barrier_wait(&step);
    assert_int_equal(active(), MANY + 1);
    uint64_t least = alone;
    for (unsigned i = 0; i < MANY; i++) {
        assert_true(quotas_seen[i] > 0 && quotas_seen[i] <= alone);
        least = quotas_seen[i] < least ? quotas_seen[i] : least;
    }
    assert_true(least <= alone / 2);
    lock_acquire(&pool->source.lock);
    uint64_t before = cache_quota(mine());
    /* also lowers the quota of a cache that had a larger share */
    quota_grow(mine(), UINT64_MAX / 2);
    assert_true(cache_quota(mine()) < before);
    lock_release(&pool->source.lock);
    assert_true(pool->source.quotas <= alone * MANY * 3 / 4);
    check();
    pthread_barrier_wait(&step);
    for (unsigned i = 0; i < MANY; i++)
        pthread_join(threads[i], NULL);
    pthread_barrier_destroy(&step);
    assert_int_equal(active(), 1);
    lock_acquire(&pool->source.lock);
    quota_grow(mine(), UINT64_MAX / 2);
    lock_release(&pool->source.lock);
    assert_int_equal(cache_quota(mine()), alone);
    check();
}

/* A smaller quota would send each free to the pool. One of 0 would list an active cache twice. */
static void every_active_cache_has_at_least_its_first_quota(void **state) {
    (void)state;
    begin();
    get(200 * MIB);
    lock_acquire(&pool->source.lock);
    quota_grow(mine(), UINT64_MAX / 2);
    unsigned before = pool->source.active_caches;
    for (unsigned many = QUOTA_CACHES + 1; many < 1000000; many *= 2) {
        pool->source.active_caches = many;
        quota_grow(mine(), 0);
        assert_true(cache_quota(mine()) >= QUOTA_FIRST);
    }
    assert_int_equal(cache_quota(mine()), QUOTA_FIRST);
    pool->source.active_caches = before;
    lock_release(&pool->source.lock);
    assert_int_equal(active(), before);
    check();
}

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(blocks_in_the_cache_of_an_idle_thread_go_to_the_pool),
        TEST(within_the_goal_idle_threads_keep_their_blocks),
        TEST(a_busy_thread_keeps_its_cached_blocks),
        TEST(blocks_for_a_thread_that_only_frees_go_to_the_pool),
        TEST(taking_all_quotas_back_skips_inactive_caches),
        TEST(an_ended_threads_cache_is_inactive),
        TEST(an_inactive_cache_may_be_deactivated_again),
        TEST(the_budget_follows_active_caches_and_not_former_ones),
        TEST(a_small_program_of_one_thread_keeps_no_more_than_the_floor),
        TEST(a_cache_starts_small_and_stays_within_its_quota),
        TEST(a_miss_on_flushed_blocks_raises_the_quota),
        TEST(a_small_program_caches_little),
        TEST(a_full_transfer_cache_gets_a_larger_quota),
        TEST(many_caches_share_the_limit_of_a_few),
        TEST(every_active_cache_has_at_least_its_first_quota),
    };
    return cmocka_run_group_tests_name("quotas", tests, NULL, NULL);
}
