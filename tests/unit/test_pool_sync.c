/*
 * Tests when freed memory is handed out again: with and without pressure, in each reuse mode, on
 * drivers without context events, during captures, and for externally visible memory. The fake
 * device counts violations of laws 2 and 3 (fake.h), and stop() fails if there are any.
 *
 * RELAXED is a budget that no test reaches. TIGHT is one that is exceeded at once, so there is
 * pressure from the first segment on.
 */
#include "pool_bench.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

/*
 * Allocates blocks of that size, and frees them again. Returns whether one overlaps the memory at
 * `old`.
 */
static bool is_among(uint64_t most_bytes, uint64_t old, uint64_t bytes) {
    static uint64_t got[8192];
    uint64_t most = most_bytes / bytes, count_most = most_bytes / (24 * KIB);
    most = most > count_most ? count_most : most;
    bool back = false;
    uint64_t count = 0;
    while (!back && count < most) {
        got[count] = get(bytes);
        back = overlap(got[count], bytes, old, bytes);
        count++;
    }
    while (count > 0)
        drop(got[--count]);
    return back;
}

/*
 * is_not_reused() leaves up to 96 MiB in caches and in free memory, which the pool hands out first.
 * is_reused() therefore allocates twice as much.
 */
static bool is_not_reused(uint64_t old, uint64_t bytes) {
    return !is_among(96 * MIB, old, bytes);
}

static bool is_reused(uint64_t old, uint64_t bytes) {
    return is_among(192 * MIB, old, bytes);
}

/* ---- without pressure ---- */

static void without_pressure_frees_call_no_driver(void **state) {
    (void)state;
    start(4 * GIB, REUSE_BARRIER, RELAXED);
    uint64_t at[256];
    for (int i = 0; i < 256; i++)
        at[i] = get(i % 4 ? 1 + 777 * (uint64_t)i : 2 * MIB + 512 * (uint64_t)i);
    for (int i = 0; i < 256; i++)
        use_and_drop(at[i]);
    assert_int_equal(fake->records + fake->queries + fake->orders + fake->waits, 0);
    assert_int_equal(fake->synchronizes, 0);
}

static void without_pressure_memory_comes_back_after_its_work(void **state) {
    (void)state;
    static const uint64_t sizes[] = {100, 64 * KIB, MIB, 3 * MIB};
    for (int i = 0; i < 4; i++) {
        start(4 * GIB, REUSE_BARRIER, RELAXED);
        uint64_t at = get(sizes[i]);
        use_and_drop(at);
        assert_true(is_not_reused(at, sizes[i]));
        assert_int_equal(fake->orders + fake->waits, 0);
        fake_finish_all(fake);
        assert_true(is_reused(at, sizes[i]));
        assert_int_equal(fake->orders + fake->waits, 0);
        check();
        if (i < 3)
            assert_int_equal(stop(NULL), 0);
    }
}

static void work_submitted_after_the_record_is_waited_for_too(void **state) {
    (void)state;
    start(4 * GIB, REUSE_BARRIER, RELAXED);
    uint64_t a = get(3 * MIB), b = get(3 * MIB);
    use_and_drop(a);
    assert_true(is_not_reused(a, 3 * MIB)); /* closes a's epoch outside a free */
    use_and_drop(b);
    fake_finish_one(fake, 0);
    assert_true(is_reused(a, 3 * MIB));
    assert_true(is_not_reused(b, 3 * MIB));
    fake_finish_all(fake);
    assert_true(is_reused(b, 3 * MIB));
}

/* ---- under pressure ---- */

static void under_pressure_each_large_free_records_one_event(void **state) {
    (void)state;
    start(GIB, REUSE_BARRIER, TIGHT);
    uint64_t at[8];
    for (int i = 0; i < 8; i++)
        at[i] = get(3 * MIB);
    for (unsigned i = 0; i < 8; i++) {
        use_and_drop(at[i]);
        assert_int_equal(fake->records, i + 1);
        assert_true(fake->events[i].in_free);
    }
    assert_int_equal(fake->orders + fake->waits + fake->synchronizes, 0);
}

static void under_pressure_small_frees_share_events(void **state) {
    (void)state;
    start(GIB, REUSE_BARRIER, TIGHT);
    uint64_t at[64];
    for (int i = 0; i < 64; i++)
        at[i] = get(1000);
    for (int i = 0; i < 64; i++)
        use_and_drop(at[i]);
    assert_int_equal(fake->records, 1);
}

