/*
 * Tests deferred frees: the program has freed a block, but a stream or a capture has not reached
 * the free. Look-ups do not find the block, no request gets its memory, and a reclaim makes it free
 * at once.
 */
#include "pool_bench.h"

#include <pthread.h>

static void *drop_in_thread(void *address) {
    drop((uint64_t)(uintptr_t)address);
    return NULL;
}

static struct pool_deferred defer_free(uint64_t address) {
    struct pool_deferred deferred;
    assert_int_equal(pool_defer_free(address, &deferred), 0);
    return deferred;
}

static const uint64_t sizes[] = {1, 512, 5000, 100000, MIB, MIB + 1, 3 * MIB, 20 * MIB};
#define SIZES (sizeof sizes / sizeof *sizes)

static void a_look_up_does_not_find_a_deferred_block(void **state) {
    (void)state;
    start(GIB, REUSE_BARRIER, RELAXED);
    for (size_t i = 0; i < SIZES; i++) {
        uint64_t at = get(sizes[i]);
        struct pool_block block;
        struct pool_deferred again, deferred = defer_free(at);
        assert_int_equal(pool_defer_free(at, &again), -EINVAL);
        assert_int_equal(fake_pool_free(at), -EINVAL);
        assert_int_equal(pool_find(at, &block), -EINVAL);
        assert_true(pool_has(at));
        check();
        pool_reclaim(&deferred);
        assert_int_equal(fake_pool_free(at), -EINVAL);
        check();
    }
}

static void only_the_start_of_a_live_block_can_be_deferred(void **state) {
    (void)state;
    start(GIB, REUSE_BARRIER, RELAXED);
    struct pool_deferred deferred;
    uint64_t small = get(5000), large = get(3 * MIB);
    assert_int_equal(pool_defer_free(small + 512, &deferred), -EINVAL);
    assert_int_equal(pool_defer_free(small + 4, &deferred), -EINVAL);
    assert_int_equal(pool_defer_free(large + 2 * MIB, &deferred), -EINVAL);
    assert_int_equal(pool_defer_free(0x1000, &deferred), -ENOENT);
    assert_false(pool_has(0x1000));
    drop(small);
    drop(large);
    assert_int_equal(pool_defer_free(small, &deferred), -EINVAL);
    assert_int_equal(pool_defer_free(large, &deferred), -EINVAL);
}

static void no_request_gets_a_deferred_block_before_its_reclaim(void **state) {
    (void)state;
    start(64 * MIB, REUSE_BARRIER, RELAXED);
    uint64_t at = get(40 * MIB), other;
    struct pool_deferred deferred = defer_free(at);
    assert_int_equal(pool_alloc(pool, 40 * MIB, &other), -ENOMEM);
    assert_int_equal(pool_trim(pool, false), 0);
    assert_int_equal(fake->releases, 0);
    assert_int_equal(fake_books(pool).active.current, 40 * MIB);
    assert_int_equal(fake_books(pool).requested.current, 0);
    assert_int_equal(pool_unused_bytes(pool), 0);
    pool_reclaim(&deferred);
    assert_int_equal(pool_unused_bytes(pool), 40 * MIB);
    assert_int_equal(get(40 * MIB), at);
}

