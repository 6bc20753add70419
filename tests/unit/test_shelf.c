/*
 * Small blocks on their way from a thread that only frees to one that only allocates: they are handed
 * out when their work is past and not before, and what waits for a taker is bounded and given up
 * when memory is short.
 */
#include "handover.h"

#include "exchange.h"

/* The asking thread may have some more ahead. */
static bool gets_one(uint64_t bytes) {
    for (int i = 0; i < 64; i++) {
        if (was_freed(get(bytes))) {
            return true;
        }
    }
    return false;
}

static void begin(void) {
    start(GIB, POOL_BARRIER, RELAXED);
    gives_in_parts = true;
    get(100);
    assert_int_equal(pool->cache_bytes_max, 4 * MIB);
}

static void what_one_thread_frees_another_gets(void **state) {
    (void)state;
    begin();
    hand_over_mixed(200, 60 * KIB, 4, 120 * KIB);
    uint64_t waiting = waiting_shelf()->bytes;
    assert_true(waiting > MIB && waiting <= 4 * MIB);
    assert_true(waiting_shelf()->count > 1);
    fake_finish_all(fake);
    uint64_t reserved = fake->reserved, parked = cache_mine(pool)->bytes;
    assert_true(gets_one(60 * KIB));
    for (int i = 0; i < 12; i++) {
        assert_true(was_freed(get(60 * KIB)));
        check();
    }
    assert_true(gets_one(120 * KIB));
    assert_true(parked < 2 * MIB);
    assert_true(waiting_shelf()->bytes < waiting);
    assert_int_equal(fake->reserved, reserved);
}

static void a_shelved_block_waits_for_its_work(void **state) {
    (void)state;
    begin();
    hand_over_mixed(200, 60 * KIB, 4, 120 * KIB);
    uint64_t waiting = waiting_shelf()->bytes;
    for (int i = 0; i < 16; i++) {
        assert_false(was_freed(get(60 * KIB)));
        check();
    }
    assert_int_equal(waiting_shelf()->bytes, waiting);
}

static void nor_is_a_crate_taken_along_before_its_own_is(void **state) {
    (void)state;
    begin();
    hand_over_mixed(200, 60 * KIB, 4, 120 * KIB);
    fake_finish_all(fake);
    struct shelf *shelf = waiting_shelf();
    shelf->crates[(shelf->first + 1) % SHELF_CRATES].stamp += 100; /* as if packed much later */
    unsigned crates = shelf->count;
    assert_true(gets_one(60 * KIB));
    assert_int_equal(shelf->count, crates - 1);
    check();
}

static void a_cache_without_room_takes_what_it_could_use(void **state) {
    (void)state;
    begin();
    uint64_t own[16];
    for (int i = 0; i < 16; i++) {
        own[i] = get((200 + 8 * (uint64_t)i) * KIB);
    }
    hand_over_mixed(200, 60 * KIB, 4, 120 * KIB);
    for (int i = 0; i < 16; i++) {
        drop(own[i]);
    }
    assert_true(cache_mine(pool)->bytes > 3 * MIB);
    fake_finish_all(fake);
    unsigned crates = waiting_shelf()->count;
    uint64_t waiting = waiting_shelf()->bytes;
    assert_true(was_freed(get(118 * KIB)));
    check();
    assert_int_equal(waiting_shelf()->count, crates);
    assert_true(waiting_shelf()->bytes < waiting);
    for (unsigned i = 0; i < crates; i++) {
        const struct crate *crate =
            &waiting_shelf()->crates[(waiting_shelf()->first + i) % SHELF_CRATES];
        assert_true(crate->used > 0); /* the smaller ones are still in it */
    }
}

static void what_collects_in_a_cache_that_is_never_added_to_goes_back(void **state) {
    (void)state;
    begin();
    enum { ROUNDS = 12, EACH = 80 };
    ask_for(ROUNDS * EACH, 60 * KIB, 4, 400 * KIB);
    bool went_back = false;
    for (unsigned round = 0; round < ROUNDS; round++) {
        let_another_free(round * EACH, EACH);
        fake_finish_all(fake);
        for (int i = 0; i < 50; i++) {
            uint64_t before = cache_mine(pool)->bytes;
            get(60 * KIB); /* for which none of the others is used */
            went_back |= cache_mine(pool)->bytes + 60 * KIB < before;
        }
        assert_true(cache_mine(pool)->bytes <= 4 * MIB);
        check();
    }
    assert_true(went_back);
}

static void a_shelf_is_given_up_when_memory_is_short(void **state) {
    (void)state;
    start(64 * MIB, POOL_BARRIER, RELAXED);
    hand_over(400, 60 * KIB);
    assert_true(waiting_shelf()->bytes > 0);
    fake_finish_all(fake);
    get(63 * MIB);
    assert_int_equal(waiting_shelf()->bytes, 0);
    assert_int_equal(waiting_shelf()->count, 0);
    check();
}

static void there_are_only_so_many_crates(void **state) {
    (void)state;
    start(GIB, POOL_BARRIER, RELAXED);
    keep_large_blocks();
    for (int round = 0; round < SHELF_CRATES + 4; round++) {
        hand_over(CACHE_BIN_BLOCKS + 1, 512);
        assert_true(waiting_shelf()->count <= SHELF_CRATES);
    }
    assert_int_equal(waiting_shelf()->count, SHELF_CRATES);
}

/* A thread that frees much at once is not one that never asks for anything. */
static uint64_t bytes_max_seen[2];
static uint32_t gifts_seen[2];