static void few_bytes_of_a_large_budget_need_no_event_of_their_own(void **state) {
    (void)state;
    start(GIB, REUSE_BARRIER, 256 * MIB);
    get(250 * MIB); /* pressure from here on */
    uint64_t at[256];
    for (int i = 0; i < 256; i++)
        at[i] = get(1000);
    for (int i = 0; i < 256; i++)
        use_and_drop(at[i]); /* the first free under pressure records */
    assert_int_equal(fake->records, 1);
    for (int i = 0; i < 8; i++)
        at[i] = get(256 * KIB);
    for (int i = 0; i < 8; i++)
        use_and_drop(at[i]);
    assert_int_equal(fake->records, 2);
}

static void *drop_many(void *at) {
    for (int i = 0; i < 128; i++)
        use_and_drop(((uint64_t *)at)[i]);
    return NULL;
}

static void an_event_of_one_thread_serves_what_the_others_freed_before(void **state) {
    (void)state;
    start(GIB, REUSE_BARRIER, TIGHT);
    uint64_t at[256];
    for (int i = 0; i < 256; i++)
        at[i] = get(1000);
    for (int i = 0; i < 60; i++)
        use_and_drop(at[i]);
    assert_int_equal(fake->records, 1);
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, drop_many, &at[128]), 0);
    pthread_join(thread, NULL);
    unsigned records = fake->records;
    assert_true(records > 1);
    for (int i = 60; i < 120; i++)
        use_and_drop(at[i]); /* 120 frees since its own last event, 60 since the other thread's */
    assert_int_equal(fake->records, records);
}

static void under_pressure_memory_comes_back_behind_one_barrier(void **state) {
    (void)state;
    start(GIB, REUSE_BARRIER, TIGHT);
    uint64_t at = get(3 * MIB);
    unsigned reserves = fake->reserves;
    use_and_drop(at);
    assert_int_equal(get(3 * MIB), at);
    assert_int_equal(fake->orders, 1);
    assert_int_equal(fake->waits, 0);
    assert_int_equal(fake->reserves, reserves);
    assert_true(fake_is_past(fake, 0, 1, false));
    assert_false(fake_is_past(fake, 0, 1, true));
    assert_int_equal(fake_books(pool).barriers, 1);
    assert_int_equal(fake_books(pool).cpu_waits, 0);
}

static void one_barrier_serves_every_block_freed_before_it(void **state) {
    (void)state;
    start(GIB, REUSE_BARRIER, TIGHT);
    uint64_t at[8];
    for (int i = 0; i < 8; i++)
        at[i] = get(3 * MIB);
    for (int i = 0; i < 8; i++)
        use_and_drop(at[i]);
    get(24 * MIB - 512); /* needs all eight blocks */
    unsigned orders = fake->orders;
    assert_true(orders <= 2);
    for (int i = 0; i < 8; i++)
        get(3 * MIB);
    assert_int_equal(fake->orders, orders);
}

static void in_wait_mode_there_are_no_barriers(void **state) {
    (void)state;
    start(GIB, REUSE_WAIT, TIGHT);
    uint64_t at = get(3 * MIB);
    use_and_drop(at);
    assert_int_equal(get(3 * MIB), at);
    assert_int_equal(fake->orders, 0);
    assert_int_equal(fake->waits, 1);
    assert_true(fake_is_past(fake, 0, 1, true));
    assert_int_equal(fake_books(pool).cpu_waits, 1);
}

static void concurrent_streams_are_not_serialised_for_the_oldest_block(void **state) {
    (void)state;
    start(GIB, REUSE_BARRIER, 32 * MIB);
    pool_expect_streams(4);
    uint64_t at[8];
    for (int i = 0; i < 8; i++)
        at[i] = get(4 * MIB);
    for (int i = 0; i < 8; i++) /* each free records an event */
        use_and_drop(at[i]);
    assert_int_equal(get(4 * MIB), at[0]);
    assert_int_equal(fake->orders, 0);
    assert_int_equal(fake->waits, 1);
    assert_true(fake_is_past(fake, 0, 1, true));
    assert_false(fake_is_past(fake, 0, 8, false));
    pool_expect_streams(0);
    get(4 * MIB);
    assert_int_equal(fake->orders, 1); /* one stream cannot be serialised */
}