/* Other streams may never end, so that no context event completes. */
static void a_reclaimed_block_is_free_at_once(void **state) {
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
static void a_reclaimed_block_from_behind_a_barrier_has_not_finished(void **state) {
    (void)state;
    start(256 * MIB, REUSE_BARRIER, TIGHT);
    uint64_t at = get(40 * MIB), other = get(40 * MIB);
    assert_int_equal(pool_mark_externally_visible(at), 0);
    uint64_t number = fake_submit(fake, 0);
    drop(other);
    assert_int_equal(get(40 * MIB), other);
    assert_int_equal(fake->orders, 1);
    struct pool_deferred deferred = defer_free(at);
    pool_reclaim(&deferred);
    assert_false(fake_is_past(fake, 0, number, true));
    assert_int_not_equal(get(40 * MIB), at);
    fake_finish_all(fake);
    assert_true(pool_has_finished(pool, 1)); /* this call queries the driver */
    assert_int_equal(get(40 * MIB), at);
}

static void a_deferred_block_is_forgotten_with_its_context(void **state) {
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
    if (reclaimed++ > 0)
        return false;
    pool_reclaim(&waiting);
    return true;
}

static void before_it_grows_the_pool_reclaims_deferred_blocks(void **state) {
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
    assert_int_equal(stop(NULL), 0);
}

static unsigned reclaim_calls; /* of reclaim_later(); a test sets it to 0 */

/* Reclaims nothing at the first call, and one block at a later call. */
static bool reclaim_later(struct backend *backend, bool all) {
    return reclaim_calls++ > 0 && all && reclaim_one(backend, all);
}

static void before_a_refusal_the_pool_reclaims_again(void **state) {
    (void)state;
    start(64 * MIB, REUSE_BARRIER, RELAXED);
    struct backend_ops ops = *fake->backend.ops;
    ops.reclaim_deferred = reclaim_later;
    reclaim_calls = 0;
    fake->backend.ops = &ops;
    uint64_t at = 0, other;
    for (unsigned i = 0; i < 64; i++)
        at = get(MIB);
    reclaimed = 0;
    waiting = defer_free(at);
    assert_int_equal(pool_alloc(pool, MIB, &other), 0);
    assert_int_equal(other, at);
    assert_int_equal(stop(NULL), 0);
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
    assert_int_equal(stop(NULL), 0);
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
static void a_barrier_of_the_same_thread_is_waited_for(void **state) {
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

/* Callback inside the free, when the block is no longer live. */
static void ask_whether_refused(struct backend *backend, uint64_t address, uint64_t bytes) {
    (void)backend;
    struct pool *owner;
    refused += pool_exceeds(address, bytes, &owner) > 0;
}

/* Any thread may use the memory until the stream reaches the free. */
static void no_use_of_a_block_is_refused_while_it_is_deferred(void **state) {
    (void)state;
    start(GIB, REUSE_BARRIER, RELAXED);
    struct backend_ops ops = *fake->backend.ops;
    ops.freed = ask_whether_refused;
    fake->backend.ops = &ops;
    uint64_t at = get(3 * MIB);
    refused = 0;
    struct pool_deferred deferred = defer_free(at);
    assert_int_equal(refused, 0);
    struct pool *owner = NULL;
    assert_int_equal(pool_exceeds(at, 3 * MIB, &owner), -EAGAIN);
    assert_ptr_equal(owner, pool);
    pool_reclaim(&deferred);
    assert_int_equal(pool_exceeds(at, 1, &owner), 1);
    drop(get(3 * MIB));
    assert_int_equal(refused, 1); /* the plain free has made it free by then */
    assert_int_equal(stop(NULL), 0);
}

static unsigned five(void) {
    return 5;
}

/* Includes a block that was allocated by a retry, and each kind of free. */
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
    assert_int_equal(stop(NULL), 0);
}

/* Half of the blocks are freed without deferral: by the fast path of their owner, and by others. */
static void the_counters_agree_for_each_kind_of_free(void **state) {
    (void)state;
    start(GIB, REUSE_BARRIER, RELAXED);
    struct pool_deferred deferred[100];
    uint64_t at[200];
    for (unsigned round = 0; round < 20; round++) {
        for (unsigned i = 0; i < 200; i++)
            at[i] = get(sizes[(i + round) % (SIZES - 1)]);
        for (unsigned i = 0; i < 100; i++) {
            drop(at[2 * i]);
            deferred[i] = defer_free(at[2 * i + 1]);
        }
        check();
        for (unsigned i = 0; i < 100; i++)
            pool_reclaim(&deferred[(i * 37) % 100]);
        check();
        assert_int_equal(fake_books(pool).allocated.current, 0);
        fake_finish_all(fake);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(a_look_up_does_not_find_a_deferred_block),
        TEST(only_the_start_of_a_live_block_can_be_deferred),
        TEST(no_request_gets_a_deferred_block_before_its_reclaim),
        TEST(a_reclaimed_block_is_free_at_once),
        TEST(a_reclaimed_block_from_behind_a_barrier_has_not_finished),
        TEST(a_deferred_block_is_forgotten_with_its_context),
        TEST(before_it_grows_the_pool_reclaims_deferred_blocks),
        TEST(before_a_refusal_the_pool_reclaims_again),
        TEST(barriers_are_waited_for_before_a_request_is_refused),
        TEST(a_reclaim_of_another_thread_is_not_missed),
        TEST(a_barrier_of_the_same_thread_is_waited_for),
        TEST(no_use_of_a_block_is_refused_while_it_is_deferred),
        TEST(the_backend_is_told_once_of_each_large_block),
        TEST(the_counters_agree_for_each_kind_of_free),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
