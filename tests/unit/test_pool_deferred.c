/*
 * Deferred frees: blocks that the program has freed, and that a stream or a capture still holds
 * back. Look-ups do not find them, no request gets their memory, and a reclaim makes them free at
 * once.
 */
#include "pool_bench.h"

#include <pthread.h>

static void *drop_in_thread(void *address) {
    drop((uint64_t)(uintptr_t)address);
    return NULL;
}

static struct pool_deferred defer_free(uint64_t address) {
    struct pool_deferred retired;
    assert_int_equal(pool_defer_free(address, &retired), 0);
    return retired;
}

static const uint64_t sizes[] = {1, 512, 5000, 100000, MIB, MIB + 1, 3 * MIB, 20 * MIB};
#define SIZES (sizeof sizes / sizeof *sizes)

static void a_retired_block_is_gone_for_everybody(void **state) {
    (void)state;
    start(GIB, REUSE_BARRIER, RELAXED);
    for (size_t i = 0; i < SIZES; i++) {
        uint64_t at = get(sizes[i]);
        struct pool_block block;
        struct pool_deferred again, retired = defer_free(at);
        assert_int_equal(pool_defer_free(at, &again), -EINVAL);
        assert_int_equal(fake_pool_free(at), -EINVAL);
        assert_int_equal(pool_find(at, &block), -EINVAL);
        assert_true(pool_has(at));
        check();
        pool_reclaim(&retired);
        assert_int_equal(fake_pool_free(at), -EINVAL);
        check();
    }
}

static void only_the_start_of_a_live_block_can_be_retired(void **state) {
    (void)state;
    start(GIB, REUSE_BARRIER, RELAXED);
    struct pool_deferred retired;
    uint64_t small = get(5000), large = get(3 * MIB);
    assert_int_equal(pool_defer_free(small + 512, &retired), -EINVAL);
    assert_int_equal(pool_defer_free(small + 4, &retired), -EINVAL);
    assert_int_equal(pool_defer_free(large + 2 * MIB, &retired), -EINVAL);
    assert_int_equal(pool_defer_free(0x1000, &retired), -ENOENT);
    assert_false(pool_has(0x1000));
    drop(small);
    drop(large);
    assert_int_equal(pool_defer_free(small, &retired), -EINVAL);
    assert_int_equal(pool_defer_free(large, &retired), -EINVAL);
}

static void a_retired_block_is_nobodys_until_it_comes_back(void **state) {
    (void)state;
    start(64 * MIB, REUSE_BARRIER, RELAXED);
    uint64_t at = get(40 * MIB), other;
    struct pool_deferred retired = defer_free(at);
    assert_int_equal(pool_alloc(pool, 40 * MIB, &other), -ENOMEM);
    assert_int_equal(pool_trim(pool, false), 0);
    assert_int_equal(fake->releases, 0);
    assert_int_equal(fake_books(pool).active.current, 40 * MIB);
    assert_int_equal(fake_books(pool).requested.current, 0);
    assert_int_equal(pool_idle_bytes(pool), 0);
    pool_reclaim(&retired);
    assert_int_equal(pool_idle_bytes(pool), 40 * MIB);
    assert_int_equal(get(40 * MIB), at);
}

/* Other streams may never end, so that no context event completes. */
static void a_retired_block_comes_back_ready(void **state) {
    (void)state;
    start(64 * MIB, REUSE_BARRIER, RELAXED);
    fake_submit(fake, 0);
    fake->busy_for_ever = true;
    for (size_t i = 0; i < 20; i++) {
        uint64_t large = get(40 * MIB), small = get(MIB);
        struct pool_deferred first = defer_free(large), second = defer_free(small);
        pool_reclaim(&first);
        pool_reclaim(&second);
    }
    assert_int_equal(fake->records + fake->waits + fake->orders, 0);
}

/* The block was handed out behind a barrier: the work in front of the barrier may still run. */
static void what_came_from_behind_a_barrier_has_not_finished(void **state) {
    (void)state;
    start(256 * MIB, REUSE_BARRIER, TIGHT);
    uint64_t at = get(40 * MIB), other = get(40 * MIB);
    assert_int_equal(pool_mark_externally_visible(at), 0);
    uint64_t number = fake_submit(fake, 0);
    drop(other);
    assert_int_equal(get(40 * MIB), other);
    assert_int_equal(fake->orders, 1);
    struct pool_deferred retired = defer_free(at);
    pool_reclaim(&retired);
    assert_false(fake_is_past(fake, 0, number, true));
    assert_int_not_equal(get(40 * MIB), at);
    fake_finish_all(fake);
    assert_true(pool_has_finished(pool, 1)); /* this call queries the driver */
    assert_int_equal(get(40 * MIB), at);
}

static void a_retired_block_is_forgotten_with_its_context(void **state) {
    (void)state;
    start(GIB, REUSE_BARRIER, RELAXED);
    struct pool_deferred small = defer_free(get(5000)), large = defer_free(get(3 * MIB));
    pool_forget(pool);
    uint64_t a = get(5000), b = get(3 * MIB);
    check();
    pool_reclaim(&small);
    pool_reclaim(&large);
    check();
    drop(a);
    drop(b);
}