static void the_cpu_does_not_wait_if_little_work_is_behind_the_event(void **state) {
    (void)state;
    start(4 * GIB, REUSE_BARRIER, 2 * GIB);
    pool_expect_streams(4);
    uint64_t at[20];
    for (int i = 0; i < 20; i++)
        at[i] = get(100 * MIB);
    for (int i = 0; i < 4; i++) /* a fifth of the budget; three events behind the first */
        use_and_drop(at[i]);
    assert_int_equal(get(100 * MIB), at[0]);
    assert_int_equal(fake->orders, 1);
    assert_int_equal(fake->waits, 0);
    for (int i = 4; i < 12; i++)
        use_and_drop(at[i]);
    get(100 * MIB), get(100 * MIB), get(100 * MIB); /* made safe by the barrier */
    assert_int_equal(get(100 * MIB), at[4]);
    assert_int_equal(fake->orders, 1);
    assert_int_equal(fake->waits, 1);
    pool_expect_streams(0);
}

static void the_cpu_waits_if_a_barrier_is_not_enough(void **state) {
    (void)state;
    start(GIB, REUSE_BARRIER, TIGHT);
    fake->order_code = -EBUSY; /* as if other contexts reach the memory */
    uint64_t at = get(3 * MIB);
    use_and_drop(at);
    assert_int_equal(get(3 * MIB), at);
    assert_int_equal(fake->waits, 1);
    assert_true(fake_is_past(fake, 0, 1, true));
}

/* The event may capture a kernel that spins until later work sets a flag. */
static void the_pool_grows_rather_than_waits_for_an_event_recorded_later(void **state) {
    (void)state;
    start(GIB, REUSE_BARRIER, 16 * MIB);
    uint64_t at = get(3 * MIB);
    use_and_drop(at);
    uint64_t other = get(3 * MIB); /* records an event outside a free */
    assert_true(other != at);
    fake->busy_for_ever = true;
    for (int i = 0; i < 20; i++) /* grows past the budget */
        assert_true(get(3 * MIB) != at);
    assert_int_equal(fake->orders + fake->waits, 0);
}

static void a_pool_under_pressure_stays_within_its_budget(void **state) {
    (void)state;
    static const uint64_t sizes[] = {3 * MIB, 5 * MIB + 512, 7 * MIB};
    static const enum reuse modes[] = {REUSE_BARRIER, REUSE_WAIT};
    for (int round = 0; round < 4; round++) {
        start(4 * GIB, modes[round / 2], 64 * MIB);
        for (unsigned i = 0; i < 4000; i++) /* no work completes by itself */
            use_and_drop(get(round % 2 ? sizes[i % 3] : 1 + (uint64_t)i * 31 % (512 * KIB)));
        assert_true(fake->reserved_peak <= 64 * MIB);
        check();
        if (round < 3)
            assert_int_equal(stop(NULL), 0);
    }
}

static void without_a_budget_the_peak_and_a_floor_decide(void **state) {
    (void)state;
    start(4 * GIB, REUSE_BARRIER, 0);
    for (int i = 0; i < 400; i++)
        use_and_drop(get(4 * MIB));
    assert_true(fake->reserved_peak <= 80 * MIB);
    uint64_t large = get(640 * MIB);
    for (int i = 0; i < 400; i++)
        use_and_drop(get(4 * MIB));
    assert_true(fake->reserved_peak <= 640 * MIB + 40 * MIB + 80 * MIB);
    drop(large);
}

/* ---- mode REUSE_SYNC ---- */

static void in_sync_mode_every_free_waits(void **state) {
    (void)state;
    static const uint64_t budgets[] = {RELAXED, TIGHT};
    for (int i = 0; i < 2; i++) {
        start(GIB, REUSE_SYNC, budgets[i]);
        static const uint64_t sizes[] = {1, 4096, MIB, MIB + 1, 7 * MIB};
        for (unsigned j = 0; j < 50; j++) {
            uint64_t at = get(sizes[j % 5]);
            uint64_t work = fake_submit(fake, j % FAKE_STREAMS);
            drop(at);
            assert_true(fake_is_past(fake, j % FAKE_STREAMS, work, true));
            assert_int_equal(fake->waits, j + 1);
        }
        uint64_t at[40];
        for (int j = 0; j < 40; j++) /* blocks that the thread's cache keeps */
            at[j] = get(4096);
        for (int j = 0; j < 40; j++) {
            uint64_t work = fake_submit(fake, 1);
            drop(at[j]);
            assert_true(fake_is_past(fake, 1, work, true));
        }
        assert_int_equal(fake->orders, 0);
        if (i == 0)
            assert_int_equal(stop(NULL), 0);
    }
}

