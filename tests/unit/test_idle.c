/*
 * Caches asleep and awake: threads that do nothing give up what they have parked before the pool grows
 * past its goal, and a cache that holds nothing costs nobody a look.
 */
#include "handover.h"

static uint64_t now_ns;

static uint64_t clock_of_test(struct backend *backend) {
    (void)backend;
    return now_ns;
}

static struct backend_ops ops;

static void begin(void) {
    start(GIB, POOL_BARRIER, 0);
    ops = *fake->backend.ops;
    ops.clock = clock_of_test;
    fake->backend.ops = &ops;
    now_ns = 1000000;
}

static unsigned awake(void) {
    unsigned caches = 0;
    for (struct cache *cache = pool->awake; cache; cache = cache->next_awake) {
        caches++;
    }
    return caches;
}

/* A thread that parks some and stays until it is let go; then it frees one it has kept. */
static uint64_t kept;
static struct cache *theirs;

static void *park_and_stay(void *how_many) {
    uint64_t mine[256];
    for (uintptr_t i = 0; i < (uintptr_t)how_many; i++) {
        mine[i] = get(64 * KIB);
    }
    kept = get(64 * KIB);
    for (uintptr_t i = 0; i < (uintptr_t)how_many; i++) {
        drop(mine[i]);
    }
    theirs = cache_mine(pool);
    pthread_barrier_wait(&step);
    pthread_barrier_wait(&step);
    drop(kept);
    pthread_barrier_wait(&step);
    pthread_barrier_wait(&step);
    return NULL;
}

static pthread_t let_another_park(unsigned how_many) {
    pthread_t thread;
    pthread_barrier_init(&step, NULL, 2);
    assert_int_equal(pthread_create(&thread, NULL, park_and_stay, (void *)(uintptr_t)how_many), 0);
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
    while (fake->reserved <= pool->goal || fake->reserved == before) {
        get(MIB);
    }
}

static void an_idle_thread_gives_up_what_it_has_parked(void **state) {
    (void)state;
    begin();
    pthread_t thread = let_another_park(40);
    assert_true(theirs->bytes > MIB);
    grow_past_the_goal(); /* which looks at it, */
    get(30 * MIB);
    assert_true(theirs->bytes > MIB); /* but not for long enough */
    now_ns += 10000000;
    get(30 * MIB);
    check();
    assert_int_equal(theirs->bytes, 0);
    assert_true(idle_sleeps(theirs));
    assert_int_equal(theirs->shelf.number, 0);
    go_on();
    assert_false(idle_sleeps(theirs)); /* it wakes when it has something */
    assert_true(theirs->bytes > 0);
    assert_int_equal(theirs->shelf.number, theirs->number);
    check();
    let_it_end(thread);
}

static void within_the_goal_nobody_gives_up_anything(void **state) {
    (void)state;
    begin();
    pthread_t thread = let_another_park(40);
    uint64_t parked = theirs->bytes;
    for (int i = 0; i < 3; i++) {
        now_ns += 10000000;
        get(8 * MIB);
    }
    assert_int_equal(theirs->bytes, parked);
    go_on();
    let_it_end(thread);
}

static void one_that_works_keeps_it(void **state) {
    (void)state;
    begin();
    pthread_t thread = let_another_park(40);
    grow_past_the_goal();
    get(30 * MIB);
    now_ns += 10000000;
    go_on(); /* it frees one */
    get(30 * MIB);
    assert_true(theirs->bytes > MIB);
    theirs->visiting = true; /* and one that waits for the driver in a visit */
    now_ns += 10000000;
    get(30 * MIB);
    assert_true(theirs->bytes > MIB);
    theirs->visiting = false;
    now_ns += 10000000;
    get(30 * MIB);
    assert_int_equal(theirs->bytes, 0);
    check();
    let_it_end(thread);
}

static void the_budget_follows_what_is_parked_and_not_who_ever_was(void **state) {
    (void)state;
    begin();
    get(64 * MIB); /* a small program's budget follows its peak alone */
    for (int i = 0; i < 30; i++) {
        let_it_end(let_another_ask(4, 4096));
    }
    budget_look_at_all(pool);
    uint64_t peak = fake_books(pool).allocated.peak;
    assert_int_equal(atomic_load(&pool->budget), peak + BUDGET_FLOOR + pool->parked);
    assert_true(pool->parked < MIB);
    pthread_t thread = let_another_park(56);
    budget_look_at_all(pool);
    assert_true(pool->parked > MIB);
    assert_int_equal(atomic_load(&pool->budget),
                     fake_books(pool).allocated.peak + BUDGET_FLOOR + pool->parked);
    go_on();
    uint64_t before = pool->parked;
    let_it_end(thread);
    assert_true(pool->parked < before);
}