static unsigned reclaimed;
static struct pool_deferred waiting;

static bool reclaim_one(struct backend *backend, bool all) {
    (void)backend;
    (void)all;
    if (reclaimed++ > 0) {
        return false;
    }
    pool_reclaim(&waiting);
    return true;
}

static void before_it_grows_the_pool_asks_what_has_come_free(void **state) {
    (void)state;
    start(64 * MIB, REUSE_BARRIER, RELAXED);
    struct backend_ops ops = *fake->backend.ops;
    ops.reclaim_deferred = reclaim_one;
    fake->backend.ops = &ops;
    uint64_t at = get(40 * MIB);
    assert_int_equal(reclaimed, 0);
    waiting = defer_free(at);
    assert_int_equal(get(40 * MIB), at);
    assert_int_equal(fake->reserves, 1);
    assert_int_equal(reclaimed, 1);
    get(4 * MIB); /* no deferred free remains: no call */
    assert_int_equal(reclaimed, 1);
    stop(NULL);
}

static unsigned reclaim_calls; /* of reclaim_later(); a test sets it to 0 */

/* Reclaims nothing at the first call, and one block at a later call. */
static bool reclaim_later(struct backend *backend, bool all) {
    return reclaim_calls++ > 0 && all && reclaim_one(backend, all);
}

static void before_a_request_is_refused_all_are_asked_again(void **state) {
    (void)state;
    start(64 * MIB, REUSE_BARRIER, RELAXED);
    struct backend_ops ops = *fake->backend.ops;
    ops.reclaim_deferred = reclaim_later;
    reclaim_calls = 0;
    fake->backend.ops = &ops;
    uint64_t at = 0, other;
    for (unsigned i = 0; i < 64; i++) {
        at = get(MIB);
    }
    reclaimed = 0;
    waiting = defer_free(at);
    assert_int_equal(pool_alloc(pool, MIB, &other), 0);
    assert_int_equal(other, at);
    stop(NULL);
}

static bool passed;

static bool pass_barriers(struct backend *backend) {
    (void)backend;
    passed = true;
    return true;
}

/* Checks that a request which needs the only block is served after its deferred free. */
static void gets_the_deferred_block(bool (*reclaim)(struct backend *backend, bool all),
                                    bool (*pass)(struct backend *backend)) {
    start(64 * MIB, REUSE_BARRIER, RELAXED);
    struct backend_ops ops = *fake->backend.ops;
    ops.reclaim_deferred = reclaim;
    ops.pass_barriers = pass;
    fake->backend.ops = &ops;
    uint64_t at = get(40 * MIB), other;
    reclaimed = 0;
    waiting = defer_free(at);
    assert_int_equal(pool_alloc(pool, 40 * MIB, &other), 0);
    assert_int_equal(other, at);
    stop(NULL);
}

/* The stream reached the free before, but its event could not complete. */
static bool reclaim_behind_a_barrier(struct backend *backend, bool all) {
    return passed && reclaim_one(backend, all);
}

static void barriers_are_waited_for_before_a_request_is_refused(void **state) {
    (void)state;
    gets_the_deferred_block(reclaim_behind_a_barrier, pass_barriers);
}

/* Another thread reclaims the block first. The request must still find it. */
static bool reclaim_elsewhere(struct backend *backend) {
    reclaim_one(backend, true);
    return false;
}

static bool reclaim_nothing(struct backend *backend, bool all) {
    (void)backend, (void)all;
    return false;
}

static void a_reclaim_of_another_thread_is_not_missed(void **state) {
    (void)state;
    gets_the_deferred_block(reclaim_nothing, reclaim_elsewhere);
}

/*
 * The native free of the same thread would have waited for the work in front of the barrier. The
 * free of another thread would not.
 */
static void ones_own_barrier_is_waited_for_and_not_anothers(void **state) {
    (void)state;
    for (unsigned own = 0; own < 2; own++) {
        start(64 * MIB, REUSE_BARRIER, TIGHT);
        struct backend_ops ops = *fake->backend.ops;
        ops.reclaim_deferred = reclaim_nothing;
        fake->backend.ops = &ops;
        uint64_t at = get(40 * MIB), kept = get(MIB);
        fake_submit(fake, 0);
        if (own) {
            drop(at);
        } else {
            pthread_t thread;
            assert_int_equal(pthread_create(&thread, NULL, drop_in_thread, (void *)(uintptr_t)at),
                             0);
            pthread_join(thread, NULL);
        }
        assert_int_equal(get(40 * MIB), at);
        assert_int_equal(fake->orders, 1);
        waiting = defer_free(kept);
        fake->done_after = 4;
        pool_reclaim_own(pool);
        assert_int_equal(pool->source.epochs.finished == atomic_load(&pool->source.epochs.safe),
                         own);
        fake->done_after = 0;
        fake_finish_all(fake);
        pool_reclaim(&waiting);
        assert_int_equal(stop(NULL), 0);
    }
}

static struct {
    unsigned came, went;
    uint64_t address, bytes;
} told;