#define SYNC_THREADS 48 /* more than BACKEND_SLOTS */
static pthread_barrier_t together;
static uint64_t not_waited[SYNC_THREADS];

static void *sync_frees(void *argument) {
    uintptr_t me = (uintptr_t)argument;
    for (int i = 0; i < 100; i++) {
        uint64_t at;
        if (pool_alloc(pool, 2 * MIB, &at) != 0) {
            not_waited[me] = 1000;
            break;
        }
        uint64_t work = fake_submit(fake, me % FAKE_STREAMS);
        if (i % 10 == 0)
            pthread_barrier_wait(&together);
        fake_pool_free(at);
        not_waited[me] += !fake_is_past(fake, me % FAKE_STREAMS, work, true);
    }
    return NULL;
}

static int slow_wait(struct backend *backend, unsigned slot);
static struct backend_ops slow_ops;
static const struct backend_ops *quick_ops;

static int slow_wait(struct backend *backend, unsigned slot) {
    nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    return quick_ops->wait(backend, slot);
}

static void in_sync_mode_every_free_waits_however_many_threads_there_are(void **state) {
    (void)state;
    start(GIB, REUSE_SYNC, RELAXED);
    quick_ops = fake->backend.ops;
    slow_ops = *quick_ops;
    slow_ops.wait = slow_wait;
    fake->backend.ops = &slow_ops;
    memset(not_waited, 0, sizeof not_waited);
    pthread_t threads[SYNC_THREADS];
    pthread_barrier_init(&together, NULL, SYNC_THREADS);
    for (uintptr_t i = 0; i < SYNC_THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, sync_frees, (void *)i), 0);
    uint64_t missed = 0;
    for (int i = 0; i < SYNC_THREADS; i++) {
        pthread_join(threads[i], NULL);
        missed += not_waited[i];
    }
    pthread_barrier_destroy(&together);
    assert_int_equal(missed, 0);
}

/* ---- captures ---- */

static void during_a_capture_nothing_is_recorded_or_waited_for(void **state) {
    (void)state;
    static const enum reuse modes[] = {REUSE_BARRIER, REUSE_WAIT, REUSE_SYNC};
    for (int i = 0; i < 3; i++) {
        start(GIB, modes[i], TIGHT);
        uint64_t at = get(3 * MIB);
        fake->record_code = fake->order_code = -EBUSY;
        use_and_drop(at);
        assert_int_equal(fake->waits + fake->synchronizes, 0);
        assert_int_equal(fake_books(pool).capture_deferred_frees, 1);
        uint64_t during = get(3 * MIB); /* the pool grows */
        assert_true(during != at);
        fake->record_code = fake->order_code = 0;
        drop(during); /* this free's event covers the earlier free too */
        assert_true(is_reused(at, 3 * MIB));
        check();
        if (i < 2)
            assert_int_equal(stop(NULL), 0);
    }
}

static bool is_captured(struct backend *backend) {
    (void)backend;
    return true;
}

/*
 * Under pressure, a free during a capture waits for all work, as natively, if the backend reports
 * the capture.
 */
static void under_pressure_a_free_during_a_capture_waits_for_all_work(void **state) {
    (void)state;
    static const enum reuse modes[] = {REUSE_BARRIER, REUSE_WAIT, REUSE_SYNC};
    for (int i = 0; i < 3; i++) {
        start(GIB, modes[i], TIGHT);
        const struct backend_ops *before = fake->backend.ops;
        struct backend_ops ops = *before;
        ops.captured = is_captured;
        fake->backend.ops = &ops;
        uint64_t at = get(3 * MIB);
        fake->record_code = fake->order_code = -EBUSY;
        use_and_drop(at);
        assert_int_equal(fake->synchronizes, 1);
        assert_int_equal(fake->waits, 0);
        assert_int_equal(fake_books(pool).capture_deferred_frees, 0);
        assert_int_equal(get(3 * MIB), at);
        fake->record_code = fake->order_code = 0;
        fake->backend.ops = before;
        if (i < 2)
            assert_int_equal(stop(NULL), 0);
    }
}