static void whatever_sleeps_is_not_looked_at_when_all_is_taken_back(void **state) {
    (void)state;
    begin();
    get(512);
    pthread_t thread = let_another_park(40);
    assert_int_equal(awake(), 3); /* the test's, the other's, the common one */
    assert_int_equal(pool_trim(pool, false), 0);
    assert_int_equal(awake(), 1);
    assert_int_equal(pool->parked, 0);
    check();
    go_on();
    assert_int_equal(awake(), 2);
    assert_int_equal(pool_trim(pool, false), 0);
    assert_int_equal(theirs->bytes, 0);
    check();
    let_it_end(thread);
    assert_int_equal(awake(), 1);
}

/* Else nobody would find what it has taken along. The common shelf is emptied whoever sleeps. */
static void one_that_sleeps_takes_nothing_along_from_a_shelf(void **state) {
    (void)state;
    begin();
    gives_in_parts = true;
    get(512);
    struct cache *mine = cache_mine(pool);
    assert_int_equal(pool_trim(pool, false), 0);
    assert_true(idle_sleeps(mine));
    let_it_end(let_another_ask(200, 60 * KIB));
    let_another_free(0, 200); /* whose thread has ended: they are for everybody */
    gives_in_parts = false;
    assert_true(bytes_on_shelves() > MIB);
    assert_true(idle_sleeps(mine));
    pool_sync_end(pool, pool_sync_begin(pool));
    fake_finish_all(fake);
    get(60 * KIB);
    assert_true(!idle_sleeps(mine) || mine->bytes == 0);
    check();
    assert_int_equal(pool_trim(pool, false), 0);
    assert_int_equal(mine->bytes, 0);
    assert_int_equal(bytes_on_shelves(), 0);
}

/* ---- the room of each ---- */

enum { MANY = 3 * CACHES_FULL };

static void *fill_and_stay(void *unused) {
    uint64_t mine[32];
    for (unsigned i = 0; i < 32; i++) {
        mine[i] = get(64 * KIB);
    }
    for (unsigned i = 0; i < 32; i++) {
        drop(mine[i]);
    }
    pthread_mutex_lock(&pool->lock);
    idle_count(cache_mine(pool), idle_parked(cache_mine(pool)));
    pthread_mutex_unlock(&pool->lock);
    pthread_barrier_wait(&step);
    pthread_barrier_wait(&step);
    return unused;
}

static void many_full_caches_share_what_a_few_may_hold(void **state) {
    (void)state;
    begin();
    get(100);
    pthread_t threads[MANY];
    pthread_barrier_init(&step, NULL, MANY + 1);
    for (unsigned i = 0; i < MANY; i++) {
        assert_int_equal(pthread_create(&threads[i], NULL, fill_and_stay, NULL), 0);
    }
    pthread_barrier_wait(&step);
    assert_int_equal(pool->full, MANY);
    assert_int_equal(pool->cache_room, pool->cache_bytes_max * CACHES_FULL / MANY);
    pthread_barrier_wait(&step);
    for (unsigned i = 0; i < MANY; i++) {
        pthread_join(threads[i], NULL);
    }
    assert_int_equal(pool->full, 0);
    assert_int_equal(pool->cache_room, pool->cache_bytes_max);
}

/* Or it would stay small: what may not be parked is not, and nothing is seen to be held. */
static void a_thread_at_work_has_room_to_park_before_it_parks(void **state) {
    (void)state;
    begin();
    get(64 * MIB);
    budget_look_at_all(pool);
    uint64_t before = atomic_load(&pool->budget);
    for (int i = 0; i < 1100; i++) {
        drop(get(4096 + 512 * (i % 40)));
    }
    for (int i = 0; i < 64; i++) { /* what is not at hand is asked of the pool */
        get(64 * KIB);
    }
    assert_int_equal(pool->working, 1);
    budget_look_at_all(pool);
    assert_true(atomic_load(&pool->budget) >=
                before + pool->cache_bytes_max * (1 + CACHE_LARGE_FACTOR));
    idle_take_all_back(pool);
    assert_int_equal(pool->working, 0);
    check();
}

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(an_idle_thread_gives_up_what_it_has_parked),
        TEST(within_the_goal_nobody_gives_up_anything),
        TEST(one_that_works_keeps_it),
        TEST(the_budget_follows_what_is_parked_and_not_who_ever_was),
        TEST(a_thread_at_work_has_room_to_park_before_it_parks),
        TEST(whatever_sleeps_is_not_looked_at_when_all_is_taken_back),
        TEST(one_that_sleeps_takes_nothing_along_from_a_shelf),
        TEST(many_full_caches_share_what_a_few_may_hold),
    };
    return cmocka_run_group_tests_name("idle caches", tests, NULL, NULL);
}
