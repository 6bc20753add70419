/*
 * Look-ups of addresses and of live memory. They take no source.lock, and run while other threads
 * allocate and free.
 */
#include "pool_bench.h"

#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

/*
 * Looks up many addresses of blocks that lie in all positions relative to multiples of the slab
 * size and of its half.
 */
static void a_block_is_found_wherever_it_lies(void **state) {
    (void)state;
    static const uint64_t steps[] = {512,       512 * 63,    512 * 64, 512 * 65,    MIB - 512, MIB,
                                     MIB + 512, 3 * MIB / 2, 2 * MIB,  5 * MIB / 2, 7 * MIB};
    start(GIB, REUSE_BARRIER, RELAXED);
    uint64_t at[88], bytes[88];
    for (unsigned i = 0; i < 88; i++) {
        bytes[i] = steps[(i * 7 + i / 11) % 11];
        at[i] = get(bytes[i]);
    }
    check();
    for (unsigned i = 0; i < 88; i++) {
        struct pool_block block;
        for (uint64_t inside = 0; inside < bytes[i]; inside += 65536 - 512) {
            assert_int_equal(pool_find(at[i] + inside, &block), 0);
            assert_int_equal(block.address, at[i]);
            assert_int_equal(block.requested, bytes[i]);
        }
        if (i % 2) {
            drop(at[i]);
            assert_int_equal(pool_find(at[i] + bytes[i] / 2, &block), -EINVAL);
        }
    }
}

/* Blocks of the next context reuse the descriptors of the same slabs. */
static void a_forgotten_block_is_not_found(void **state) {
    (void)state;
    uint64_t first = 0;
    start(GIB, REUSE_BARRIER, RELAXED);
    for (unsigned i = 0; i < 1000; i++)
        first = i ? (get(512 * (1 + i % 7)), first) : get(512);
    pool_forget(pool);
    struct pool_block block;
    assert_int_equal(pool_find(first, &block), -ENOENT);
    for (unsigned i = 0; i < 300; i++) {
        uint64_t at = get(3000 + i);
        assert_int_equal(pool_find(at + 2999, &block), 0);
        assert_int_equal(block.address, at);
    }
    check();
}

/* Small and large blocks alternate. A flag belongs to one allocation of a block. */
static void any_number_of_blocks_has_a_flag(void **state) {
    (void)state;
    static uint64_t at[3000];
    start(8 * GIB, REUSE_BARRIER, RELAXED);
    for (unsigned i = 0; i < 3000; i++) {
        at[i] = get(i % 3 ? 1000 : MIB + 512);
        if (i % 2)
            assert_int_equal(pool_set_flag(at[i] + 10, i % 4 == 1), 0);
    }
    for (unsigned i = 0; i < 3000; i++) {
        assert_int_equal(pool_flag(at[i] + 600), i % 2 ? i % 4 == 1 : -ENOENT);
        uint64_t id = pool_block_id(at[i]);
        assert_true(id > 0 && id < (uint64_t)1 << 32);
        assert_int_equal(pool_set_flag(at[i], i % 4 != 1), 0);
        assert_int_equal(pool_flag(at[i]), i % 4 != 1);
        assert_int_equal(pool_block_id(at[i]), id);
        if (i > 0)
            assert_int_not_equal(pool_block_id(at[i - 1]), id);
    }
    for (unsigned i = 0; i < 3000; i++) {
        drop(at[i]);
        assert_int_equal(pool_flag(at[i]), -ENOENT);
        assert_int_not_equal(pool_set_flag(at[i], true), 0);
    }
    for (unsigned i = 0; i < 3000; i++)
        assert_int_equal(pool_flag(get(i % 3 ? 1000 : MIB + 512)), -ENOENT);
    assert_int_equal(pool_flag(0), -ENOENT);
    assert_int_equal(pool_set_flag(0, true), -ENOENT);
    check();
}

static uint64_t sought[2];
static atomic_uint answered;

static void *look_up_both(void *unused) {
    struct pool_block block;
    (void)unused;
    for (unsigned i = 0; i < 2; i++)
        if (pool_find(sought[i] + MIB - 1, &block) == 0 && pool_block_id(sought[i] + MIB - 1))
            answered++;
    return NULL;
}

/* Returns how many answers another thread gets while this thread holds source.lock. Waits up to 5 s
 * for the expected number. */
static unsigned answered_while_held(void *(*look_up)(void *), unsigned expected) {
    pthread_t thread;
    answered = 0;
    pool_lock(pool);
    pthread_create(&thread, NULL, look_up, NULL);
    for (unsigned i = 0; i < 5000 && answered < expected; i++)
        usleep(1000);
    unsigned in_time = answered;
    pool_unlock(pool);
    assert_int_equal(pthread_join(thread, NULL), 0);
    return in_time;
}

/* The holder of source.lock may be inside a long driver call. */
static void a_look_up_waits_for_no_lock(void **state) {
    (void)state;
    start(GIB, REUSE_BARRIER, RELAXED);
    sought[0] = get(MIB);
    sought[1] = get(3 * MIB);
    pool_block_id(sought[0]);
    pool_block_id(sought[1]);
    assert_int_equal(answered_while_held(look_up_both, 2), 2);
}