/* ---- drivers without context events ---- */

static void an_old_driver_is_synchronised_inside_frees_only(void **state) {
    (void)state;
    static const enum reuse modes[] = {REUSE_BARRIER, REUSE_WAIT, REUSE_SYNC};
    for (int i = 0; i < 3; i++) {
        start(GIB, modes[i], TIGHT);
        fake->backend.has_events = false;
        for (unsigned j = 0; j < 20; j++) {
            use_and_drop(get(3 * MIB));
            assert_int_equal(fake->synchronizes, j + 1);
        }
        assert_true(fake->reserved_peak <= 4 * MIB);
        let_hold(MIB);
        uint64_t at[64];
        for (int j = 0; j < 64; j++)
            at[j] = get(5000);
        for (int j = 0; j < 64; j++)
            use_and_drop(at[j]);
        assert_int_equal(fake->synchronizes, modes[i] == REUSE_SYNC ? 84 : 21);
        assert_int_equal(fake->orders + fake->waits + fake->queries, 0);
        check();
        if (i < 2)
            assert_int_equal(stop(NULL), 0);
    }
}

static void without_pressure_an_old_driver_is_synchronised_once_for_many_bytes(void **state) {
    (void)state;
    start(GIB, REUSE_BARRIER, RELAXED);
    fake->backend.has_events = false;
    for (int i = 0; i < 21; i++)
        use_and_drop(get(3 * MIB));
    assert_int_equal(fake->synchronizes, 0);
    use_and_drop(get(3 * MIB));
    assert_int_equal(fake->synchronizes, 1);
    unsigned reserves = fake->reserves;
    for (int i = 0; i < 22; i++)
        get(3 * MIB);
    assert_int_equal(fake->reserves, reserves);
}

static void a_driver_that_claims_events_and_has_none_is_survived(void **state) {
    (void)state;
    start(64 * MIB, REUSE_BARRIER, TIGHT);
    fake->record_code = -ENOSYS;
    uint64_t at = get(3 * MIB), other;
    use_and_drop(at);
    assert_true(get(3 * MIB) != at);
    assert_int_equal(pool_alloc(pool, 63 * MIB, &other), -ENOMEM);
    check();
}

/* ---- the program's own waits ---- */

static void a_wait_of_the_program_finishes_an_epoch_without_a_record(void **state) {
    (void)state;
    start(GIB, REUSE_BARRIER, RELAXED);
    uint64_t before = get(3 * MIB), during = get(5 * MIB);
    use_and_drop(before);
    uint64_t ticket = pool_sync_begin(pool);
    use_and_drop(during); /* after the wait has begun, as by another thread */
    fake_finish_one(fake, 0);
    pool_sync_end(pool, ticket);
    assert_int_equal(get(3 * MIB), before);
    assert_int_equal(fake->records + fake->queries, 0);
    assert_true(is_not_reused(during, 5 * MIB));
    fake_finish_all(fake);
    assert_true(is_reused(during, 5 * MIB));
}

/* ---- large blocks in a thread's cache ---- */

static void a_large_block_waits_in_its_cache(void **state) {
    (void)state;
    start(4 * GIB, REUSE_BARRIER, RELAXED);
    keep_large_blocks();
    uint64_t at = get(3 * MIB), other = get(5 * MIB);
    use_and_drop(at);
    check();
    assert_int_equal(fake->records + fake->queries + fake->orders, 0);
    assert_true(is_not_reused(at, 3 * MIB));
    fake_finish_all(fake);
    assert_true(is_reused(at, 3 * MIB));
    assert_int_equal(fake->orders + fake->waits, 0);
    use_and_drop(other);
    fake_finish_all(fake);
    assert_true(is_reused(other, 5 * MIB));
    check();
}

static void a_cached_large_block_is_refused_a_second_free(void **state) {
    (void)state;
    start(4 * GIB, REUSE_BARRIER, RELAXED);
    keep_large_blocks();
    uint64_t at = get((MIB + MIB / 2));
    assert_int_equal(pool_free(at + 512), -EINVAL);
    assert_int_equal(pool_free(at + MIB), -EINVAL);
    use_and_drop(at);
    assert_int_equal(pool_free(at), -EINVAL);
    check();
}