static void *free_all_and_ask(void *unused) {
    for (int round = 0; round < 2; round++) {
        for (unsigned i = 0; i < count; i++) {
            pool_free(blocks[i]);
        }
        gifts_seen[round] = cache_mine(pool)->gifts;
        bytes_max_seen[round] = cache_mine(pool)->bytes_max;
        for (unsigned i = 0; i < count; i++) {
            pool_alloc(pool, 60 * KIB, &blocks[i]);
        }
    }
    return unused;
}

static void a_full_cache_is_given_away_some_times_before_it_is_in_parts(void **state) {
    (void)state;
    begin();
    count = 40;
    for (unsigned i = 0; i < count; i++) {
        blocks[i] = get(60 * KIB);
    }
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, free_all_and_ask, NULL), 0);
    pthread_join(thread, NULL);
    assert_int_equal(gifts_seen[0], 1);
    assert_int_equal(gifts_seen[1], 0); /* it had asked in between */
    assert_int_equal(bytes_max_seen[0], pool->cache_bytes_max);
    check();
}

static void a_thread_alone_packs_no_crate(void **state) {
    (void)state;
    begin();
    for (unsigned i = 0; i < 200; i++) {
        blocks[i] = get(60 * KIB);
    }
    for (unsigned i = 0; i < 200; i++) {
        use_and_drop(blocks[i]);
    }
    assert_int_equal(waiting_shelf()->count, 0);
    check();
}

/* ---- whose shelf ---- */

static void *ask_for_some(void *unused) {
    uint64_t address;
    for (int i = 0; i < 100; i++) {
        pool_alloc(pool, 60 * KIB, &address);
    }
    return unused;
}

static void a_crate_waits_for_the_thread_that_asked(void **state) {
    (void)state;
    begin();
    if (!cache_can_bias()) {
        skip();
    }
    hand_over(200, 60 * KIB);
    uint64_t waiting = cache_mine(pool)->shelf.bytes;
    assert_true(waiting > 2 * MIB);
    fake_finish_all(fake);
    pthread_t other;
    assert_int_equal(pthread_create(&other, NULL, ask_for_some, NULL), 0);
    pthread_join(other, NULL);
    assert_int_equal(cache_mine(pool)->shelf.bytes, waiting);
    assert_true(gets_one(60 * KIB));
    check();
}

static void *take_a_cache(void *unused) {
    return cache_find(pool) ? unused : (void *)1;
}

/* Nor does it wait for the next thread of that one's cache, nor for none. */
static void what_an_ended_thread_asked_for_is_for_everybody(void **state) {
    (void)state;
    for (int with_another = 0; with_another < 2; with_another++) {
        begin();
        pthread_t asking = let_another_ask(200, 60 * KIB), other;
        if (with_another) { /* whose cache is the next thread's */
            assert_int_equal(pthread_create(&other, NULL, take_a_cache, NULL), 0);
            pthread_join(other, NULL);
        }
        let_it_end(asking);
        let_another_free(0, 200);
        assert_true(pool->common->shelf.bytes > 2 * MIB);
        fake_finish_all(fake);
        assert_true(gets_one(60 * KIB));
        check();
        assert_int_equal(stop(NULL), 0);
    }
}

static void crates_for_an_ended_thread_go_to_the_pages(void **state) {
    (void)state;
    begin();
    if (!cache_can_bias()) {
        skip();
    }
    pthread_t other = let_another_ask(200, 60 * KIB);
    let_another_free(0, 200);
    assert_true(bytes_on_shelves() > 2 * MIB);
    assert_int_equal(pool->common->shelf.bytes, 0);
    let_it_end(other);
    assert_int_equal(bytes_on_shelves(), 0);
    check();
}

static uint64_t now_and_then_large(unsigned turn) {
    return turn % 16 == 0 ? 2 * MIB : (1 + turn % 100) * KIB;
}

/* Two threads that ask, two that free, and one that takes everything back time and again. */
static void nothing_is_lost_between_threads_and_whoever_takes_it_back(void **state) {
    (void)state;
    begin();
    struct exchange pairs[2] = {{.places = EXCHANGE_MOST, .bytes = now_and_then_large},
                                {.places = EXCHANGE_MOST, .bytes = now_and_then_large}};
    for (int i = 0; i < 2; i++) {
        exchange_start_asking(&pairs[i]);
        exchange_start_freeing(&pairs[i]);
    }
    for (int i = 0; i < 400; i++) {
        pool_trim(pool, false);
        nanosleep(&(struct timespec){.tv_nsec = 200000}, NULL);
    }
    assert_true(exchange_end(&pairs[0]));
    assert_true(exchange_end(&pairs[1]));
    check();
    assert_int_equal(fake_books(pool).requested.current, 100); /* what the test holds */
}

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(what_one_thread_frees_another_gets),
        TEST(a_shelved_block_waits_for_its_work),
        TEST(nor_is_a_crate_taken_along_before_its_own_is),
        TEST(a_cache_without_room_takes_what_it_could_use),
        TEST(what_collects_in_a_cache_that_is_never_added_to_goes_back),
        TEST(a_shelf_is_given_up_when_memory_is_short),
        TEST(there_are_only_so_many_crates),
        TEST(a_full_cache_is_given_away_some_times_before_it_is_in_parts),
        TEST(a_thread_alone_packs_no_crate),
        TEST(a_crate_waits_for_the_thread_that_asked),
        TEST(what_an_ended_thread_asked_for_is_for_everybody),
        TEST(crates_for_an_ended_thread_go_to_the_pages),
        TEST(nothing_is_lost_between_threads_and_whoever_takes_it_back),
    };
    return cmocka_run_group_tests_name("the shelf of small blocks", tests, NULL, NULL);
}