/* ---- while other threads work ---- */

static atomic_bool over;

/* Small and large blocks: slabs, segments and their descriptors are created and deleted. */
static void *allocate_and_free(void *unused) {
    uint64_t at[40];
    (void)unused;
    for (unsigned round = 0; round < 300; round++) {
        for (unsigned i = 0; i < 40; i++)
            pool_alloc(pool, (round + i) % 3 ? MIB / 2 + 512 * i : MIB + 512 + 4096 * i, &at[i]);
        for (unsigned i = 0; i < 40; i++)
            pool_free(at[(i * 7) % 40]);
        pool_trim(pool, false);
    }
    over = true;
    return NULL;
}

static void live_blocks_are_found_while_other_threads_work(void **state) {
    (void)state;
    pthread_t thread;
    start(GIB, REUSE_BARRIER, RELAXED);
    uint64_t mine[4] = {get(MIB), get(2000), get(MIB + 512), get(3 * MIB)};
    uint64_t bytes[4] = {MIB, 2000, MIB + 512, 3 * MIB}, wrong = 0, strange = 0, found = 0;
    over = false;
    pthread_create(&thread, NULL, allocate_and_free, NULL);
    for (uint64_t n = 0; !over; n++) {
        struct pool_block block;
        unsigned i = n % 4;
        uint64_t inside = mine[i] + n * 8191 % bytes[i];
        wrong += pool_find(inside, &block) != 0 || block.address != mine[i] ||
                 block.requested != bytes[i];
        uint64_t rest = mine[i] + bytes[i] - inside;
        struct pool *owner[2] = {NULL, NULL};
        wrong += pool_exceeds(inside, rest, &owner[0]) != 0 ||
                 pool_exceeds(inside, rest + 1, &owner[1]) != 1;
        wrong += owner[0] != block.pool || owner[1] != block.pool;
        /* the other thread's memory: any block that contains the address is a right answer */
        uint64_t other = fake->base + n * 40503 % (64 * MIB);
        if (pool_find(other, &block) == 0) {
            found++;
            strange += other - block.address >= block.requested || block.requested > 3 * MIB;
        }
    }
    pthread_join(thread, NULL);
    assert_int_equal(wrong, 0);
    assert_int_equal(strange, 0);
    assert_true(found > 0);
    check();
}

/* ---- what is live ---- */

static struct stats_device statistics;

static void *read_figures(void *unused) {
    (void)unused;
    pool_read(pool, &statistics);
    assert_int_equal(statistics.live_groups, 0); /* pool_read() lists no sizes */
    pool_survey(pool, &statistics, NULL);
    answered++;
    return NULL;
}

static void live_sizes_are_listed_while_others_work(void **state) {
    (void)state;
    uint64_t at[300];
    start(GIB, REUSE_BARRIER, RELAXED);
    for (unsigned i = 0; i < 300; i++)
        at[i] = get(i < 200 ? 700 : i < 290 ? 100000 : MIB + 512);
    for (unsigned i = 0; i < 300; i += 2)
        drop(at[i]);
    statistics = (struct stats_device){0};
    assert_int_equal(answered_while_held(read_figures, 1), 1);
    assert_int_equal(statistics.live_groups, 3);
    assert_true(statistics.live[0].bytes == MIB + 512 && statistics.live[0].count == 5);
    assert_true(statistics.live[1].bytes == 100000 && statistics.live[1].count == 45);
    assert_true(statistics.live[2].bytes == 700 && statistics.live[2].count == 100);
}

/* The size that holds most memory is allocated after hundreds of others. */
static void the_largest_holder_is_named_among_many_sizes(void **state) {
    (void)state;
    start(8 * GIB, REUSE_BARRIER, RELAXED);
    for (unsigned i = 0; i < 2000; i++)
        get(1000 + i * 400);
    for (unsigned i = 0; i < 40; i++)
        get(23 * MIB + 4096);
    statistics = (struct stats_device){0};
    pool_survey(pool, &statistics, NULL);
    assert_int_equal(statistics.live_groups, STATS_LIVE_SIZES);
    assert_true(statistics.live[0].bytes == 23 * MIB + 4096 && statistics.live[0].count == 40);
    for (unsigned i = 0; i < 2000; i++) /* about the same size */
        get(MIB + 512 + i);
    statistics = (struct stats_device){0};
    pool_survey(pool, &statistics, NULL);
    assert_true(statistics.live[0].bytes == 23 * MIB + 4096 && statistics.live[0].count == 40);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(live_sizes_are_listed_while_others_work, stop),
        cmocka_unit_test_teardown(the_largest_holder_is_named_among_many_sizes, stop),
        cmocka_unit_test_teardown(a_block_is_found_wherever_it_lies, stop),
        cmocka_unit_test_teardown(a_forgotten_block_is_not_found, stop),
        cmocka_unit_test_teardown(any_number_of_blocks_has_a_flag, stop),
        cmocka_unit_test_teardown(a_look_up_waits_for_no_lock, stop),
        cmocka_unit_test_teardown(live_blocks_are_found_while_other_threads_work, stop),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