static void a_cached_large_block_serves_a_request_that_fits(void **state) {
    (void)state;
    start(4 * GIB, REUSE_BARRIER, RELAXED);
    keep_large_blocks();
    uint64_t at = get((MIB + MIB / 2));
    drop(at);
    fake_finish_all(fake);
    uint64_t larger = get((MIB + MIB / 2) + 512), less = get(MIB + 512);
    assert_false(overlap(larger, (MIB + MIB / 2) + 512, at, (MIB + MIB / 2)));
    assert_int_equal(get((MIB + MIB / 2) - 512), at);
    (void)less;
    check();
}

static void cached_large_blocks_are_flushed_when_memory_is_short(void **state) {
    (void)state;
    start(64 * MIB, REUSE_BARRIER, RELAXED);
    keep_large_blocks();
    uint64_t at[15];
    for (int i = 0; i < 15; i++)
        at[i] = get(4 * MIB);
    for (int i = 0; i < 15; i++)
        use_and_drop(at[i]);
    check();
    fake_finish_all(fake);
    get(60 * MIB); /* all 60 MiB, in one block */
    check();
}

static atomic_bool is_held, was_freed;

/* Holds the pool's lock until the free has returned, or for two seconds. */
static void *hold_the_lock(void *saw) {
    pool_lock(pool);
    atomic_store(&is_held, true);
    for (int i = 0; i < 2000 && !atomic_load(&was_freed); i++)
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    *(bool *)saw = atomic_load(&was_freed);
    pool_unlock(pool);
    return NULL;
}

static void a_free_in_which_only_an_event_is_due_does_not_wait_for_the_lock(void **state) {
    (void)state;
    start(4 * GIB, REUSE_BARRIER, TIGHT); /* an event is due after every large free */
    keep_large_blocks();
    uint64_t at = get(2 * MIB), other = get(2 * MIB);
    let_hold(8 * MIB);
    bool saw = false;
    pthread_t thread;
    is_held = was_freed = false;
    assert_int_equal(pthread_create(&thread, NULL, hold_the_lock, &saw), 0);
    while (!atomic_load(&is_held))
        sched_yield();
    drop(at);
    atomic_store(&was_freed, true);
    pthread_join(thread, NULL);
    assert_true(saw);
    assert_int_equal(fake->records, 0);
    drop(other);
    assert_int_equal(fake->records, 1);
    check();
}

static void a_free_that_records_queries_earlier_events(void **state) {
    (void)state;
    start(4 * GIB, REUSE_BARRIER, TIGHT);
    keep_large_blocks();
    uint64_t at = get(2 * MIB), other = get(2 * MIB);
    let_hold(8 * MIB);
    use_and_drop(at);
    fake_finish_all(fake);
    use_and_drop(other);
    unsigned queries = fake->queries, records = fake->records;
    assert_int_equal(get(2 * MIB), at); /* not by the slow path */
    assert_int_equal(fake->queries, queries);
    assert_int_equal(fake->records, records);
    assert_int_equal(fake->orders + fake->waits, 0);
    check();
}

static void blocks_taken_ahead_stay_within_the_quota(void **state) {
    (void)state;
    static const uint64_t steps[] = {64 * KIB, MIB}; /* small blocks, large ones */
    for (int large = 0; large < 2; large++) {
        start(4 * GIB, REUSE_BARRIER, RELAXED);
        keep_large_blocks();
        get(100); /* activates the cache, which has a quota from here on */
        const struct cache *cache = cache_mine(pool);
        uint64_t ahead = 0;
        for (uint64_t i = 0; i < 400; i++) {
            uint64_t in_cache = cache->bytes;
            uint64_t at = get(steps[large] * (2 + i / 6 % 7));
            assert_true(cache->bytes <=
                        (in_cache > cache_quota(cache) ? in_cache : cache_quota(cache)));
            ahead += cache->bytes > in_cache;
            use_and_drop(at); /* the work never completes, so more blocks are needed */
        }
        assert_true(ahead > 0);
        check();
        if (!large)
            assert_int_equal(stop(NULL), 0);
    }
}

/* ---- externally visible memory ---- */

