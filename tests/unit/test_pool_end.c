/*
 * Tests the end of a context, the release of memory to the driver, and barriers whose condition
 * changes.
 */
#include "pool_bench.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

/* ---- frees while the context ends ---- */

#define THREADS 3
#define BLOCKS 600

static uint64_t held[THREADS][BLOCKS];
static pthread_barrier_t step;
static atomic_int wrong;

static uint64_t size_of(int i) {
    return i % 50 == 0 ? 3 * MIB : (uint64_t)(i % 40 + 1) * 512;
}

static int by_address(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

/* Frees blocks of another thread, or its own, while the main thread forgets the pool. */
static void *free_while_it_ends(void *number) {
    unsigned mine = (unsigned)(uintptr_t)number;
    for (int round = 0; round < 40; round++) {
        for (int i = 0; i < BLOCKS; i++)
            wrong += pool_alloc(pool, size_of(i), &held[mine][i]) != 0;
        pthread_barrier_wait(&step);
        const uint64_t *others = held[round % 2 ? mine : (mine + 1) % THREADS];
        for (int i = 0; i < BLOCKS; i++) {
            int r = fake_pool_free(others[i]);
            wrong += r != 0 && r != -ENOENT;
        }
        pthread_barrier_wait(&step); /* pool_forget() has returned */
        pthread_barrier_wait(&step); /* a new context exists */
    }
    return NULL;
}

/*
 * Blocks freed during pool_forget() are not handed out in the next context, and none is handed out
 * twice.
 */
static void a_block_freed_while_the_context_ends_is_not_handed_out(void **state) {
    (void)state;
    start(64 * GIB, REUSE_BARRIER, RELAXED);
    keep_large_blocks();
    pthread_t threads[THREADS];
    static uint64_t all[THREADS * BLOCKS];
    uint64_t fresh = fake->base;
    pthread_barrier_init(&step, NULL, THREADS + 1);
    for (uintptr_t t = 0; t < THREADS; t++)
        assert_int_equal(pthread_create(&threads[t], NULL, free_while_it_ends, (void *)t), 0);
    for (int round = 0; round < 40; round++) {
        pthread_barrier_wait(&step);
        memcpy(all, held, sizeof all);
        for (volatile int wait = 0; wait < round * 2000; wait++) {
        }
        uint64_t bytes = pool_forget(pool);
        wrong += bytes != fake->reserved;
        pthread_barrier_wait(&step);
        wrong += fake_books(pool).reserved.current != 0;
        qsort(all, THREADS * BLOCKS, sizeof *all, by_address);
        for (int i = 0; i < THREADS * BLOCKS; i++)
            wrong += all[i] < fresh || (i > 0 && all[i] == all[i - 1]);
        fresh = fake_new_context(fake);
        pthread_barrier_wait(&step);
    }
    for (int t = 0; t < THREADS; t++)
        pthread_join(threads[t], NULL);
    pthread_barrier_destroy(&step);
    assert_int_equal(wrong, 0);
}

static uint64_t late_free;
static int late_answer;

static void *free_late(void *unused) {
    (void)unused;
    late_answer = fake_pool_free(late_free);
    return NULL;
}

static atomic_bool about_to_free;

static void *get_and_free_late(void *bytes) {
    wrong += pool_alloc(pool, (uint64_t)(uintptr_t)bytes, &late_free) != 0;
    pthread_barrier_wait(&step); /* the thread has a cache */
    pthread_barrier_wait(&step); /* that cache is seized */
    atomic_store(&about_to_free, true);
    return free_late(NULL);
}

/* Another thread has found its block and waits for its seized cache while the pool is forgotten. */
static void a_free_that_waits_for_its_cache_notices_the_end(void **state) {
    (void)state;
    static const uint64_t sizes[] = {4096, 3 * MIB};
    for (int i = 0; i < 2; i++) {
        pthread_t thread;
        start(64 * GIB, REUSE_BARRIER, RELAXED);
        if (!biased_can_start())
            skip(); /* pool_forget() could not take a held spin lock */
        keep_large_blocks();
        for (int large = 0; large < 7; large++)
            get(8 * GIB); /* makes pool_forget() slow */
        pthread_barrier_init(&step, NULL, 2);
        atomic_store(&about_to_free, false);
        void *bytes = (void *)(uintptr_t)sizes[i];
        assert_int_equal(pthread_create(&thread, NULL, get_and_free_late, bytes), 0);
        pthread_barrier_wait(&step);
        struct cache *theirs = pool->caches;
        while (theirs == cache_last || theirs == pool->common)
            theirs = theirs->next_in_pool;
        lock_acquire(&pool->source.lock);
        cache_seize(theirs);
        lock_release(&pool->source.lock);
        lock_forget(LOCK_CACHE); /* pool_forget() seizes the cache again */
        pthread_barrier_wait(&step);
        while (!atomic_load(&about_to_free))
            nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
        nanosleep(&(struct timespec){.tv_nsec = 30000000}, NULL);
        pool_forget(pool); /* releases the other thread */
        pthread_join(thread, NULL);
        pthread_barrier_destroy(&step);
        assert_int_equal(late_answer, -ENOENT);
        assert_int_equal(theirs->bytes + wrong, 0);
        assert_int_equal(stop(NULL), 0);
    }
}

static void *forget_it(void *unused) {
    (void)unused;
    pool_forget(pool);
    return NULL;
}

static pthread_t ends;

/*
 * Runs inside the freeing thread's cache. When it returns, pool_forget() has begun and waits for
 * that cache.
 */
static void end_while_it_is_freed(struct backend *backend, uint64_t address, uint64_t bytes) {
    (void)backend, (void)address, (void)bytes;
    struct lock *lock = &pool->source.lock;
    assert_int_equal(pthread_create(&ends, NULL, forget_it, NULL), 0);
    while (lock_try(lock)) {
        lock_release(lock);
        sched_yield();
    }
}

/*
 * A block too large for a cache is in no list until its free has source.lock. Here the context ends
 * before that.
 */
static void a_range_freed_before_the_end_is_not_taken_after_it(void **state) {
    (void)state;
    start(64 * GIB, REUSE_BARRIER, RELAXED);
    uint64_t at = get(100 * MIB);
    const struct backend_ops *before = fake->backend.ops;
    struct backend_ops ops = *before;
    ops.freed = end_while_it_is_freed;
    fake->backend.ops = &ops;
    drop(at);
    pthread_join(ends, NULL);
    fake->backend.ops = before;
    check();
    assert_int_equal(pool->source.pending_bytes, 0);
    assert_int_equal(pool->source.large.segment_count, 0);
}

/* A suspended backend gets no call: the context's objects may be gone. */
static void a_suspended_backend_gets_no_call(void **state) {
    (void)state;
    start(GIB, REUSE_BARRIER, TIGHT);
    uint64_t a = get(100 * MIB), b = get(100);
    fake->backend.suspended = true;
    unsigned before = fake->records + fake->queries + fake->orders + fake->waits + fake->releases;
    use_and_drop(a);
    use_and_drop(b);
    uint64_t c = get(100 * MIB);
    pool_wait_for_barriers(pool);
    pool_trim(pool, true);
    assert_int_equal(fake->records + fake->queries + fake->orders + fake->waits + fake->releases,
                     before);
    fake->backend.suspended = false;
    assert_true(c != a); /* the work on block a may still run */
    fake_finish_all(fake);
    check();
}

/* Nor does the pool wait for an event that was recorded before the suspension. */
static void a_suspended_backend_is_not_waited_for(void **state) {
    (void)state;
    start(GIB, REUSE_WAIT, TIGHT);
    uint64_t a = get(100 * MIB);
    use_and_drop(a);
    assert_int_equal(fake->records, 1);
    fake->backend.suspended = true;
    uint64_t b = get(100 * MIB);
    assert_int_equal(fake->waits, 0);
    assert_true(b != a);
    drop(b);
    fake->backend.suspended = false;
    assert_int_equal(get(100 * MIB), a); /* now the pool waits */
    assert_int_equal(fake->waits, 1);
    check();
}

/* ---- the exit of the process ---- */

#define NOT_LONG 1000000 /* ns */

/* The driver prints what kernels wrote in its own wait, and there only: queries do not suffice. */
static void work_before_frees_is_waited_for_at_the_exit(void **state) {
    (void)state;
    start(GIB, REUSE_BARRIER, RELAXED);
    uint64_t a = get(4096);
    pool_wait_for_work(pool, NOT_LONG);
    assert_int_equal(fake->records, 0); /* nothing was freed */
    use_and_drop(a);
    pool_wait_for_work(pool, NOT_LONG);
    assert_int_equal(fake->records, 1);
    assert_int_equal(fake->waits, 0); /* the work goes on */
    fake_finish_all(fake);
    pool_wait_for_work(pool, NOT_LONG);
    assert_int_equal(fake->waits, 1);
    struct stats_device books = fake_books(pool);
    assert_int_equal(books.cpu_waits, 0);
    assert_int_equal(books.epochs, 0);
    check();
}

static void nothing_is_waited_for_at_the_exit_where_frees_wait(void **state) {
    (void)state;
    start(GIB, REUSE_SYNC, RELAXED);
    use_and_drop(get(4096));
    unsigned records = fake->records, waits = fake->waits;
    pool_wait_for_work(pool, NOT_LONG);
    assert_int_equal(fake->records, records);
    assert_int_equal(fake->waits, waits);
    check();
}

static void nothing_is_waited_for_at_the_exit_while_the_context_ends(void **state) {
    (void)state;
    start(GIB, REUSE_BARRIER, RELAXED);
    use_and_drop(get(4096));
    fake->backend.suspended = true;
    pool_wait_for_work(pool, NOT_LONG);
    assert_int_equal(fake->records, 0);
    fake->backend.suspended = false;
    check();
}

/* ---- releases to the driver ---- */

/* A barrier makes memory free that old work still uses. It does not allow its release. */
static void memory_behind_a_barrier_does_not_go_back_before_its_work_is_over(void **state) {
    (void)state;
    start(GIB, REUSE_BARRIER, TIGHT);
    uint64_t a = get(100 * MIB), b = get(100 * MIB);
    use_and_drop(a);
    use_and_drop(b);
    get(100 * MIB); /* one barrier for both; the other's work still runs */
    assert_int_equal(fake->orders, 1);
    pool_trim(pool, false);
    assert_int_equal(fake->releases, 0);
    fake_finish_all(fake);
    pool_trim(pool, false);
    assert_int_equal(fake->releases, 1);
    assert_int_equal(fake->reserved, 100 * MIB);
}

/* The kernel of another thread may never end. The release of idle memory does not wait for it. */
static void idle_memory_goes_back_during_work_that_does_not_end(void **state) {
    (void)state;
    start(GIB, REUSE_BARRIER, RELAXED);
    uint64_t a = get(600 * MIB);
    use_and_drop(a);
    fake_finish_all(fake);
    uint64_t ticket = pool_sync_begin(pool);
    pool_sync_end(pool, ticket);
    fake_submit(fake, 1);
    fake->busy_for_ever = true;
    unsigned records = fake->records;
    get(900 * MIB);
    assert_int_equal(fake->releases, 1);
    assert_int_equal(fake->records, records); /* and no event is recorded */
}

static unsigned not_yet;
static int comes_late(struct backend *backend) {
    ((struct fake *)backend)->refusals = not_yet > 1;
    return not_yet > 0 && --not_yet > 0 ? -EAGAIN : 0;
}

/* The driver completes a release later, and refuses allocations until then. */
static void a_growth_waits_for_memory_that_is_being_freed(void **state) {
    (void)state;
    start(GIB, REUSE_BARRIER, RELAXED);
    drop(get(600 * MIB));
    uint64_t ticket = pool_sync_begin(pool);
    pool_sync_end(pool, ticket);
    const struct backend_ops *before = fake->backend.ops;
    struct backend_ops ops = *before;
    ops.returned = comes_late;
    fake->backend.ops = &ops;
    fake->refusal = -ENOMEM;
    fake->refusals = 1;
    not_yet = 5;
    get(900 * MIB);
    assert_int_equal(not_yet, 0);
    fake->backend.ops = before;
    pool_forget(pool);
    pool = NULL;
}

/* If a free waits for the device, no memory goes back while work runs. */
static void where_a_native_free_waits_memory_is_released_on_an_idle_device(void **state) {
    (void)state;
    start(GIB, REUSE_BARRIER, RELAXED);
    fake->backend.release_waits = true;
    drop(get(600 * MIB));
    fake_finish_all(fake);
    fake_submit(fake, 1);
    pool_trim(pool, false);
    assert_int_equal(fake->releases, 0);
    fake_finish_all(fake);
    pool_trim(pool, false);
    assert_int_equal(fake->releases, 1);
}

/*
 * The addresses may belong to another context by then: the pool forgets the segment for good or
 * keeps it.
 */
static void while_a_context_may_be_ending_nothing_is_released(void **state) {
    (void)state;
    start(GIB, REUSE_BARRIER, RELAXED);
    drop(get(600 * MIB));
    pool_sync_end(pool, pool_sync_begin(pool));
    get(8 * MIB);
    fake->backend.suspended = true;
    const struct segment *idle = pool->source.large.segments->next
                                     ? pool->source.large.segments->next
                                     : pool->source.large.segments;
    uint64_t changes = pool->source.large.changes;
    pool_trim(pool, false);
    assert_int_equal(pool->source.large.changes, changes);
    assert_int_equal(idle->bytes, 600 * MIB);
    fake->backend.suspended = false;
}

static int ends_with_the_context(struct backend *backend, uint64_t address, uint64_t bytes) {
    (void)backend, (void)address, (void)bytes;
    fake->reserved -= pool_forget(pool);
    return -EBUSY;
}

/* A free that waits releases source.lock. Memory that ended with the context is not put back. */
static void memory_that_ends_during_its_release_is_not_put_back(void **state) {
    (void)state;
    start(GIB, REUSE_BARRIER, RELAXED);
    fake->backend.release_waits = true;
    drop(get(600 * MIB));
    fake_finish_all(fake);
    const struct backend_ops *before = fake->backend.ops;
    struct backend_ops ops = *before;
    ops.release = ends_with_the_context;
    fake->backend.ops = &ops;
    pool_trim(pool, false);
    fake->backend.ops = before;
    assert_int_equal(pool->source.large.segment_count, 0);
    assert_int_equal(fake->reserved, 0);
}

/* ---- the condition of a barrier ---- */

/*
 * Returns a block handed out behind a barrier. The device completes its work after some more
 * queries.
 */
static uint64_t get_behind_a_barrier(uint64_t bytes) {
    uint64_t a = get(bytes);
    use_and_drop(a);
    uint64_t b = get(bytes);
    assert_int_equal(b, a);
    assert_int_equal(fake->orders, 1);
    fake->done_after = 3;
    return b;
}

static void old_work_is_over_before_memory_is_externally_visible(void **state) {
    (void)state;
    static const uint64_t sizes[] = {100 * MIB, 100};
    for (int i = 0; i < 2; i++) {
        start(GIB, REUSE_BARRIER, TIGHT);
        uint64_t at = get_behind_a_barrier(sizes[i]);
        assert_false(fake_is_past(fake, 0, 1, true));
        assert_int_equal(pool_mark_externally_visible(at), 0);
        assert_true(fake_is_past(fake, 0, 1, true));
        assert_int_equal(fake->waits, 0);
        assert_int_equal(stop(NULL), 0);
    }
}

static void old_work_is_over_after_a_wait_for_barriers(void **state) {
    (void)state;
    start(GIB, REUSE_BARRIER, TIGHT);
    get_behind_a_barrier(100 * MIB);
    fake_submit(fake, 1);
    pool_wait_for_barriers(pool);
    assert_true(fake_is_past(fake, 0, 1, true));
}

/* A driver that cannot say whether an event has completed may never do so. */
static void barriers_are_waited_for_where_queries_fail(void **state) {
    (void)state;
    start(GIB, REUSE_BARRIER, TIGHT);
    get_behind_a_barrier(100 * MIB);
    fake->query_code = -EBUSY;
    alarm(60); /* else a failure would hang */
    pool_wait_for_barriers(pool);
    alarm(0);
    assert_true(fake_is_past(fake, 0, 1, true));
    fake->query_code = 0;
}

/* Without memory handed out behind a barrier, there is nothing to wait for. */
static void a_pool_without_barriers_waits_for_none(void **state) {
    (void)state;
    start(GIB, REUSE_BARRIER, RELAXED);
    use_and_drop(get(100 * MIB));
    uint64_t at = get(100 * MIB);
    fake->busy_for_ever = true;
    pool_wait_for_barriers(pool);
    assert_int_equal(pool_mark_externally_visible(at), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(a_block_freed_while_the_context_ends_is_not_handed_out),
        TEST(a_free_that_waits_for_its_cache_notices_the_end),
        TEST(a_range_freed_before_the_end_is_not_taken_after_it),
        TEST(a_suspended_backend_gets_no_call),
        TEST(a_suspended_backend_is_not_waited_for),
        TEST(memory_behind_a_barrier_does_not_go_back_before_its_work_is_over),
        TEST(idle_memory_goes_back_during_work_that_does_not_end),
        TEST(work_before_frees_is_waited_for_at_the_exit),
        TEST(nothing_is_waited_for_at_the_exit_where_frees_wait),
        TEST(nothing_is_waited_for_at_the_exit_while_the_context_ends),
        TEST(a_growth_waits_for_memory_that_is_being_freed),
        TEST(where_a_native_free_waits_memory_is_released_on_an_idle_device),
        TEST(while_a_context_may_be_ending_nothing_is_released),
        TEST(memory_that_ends_during_its_release_is_not_put_back),
        TEST(old_work_is_over_before_memory_is_externally_visible),
        TEST(old_work_is_over_after_a_wait_for_barriers),
        TEST(barriers_are_waited_for_where_queries_fail),
        TEST(a_pool_without_barriers_waits_for_none),
    };
    return cmocka_run_group_tests_name("ends of contexts, memory given back", tests, NULL, NULL);
}