static void note_allocated(struct backend *backend, uint64_t address, uint64_t bytes) {
    (void)backend;
    told.came++;
    told.address = address;
    told.bytes = bytes;
}

static void note_freed(struct backend *backend, uint64_t address, uint64_t bytes) {
    (void)backend;
    told.went += told.address == address && told.bytes == bytes;
}

static unsigned refused;

/* Runs inside the free, when the block is no longer live. */
static void ask_whether_refused(struct backend *backend, uint64_t address, uint64_t bytes) {
    (void)backend;
    struct pool *owner;
    refused += pool_exceeds(address, bytes, &owner) > 0;
}

/* Any thread may use the memory until the stream reaches the free. */
static void no_use_of_a_block_is_refused_while_it_is_retired(void **state) {
    (void)state;
    start(GIB, REUSE_BARRIER, RELAXED);
    struct backend_ops ops = *fake->backend.ops;
    ops.freed = ask_whether_refused;
    fake->backend.ops = &ops;
    uint64_t at = get(3 * MIB);
    refused = 0;
    struct pool_deferred retired = defer_free(at);
    assert_int_equal(refused, 0);
    struct pool *owner = NULL;
    assert_int_equal(pool_exceeds(at, 3 * MIB, &owner), -EAGAIN);
    assert_ptr_equal(owner, pool);
    pool_reclaim(&retired);
    assert_int_equal(pool_exceeds(at, 1, &owner), 1);
    drop(get(3 * MIB));
    assert_int_equal(refused, 1); /* the plain free has made it free by then */
    stop(NULL);
}

static unsigned five(void) {
    return 5;
}

/* Includes a block that only a retry served, and each kind of free. */
static void the_backend_is_told_once_of_each_large_block(void **state) {
    (void)state;
    start(64 * MIB, REUSE_BARRIER, RELAXED);
    struct backend_ops ops = *fake->backend.ops;
    ops.reclaim_deferred = reclaim_later;
    reclaim_calls = 0;
    ops.allocated = note_allocated;
    ops.freed = note_freed;
    ops.requester = five;
    struct requester_row rows[REQUESTERS] = {{0}};
    fake->backend.ops = &ops;
    fake->backend.requesters = rows;
    drop(get(MIB));
    assert_int_equal(told.came, 0);
    drop(get(3 * MIB + 1));
    assert_int_equal(told.came, 1);
    assert_int_equal(told.went, 1);
    drop(get(3 * MIB + 1)); /* from the thread cache */
    assert_int_equal(told.came, 2);
    assert_int_equal(told.went, 2);
    reclaimed = 0;
    uint64_t at = get(40 * MIB), other;
    waiting = defer_free(at);
    assert_int_equal(told.went, 3);
    assert_int_equal(pool_alloc(pool, 40 * MIB, &other), 0);
    assert_int_equal(other, at);
    assert_int_equal(told.came, 4);
    assert_int_equal(pool_alloc(pool, 40 * MIB, &other), -ENOMEM);
    assert_int_equal(told.came, 4);
    assert_int_equal(rows[5].current, 40 * MIB);
    assert_int_equal(rows[5].peak, 40 * MIB);
    assert_int_equal(rows[REQUESTER_UNKNOWN].peak, 0);
    pool_forget(pool);
    assert_int_equal(rows[5].current, 0);
    stop(NULL);
}

/* Half of the blocks are freed at once: by the fast path of their owner, and by other paths. */
static void the_counters_agree_whichever_way_blocks_go(void **state) {
    (void)state;
    start(GIB, REUSE_BARRIER, RELAXED);
    struct pool_deferred retired[100];
    uint64_t at[200];
    for (unsigned round = 0; round < 20; round++) {
        for (unsigned i = 0; i < 200; i++) {
            at[i] = get(sizes[(i + round) % (SIZES - 1)]);
        }
        for (unsigned i = 0; i < 100; i++) {
            drop(at[2 * i]);
            retired[i] = defer_free(at[2 * i + 1]);
        }
        check();
        for (unsigned i = 0; i < 100; i++) {
            pool_reclaim(&retired[(i * 37) % 100]);
        }
        check();
        assert_int_equal(fake_books(pool).allocated.current, 0);
        fake_finish_all(fake);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(a_retired_block_is_gone_for_everybody),
        TEST(only_the_start_of_a_live_block_can_be_retired),
        TEST(a_retired_block_is_nobodys_until_it_comes_back),
        TEST(a_retired_block_comes_back_ready),
        TEST(what_came_from_behind_a_barrier_has_not_finished),
        TEST(a_retired_block_is_forgotten_with_its_context),
        TEST(before_it_grows_the_pool_asks_what_has_come_free),
        TEST(before_a_request_is_refused_all_are_asked_again),
        TEST(barriers_are_waited_for_before_a_request_is_refused),
        TEST(a_reclaim_of_another_thread_is_not_missed),
        TEST(ones_own_barrier_is_waited_for_and_not_anothers),
        TEST(no_use_of_a_block_is_refused_while_it_is_retired),
        TEST(the_backend_is_told_once_of_each_large_block),
        TEST(the_counters_agree_whichever_way_blocks_go),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