static void externally_visible_memory_is_reused_only_when_finished(void **state) {
    (void)state;
    static const uint64_t sizes[] = {100, 64 * KIB, MIB, 3 * MIB, 3 * MIB};
    for (int i = 0; i < 5; i++) {
        start(GIB, REUSE_BARRIER, TIGHT);
        if (i == 4)
            keep_large_blocks();
        uint64_t at = get(sizes[i]);
        assert_int_equal(pool_mark_externally_visible(at), 0);
        use_and_drop(at);
        use_and_drop(get(3 * MIB)); /* the free records an event, for which a barrier waits */
        get(3 * MIB);
        assert_true(fake->orders > 0);
        assert_true(fake_is_past(fake, 0, 1, false));
        assert_true(is_not_reused(at, sizes[i]));
        fake_finish_all(fake);
        assert_true(is_reused(at, sizes[i]));
        check();
        if (i < 4)
            assert_int_equal(stop(NULL), 0);
    }
}

static void external_visibility_stays_with_the_memory(void **state) {
    (void)state;
    start(GIB, REUSE_BARRIER, TIGHT);
    uint64_t at = get(100), neighbour = get(100);
    assert_int_equal(pool_mark_externally_visible(at), 0);
    for (int i = 0; i < 3; i++) {
        use_and_drop(at);
        use_and_drop(get(3 * MIB));
        get(3 * MIB);
        assert_true(is_not_reused(at, 100));
        fake_finish_all(fake);
        /* Allocate and free the same bytes again. */
        static uint64_t got[8192];
        int count = 0;
        do {
            got[count] = get(100);
        } while (got[count] != at && ++count < 8192);
        assert_true(count < 8192);
        while (count > 0)
            drop(got[--count]);
        fake_finish_all(fake);
    }
    use_and_drop(neighbour); /* in the same slab, so externally visible too */
    use_and_drop(get(3 * MIB));
    get(3 * MIB);
    assert_true(is_not_reused(neighbour, 100));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(without_pressure_frees_call_no_driver),
        TEST(without_pressure_memory_comes_back_after_its_work),
        TEST(work_submitted_after_the_record_is_waited_for_too),
        TEST(under_pressure_each_large_free_records_one_event),
        TEST(under_pressure_small_frees_share_events),
        TEST(few_bytes_of_a_large_budget_need_no_event_of_their_own),
        TEST(an_event_of_one_thread_serves_what_the_others_freed_before),
        TEST(under_pressure_memory_comes_back_behind_one_barrier),
        TEST(one_barrier_serves_every_block_freed_before_it),
        TEST(in_wait_mode_there_are_no_barriers),
        TEST(concurrent_streams_are_not_serialised_for_the_oldest_block),
        TEST(the_cpu_does_not_wait_if_little_work_is_behind_the_event),
        TEST(the_cpu_waits_if_a_barrier_is_not_enough),
        TEST(the_pool_grows_rather_than_waits_for_an_event_recorded_later),
        TEST(a_pool_under_pressure_stays_within_its_budget),
        TEST(without_a_budget_the_peak_and_a_floor_decide),
        TEST(in_sync_mode_every_free_waits),
        TEST(in_sync_mode_every_free_waits_however_many_threads_there_are),
        TEST(during_a_capture_nothing_is_recorded_or_waited_for),
        TEST(under_pressure_a_free_during_a_capture_waits_for_all_work),
        TEST(an_old_driver_is_synchronised_inside_frees_only),
        TEST(without_pressure_an_old_driver_is_synchronised_once_for_many_bytes),
        TEST(a_driver_that_claims_events_and_has_none_is_survived),
        TEST(a_wait_of_the_program_finishes_an_epoch_without_a_record),
        TEST(a_large_block_waits_in_its_cache),
        TEST(a_cached_large_block_is_refused_a_second_free),
        TEST(a_cached_large_block_serves_a_request_that_fits),
        TEST(a_free_in_which_only_an_event_is_due_does_not_wait_for_the_lock),
        TEST(a_free_that_records_queries_earlier_events),
        TEST(blocks_taken_ahead_stay_within_the_quota),
        TEST(cached_large_blocks_are_flushed_when_memory_is_short),
        TEST(externally_visible_memory_is_reused_only_when_finished),
        TEST(external_visibility_stays_with_the_memory),
    };
    return cmocka_run_group_tests_name("synchronising", tests, NULL, NULL);
}
