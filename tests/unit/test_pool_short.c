/*
 * Tests allocations when memory is short: the sources that are tried before a request fails, and
 * their order. Many threads together never exceed the limit by a byte. RELAXED is a budget that no
 * test reaches, TIGHT one that is exceeded at once.
 */
#include "pool_bench.h"

#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

static int try(uint64_t bytes, uint64_t *address) {
    *address = 0;
    return pool_alloc(pool, bytes, address);
}

static bool is_out_of_memory(int r) {
    return r == -ENOMEM || r == -EDQUOT;
}

/* ---- memory freed since the last event ---- */

/*
 * If the pool cannot grow, a request does not wait for work submitted after the frees whose memory
 * it needs: hardly any of that memory is without an event of its own. Either the pool has the whole
 * device, or others have the rest of it.
 */
static void at_the_capacity_hardly_any_freed_byte_is_without_an_event(void **state) {
    (void)state;
    for (unsigned others = 0; others < 2; others++) {
        maps_pages = true;
        start(others ? 4 * GIB : GIB, REUSE_BARRIER, 0);
        maps_pages = false;
        uint64_t at[64], more;
        for (unsigned i = 0; i < 64; i++)
            at[i] = get(16 * MIB);
        fake_finish_all(fake);
        if (others) {
            fake->refusal = -ENOMEM;
            fake->refusals = UINT_MAX;
            assert_true(is_out_of_memory(try(16 * MIB, &more)));
        }
        uint64_t waits = counter_get(&pool->source.counters.cpu_waits);
        for (unsigned i = 0; i < 6; i++)
            use_and_drop(at[i]);
        fake_submit(fake, 0);
        assert_int_equal(try(96 * MIB, &more), 0);
        assert_int_equal(more, at[0]);
        assert_int_equal(counter_get(&pool->source.counters.cpu_waits), waits);
        assert_int_equal(fake->reserved, GIB);
        fake_finish_all(fake);
        assert_int_equal(stop(NULL), 0);
    }
}

/* The request needs all but 12 MiB of growth and freed memory: no more may be without an event. */
static void near_the_capacity_few_freed_bytes_are_without_an_event(void **state) {
    (void)state;
    maps_pages = true;
    start(GIB + 256 * MIB, REUSE_BARRIER, 0);
    maps_pages = false;
    uint64_t at[64], more;
    for (unsigned i = 0; i < 64; i++)
        at[i] = get(16 * MIB);
    fake_finish_all(fake);
    for (unsigned i = 0; i < 8; i++)
        use_and_drop(at[i]);
    fake_submit(fake, 0);
    assert_int_equal(try((256 + 8 * 16 - 12) * MIB, &more), 0);
    fake_finish_all(fake);
    assert_int_equal(stop(NULL), 0);
}

/* ---- answers of the driver ---- */

static void a_request_above_the_capacity_is_refused_without_asking(void **state) {
    (void)state;
    start(64 * MIB, REUSE_BARRIER, RELAXED);
    uint64_t at;
    assert_int_equal(try(64 * MIB + 1, &at), -ENOMEM);
    assert_int_equal(try(UINT64_MAX, &at), -ENOMEM);
    assert_int_equal(try(UINT64_MAX - 511, &at), -ENOMEM);
    assert_int_equal(try(UINT64_MAX - 4 * MIB, &at), -ENOMEM);
    assert_int_equal(fake->reserves, 0);
    assert_int_equal(try(64 * MIB, &at), 0);
}

static void an_error_of_the_driver_is_returned_at_once(void **state) {
    (void)state;
    start(64 * MIB, REUSE_BARRIER, RELAXED);
    drop(get(2 * MIB)); /* idle, so it could be released */
    fake_finish_all(fake);
    fake->refusal = 719;
    fake->refusals = 1;
    uint64_t at;
    assert_int_equal(try(8 * MIB, &at), 719);
    assert_int_equal(fake->releases, 0);
    assert_int_equal(try(8 * MIB, &at), 0);
    fake->refusals = 1;
    assert_int_equal(try(100, &at), 719);
    assert_int_equal(try(100, &at), 0);
}

static void a_refused_growth_is_retried_smaller(void **state) {
    (void)state;
    static const int codes[] = {-ENOMEM, -EDQUOT};
    for (int i = 0; i < 2; i++) {
        start(GIB, REUSE_BARRIER, RELAXED);
        get(512 * MIB);
        unsigned reserves = fake->reserves;
        fake->refusal = codes[i];
        fake->refusals = 1;
        get(2 * MIB - 512);
        assert_int_equal(fake->reserves, reserves + 2);
        assert_int_equal(fake->reserved, 514 * MIB);
        assert_int_equal(fake->releases, 0);
        if (i == 0)
            assert_int_equal(stop(NULL), 0);
    }
}

static void memory_the_pool_cannot_manage_goes_back(void **state) {
    (void)state;
    start(64 * MIB, REUSE_BARRIER, RELAXED);
    fake->misalign = 512;
    uint64_t at;
    assert_int_equal(try(3 * MIB, &at), -ERANGE);
    assert_int_equal(try(100, &at), -ERANGE);
    assert_int_equal(fake->reserved, 0);
    assert_int_equal(stop(NULL), 0);
    start(64 * MIB, REUSE_BARRIER, RELAXED);
    fake->misalign = (uint64_t)1 << 50;
    assert_int_equal(try(3 * MIB, &at), -ERANGE);
    assert_int_equal(fake->reserved, 0);
}

/* After the limit was raised or removed, earlier refusals no longer bound the budget. */
static void a_raised_limit_is_used_at_once(void **state) {
    (void)state;
    start(64 * MIB, REUSE_BARRIER, RELAXED);
    uint64_t at;
    get(32 * MIB);
    assert_true(is_out_of_memory(try(64 * MIB, &at)));
    assert_int_equal(atomic_load(&pool->source.budget), 32 * MIB);
    fake->memory = GIB;
    pool_set_capacity(pool, GIB);
    assert_int_equal(atomic_load(&pool->source.budget), GIB - GIB / 4);
    use_and_drop(get(32 * MIB));
    get(32 * MIB);
    assert_int_equal(fake->orders + fake->waits, 0);
    assert_int_equal(try(512 * MIB, &at), 0);
}

static const struct backend_ops *plain_ops;

static int reserve_and_end(struct backend *backend, uint64_t bytes, uint64_t *address) {
    int r = plain_ops->reserve(backend, bytes, address);
    pool_forget(pool);
    return r;
}

static void memory_of_a_growth_is_lost_with_its_context(void **state) {
    (void)state;
    start(64 * MIB, REUSE_BARRIER, RELAXED);
    plain_ops = fake->backend.ops;
    struct backend_ops ops = *plain_ops;
    ops.reserve = reserve_and_end;
    fake->backend.ops = &ops;
    uint64_t at;
    assert_true(is_out_of_memory(try(3 * MIB, &at)));
    assert_true(is_out_of_memory(try(100, &at)));
    fake->backend.ops = plain_ops;
    assert_int_equal(fake->reserved, 0);
    assert_int_equal(fake_books(pool).reserved.current, 0);
    get(64 * MIB);
}

/* ---- the sources of memory, in order ---- */

static void no_request_fails_while_the_pool_has_the_memory(void **state) {
    (void)state;
    start(64 * MIB, REUSE_BARRIER, RELAXED);
    uint64_t at[16];
    for (int i = 0; i < 16; i++)
        at[i] = get(4 * MIB);
    uint64_t more;
    assert_true(is_out_of_memory(try(2 * MIB, &more)));
    assert_true(is_out_of_memory(try(1, &more)));
    for (int i = 0; i < 16; i++) {
        use_and_drop(at[i]);
        fake_finish_all(fake);
        at[i] = get(4 * MIB);
    }
    assert_true(is_out_of_memory(try(1, &more)));
}

/*
 * No block starts at the start of a segment unless it fills the segment. Exceptions:
 *
 *   1. Small blocks above 64 KiB, beyond 64 MiB of slabs: they would need up to half as much again.
 *   2. The last memory of the device.
 */
static void the_first_units_of_segments_are_used_last(void **state) {
    (void)state;
    static const uint64_t sizes[] = {64 * KIB, 512 * KIB, MIB, 2 * MIB, 4 * MIB, 16 * MIB};
    for (int i = 0; i < 6; i++) {
        start(GIB, REUSE_BARRIER, RELAXED);
        uint64_t bytes = sizes[i], at = 0, more;
        for (uint64_t taken = 0; taken < GIB; taken += bytes) {
            at = get(bytes);
            if (bytes > MIB) {
                assert_int_equal(fake->reserved, taken + bytes);
            } else {
                struct pool_block found;
                struct pool_segment segment;
                assert_int_equal(pool_find_segment(at, &found, &segment), 0);
                bool beyond = bytes > 64 * KIB && fake->reserved > 64 * MIB;
                assert_true(beyond || fake->reserved == GIB || segment.address != at);
                assert_true(fake->reserved <= (taken + bytes) * 34 / 32 + 66 * MIB);
            }
        }
        assert_true(is_out_of_memory(try(512, &more)));
        check();
        if (i < 5)
            assert_int_equal(stop(NULL), 0);
    }
}

/*
 * Allocates as many blocks as a driver that rounds every block up to 2 MiB could. The reserve
 * exceeds that driver's by no more than one shared segment.
 */
static void fill_with(uint64_t bytes) {
    uint64_t device = bytes < 5 * MIB ? GIB : 8 * GIB, at;
    uint64_t each = (bytes + 2 * MIB - 1) & ~(2 * MIB - 1), natively = device / each;
    start(device, REUSE_BARRIER, RELAXED);
    for (uint64_t i = 0; i < natively; i++) {
        assert_int_equal(try(bytes, &at), 0);
        assert_true(fake->reserved <= (i + 1) * each + 34 * MIB);
    }
    check();
}

static void as_many_of_one_size_fit_as_natively(void **state) {
    (void)state;
    for (uint64_t bytes = MIB + 512; bytes < GIB; bytes += bytes / 7 & ~(uint64_t)511) {
        fill_with(bytes);
        assert_int_equal(stop(NULL), 0);
    }
    for (uint64_t mib = 3; mib < 40; mib += 2) {
        fill_with(mib * MIB);
        assert_int_equal(stop(NULL), 0);
    }
    start(GIB, REUSE_BARRIER, RELAXED);
}

static void a_live_small_block_keeps_only_its_own_slab(void **state) {
    (void)state;
    static const uint64_t sizes[] = {512, 64 * KIB, 512 * KIB, MIB};
    for (int i = 0; i < 4; i++) {
        start(GIB, REUSE_BARRIER, RELAXED);
        uint64_t count = 300 * MIB / sizes[i], *at = calloc(count, sizeof *at), more;
        for (uint64_t j = 0; j < count; j++)
            at[j] = get(sizes[i]);
        for (uint64_t j = 0; j < count; j++)
            if (j % (count / 10) != 0)
                use_and_drop(at[j]);
        fake_finish_all(fake);
        assert_int_equal(try(GIB - 11 * 2 * MIB, &more), 0);
        free(at);
        check();
        if (i < 3)
            assert_int_equal(stop(NULL), 0);
    }
}

static void idle_segments_of_the_wrong_size_are_released(void **state) {
    (void)state;
    start(64 * MIB, REUSE_BARRIER, RELAXED);
    uint64_t a = get(32 * MIB), b = get(32 * MIB);
    use_and_drop(a);
    use_and_drop(b);
    fake_finish_all(fake);
    get(48 * MIB);
    assert_int_equal(fake->releases, 2);
    assert_int_equal(fake->reserved, 48 * MIB);
    assert_int_equal(fake_books(pool).driver_frees, 2);
}

static void no_more_is_released_than_is_needed(void **state) {
    (void)state;
    start(64 * MIB, REUSE_BARRIER, RELAXED);
    fake->backend.capacity = 64 * GIB; /* the driver has less, which the budget does not know */
    uint64_t at[4];
    for (int i = 0; i < 4; i++)
        at[i] = get(16 * MIB);
    for (int i = 0; i < 4; i++)
        use_and_drop(at[i]);
    fake_finish_all(fake);
    get(24 * MIB);
    assert_int_equal(fake->releases, 2);
    assert_int_equal(fake->reserved, 56 * MIB);
}

static void idle_slabs_are_released_for_large_blocks_and_back(void **state) {
    (void)state;
    start(64 * MIB, REUSE_BARRIER, RELAXED);
    static uint64_t at[64];
    for (int i = 0; i < 64; i++)
        at[i] = get(MIB);
    for (int i = 0; i < 64; i++)
        use_and_drop(at[i]);
    fake_finish_all(fake);
    uint64_t large = get(64 * MIB);
    use_and_drop(large);
    fake_finish_all(fake);
    for (int i = 0; i < 64; i++)
        at[i] = get(MIB);
    check();
}

static void pending_memory_is_synchronised_before_a_request_fails(void **state) {
    (void)state;
    static const enum reuse modes[] = {REUSE_BARRIER, REUSE_WAIT};
    for (int i = 0; i < 2; i++) {
        start(64 * MIB, modes[i], TIGHT);
        uint64_t at = get(64 * MIB);
        use_and_drop(at);
        assert_int_equal(get(64 * MIB), at);
        assert_int_equal(fake->orders, i == 0);
        assert_int_equal(fake->waits, i == 1);
        assert_int_equal(fake->releases, 0);
        if (i == 0)
            assert_int_equal(stop(NULL), 0);
    }
}

/* No event was recorded in a free, so nothing may be waited for; but the work completes soon. */
static void work_that_ends_soon_is_waited_for_in_the_end(void **state) {
    (void)state;
    start(64 * MIB, REUSE_BARRIER, RELAXED);
    uint64_t at = get(64 * MIB);
    use_and_drop(at);
    fake->done_after = 20;
    assert_int_equal(get(64 * MIB), at);
    assert_int_equal(fake->waits, 0);

    use_and_drop(at);
    fake->done_after = 20;
    get(40 * MIB);
    uint64_t more;
    assert_true(is_out_of_memory(try(25 * MIB, &more)));
}

/*
 * Every free records an event, and there are more of them than slots. The segments have to be
 * released whole.
 */
static void a_busy_device_with_a_full_list_of_events_is_waited_for(void **state) {
    (void)state;
    start(64 * MIB, REUSE_BARRIER, TIGHT);
    uint64_t at[32];
    for (int i = 0; i < 32; i++)
        at[i] = get(2 * MIB);
    for (int i = 0; i < 32; i++)
        use_and_drop(at[i]);
    use_and_drop(get(2 * MIB));
    fake->done_after = 500;
    get(64 * MIB);
    check();
}

/* ---- other threads' caches ---- */

static pthread_barrier_t step;

static void *cache_and_stay(void *unused) {
    uint64_t at[8];
    for (int i = 0; i < 8; i++)
        if (pool_alloc(pool, 512 * KIB, &at[i]) != 0)
            unused = (void *)1;
    for (int i = 0; i < 8; i++) {
        fake_submit(fake, 1);
        fake_pool_free(at[i]);
    }
    pthread_barrier_wait(&step);
    pthread_barrier_wait(&step);
    return unused;
}

static void the_caches_of_other_threads_are_flushed(void **state) {
    (void)state;
    static const uint64_t sizes[] = {512 * KIB, 700 * KIB, 4 * MIB};
    for (int i = 0; i < 3; i++) {
        start(4 * MIB, REUSE_BARRIER, RELAXED);
        pthread_barrier_init(&step, NULL, 2);
        pthread_t thread;
        assert_int_equal(pthread_create(&thread, NULL, cache_and_stay, NULL), 0);
        pthread_barrier_wait(&step);
        fake_finish_all(fake);
        get(sizes[i]);
        pthread_barrier_wait(&step);
        void *result;
        pthread_join(thread, &result);
        pthread_barrier_destroy(&step);
        assert_null(result);
        check();
        if (i < 2)
            assert_int_equal(stop(NULL), 0);
    }
}

static uint64_t their_block;
static pthread_t freeing;

static void *free_and_stay(void *unused) {
    fake_pool_free(their_block);
    pthread_barrier_wait(&step);
    pthread_barrier_wait(&step);
    return unused;
}

/* Called without the pool's lock: another thread frees a block into its cache during the call. */
static uint64_t free_while_asked(struct backend *backend, uint64_t *others) {
    (void)backend;
    if (their_block && !freeing) {
        assert_int_equal(pthread_create(&freeing, NULL, free_and_stay, NULL), 0);
        pthread_barrier_wait(&step);
    }
    *others = 0;
    return 0;
}

static void a_block_cached_while_a_request_is_refused_serves_it(void **state) {
    (void)state;
    start(4 * MIB, REUSE_BARRIER, RELAXED);
    struct backend_ops ops = *fake->backend.ops;
    ops.available = free_while_asked;
    fake->backend.ops = &ops;
    pthread_barrier_init(&step, NULL, 2);
    uint64_t first = get(64 * KIB), more;
    while (try(64 * KIB, &more) == 0) {
    }
    their_block = first;
    assert_int_equal(try(64 * KIB, &more), 0);
    assert_int_equal(more, first);
    pthread_barrier_wait(&step);
    pthread_join(freeing, NULL);
    pthread_barrier_destroy(&step);
    assert_int_equal(stop(NULL), 0);
}

static uint64_t pending_block;

static void *free_pending_and_end(void *unused) {
    fake_submit(fake, 2);
    fake_pool_free(pending_block);
    return unused;
}

/*
 * A safe block that is flushed from a cache is free at once, whatever is pending. If it queued
 * behind pending blocks, the request might wait for a kernel that waits for this thread's next
 * work.
 */
static void free_blocks_of_another_cache_do_not_queue_behind_pending_ones(void **state) {
    (void)state;
    start(4 * MIB + 2 * MIB, REUSE_BARRIER, RELAXED);
    pending_block = get(512 * KIB);
    pthread_barrier_init(&step, NULL, 2);
    pthread_t thread, ending;
    get(512 * KIB);
    get(512 * KIB);
    get(512 * KIB);
    assert_int_equal(pthread_create(&thread, NULL, cache_and_stay, NULL), 0);
    pthread_barrier_wait(&step);
    fake_finish_all(fake);
    /* The pool learns that the work has completed. Then a block becomes pending for ever. */
    uint64_t ticket = pool_sync_begin(pool);
    pool_sync_end(pool, ticket);
    assert_int_equal(pthread_create(&ending, NULL, free_pending_and_end, NULL), 0);
    pthread_join(ending, NULL);
    fake->busy_for_ever = true;
    struct timespec before, after;
    clock_gettime(CLOCK_MONOTONIC, &before);
    uint64_t at;
    int r = try(700 * KIB, &at);
    clock_gettime(CLOCK_MONOTONIC, &after);
    pthread_barrier_wait(&step);
    pthread_join(thread, NULL);
    pthread_barrier_destroy(&step);
    assert_int_equal(r, 0);
    assert_true(after.tv_sec - before.tv_sec < 5);
}

/* ---- requests that succeed natively ---- */

/* Slabs that are taken ahead must leave enough for a large block. */
static void slabs_taken_ahead_do_not_fail_a_large_request(void **state) {
    (void)state;
    start(GIB, REUSE_BARRIER, RELAXED);
    fake->limit = GIB;
    get(900 * MIB);
    get(100); /* one slab is enough */
    uint64_t at;
    assert_int_equal(try(GIB - 900 * MIB - 2 * MIB, &at), 0);
}

/* ---- releases ---- */

static void a_trim_releases_all_idle_memory(void **state) {
    (void)state;
    start(GIB, REUSE_BARRIER, RELAXED);
    uint64_t kept = get(100), large = get(5 * MIB), page = get(MIB);
    uint64_t other[8];
    for (int i = 0; i < 8; i++)
        other[i] = get(MIB);
    for (int i = 0; i < 8; i++)
        use_and_drop(other[i]);
    use_and_drop(large);
    use_and_drop(page);
    fake_finish_all(fake);
    assert_int_equal(pool_trim(pool, false), 0);
    assert_int_equal(fake->reserved, 2 * MIB);
    assert_int_equal(pool_trim(pool, false), 0);
    drop(kept);
    assert_int_equal(pool_trim(pool, true), 0);
    assert_int_equal(fake->reserved, 0);
    assert_int_equal(fake_books(pool).reserved.current, 0);
    assert_int_equal(fake_books(pool).segments.current, 0);
}

static void a_trim_does_not_wait_unless_told_to(void **state) {
    (void)state;
    start(GIB, REUSE_BARRIER, RELAXED);
    use_and_drop(get(5 * MIB));
    pool_trim(pool, false);
    assert_int_equal(fake->releases, 0);
    fake->done_after = 10;
    assert_int_equal(pool_trim(pool, true), 0);
    assert_int_equal(fake->reserved, 0);
    assert_int_equal(fake->waits, 0);
}

static void memory_in_use_is_never_released(void **state) {
    (void)state;
    start(16 * MIB, REUSE_BARRIER, TIGHT);
    uint64_t at = get(8 * MIB), other = get(8 * MIB);
    use_and_drop(at);
    get(4 * MIB); /* safe by a barrier, but earlier work still runs */
    use_and_drop(other);
    pool_trim(pool, false);
    assert_int_equal(fake->releases, 0);
}

/* ---- the limit with many threads ---- */

#define THREADS 16
#define LIMIT (64 * MIB)

static atomic_ulong failures, refusals;

static void *at_the_limit(void *argument) {
    unsigned seed = (unsigned)(uintptr_t)argument;
    uint64_t held[16] = {0};
    for (int i = 0; i < 400; i++) {
        uint64_t *slot = &held[rand_r(&seed) % 16];
        fake_submit(fake, seed % FAKE_STREAMS);
        if (*slot) {
            failures += fake_pool_free(*slot) != 0;
            *slot = 0;
        } else {
            uint64_t bytes = rand_r(&seed) % 2 ? 1 + (uint64_t)rand_r(&seed) % (9 * MIB)
                                               : 1 + (uint64_t)rand_r(&seed) % (300 * KIB);
            int r = pool_alloc(pool, bytes, slot);
            refusals += is_out_of_memory(r);
            failures += r != 0 && !is_out_of_memory(r);
            if (r != 0)
                *slot = 0;
        }
        struct stats_device is = fake_books(pool);
        failures += is.reserved.current > LIMIT || is.reserved.peak > LIMIT;
    }
    for (int i = 0; i < 16; i++)
        failures += held[i] && fake_pool_free(held[i]) != 0;
    return NULL;
}

static void the_limit_holds_and_nothing_is_lost_with_many_threads(void **state) {
    (void)state;
    static const enum reuse modes[] = {REUSE_BARRIER, REUSE_WAIT, REUSE_SYNC};
    for (int mode = 0; mode < 3; mode++) {
        start(GIB, modes[mode], 0);
        fake->limit = LIMIT;
        fake->done_every = 50;
        failures = refusals = 0;
        pthread_t threads[THREADS];
        for (uintptr_t i = 0; i < THREADS; i++)
            assert_int_equal(pthread_create(&threads[i], NULL, at_the_limit, (void *)(i + 1)), 0);
        for (int i = 0; i < THREADS; i++)
            pthread_join(threads[i], NULL);
        assert_int_equal(failures, 0);
        assert_true(refusals > 0);
        check();
        fake_finish_all(fake);
        get(LIMIT); /* all of the limit */
        uint64_t more;
        assert_true(is_out_of_memory(try(1, &more)));
        assert_int_equal(fake->reserved, LIMIT);
        if (mode < 2)
            assert_int_equal(stop(NULL), 0);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(at_the_capacity_hardly_any_freed_byte_is_without_an_event),
        TEST(near_the_capacity_few_freed_bytes_are_without_an_event),
        TEST(a_request_above_the_capacity_is_refused_without_asking),
        TEST(an_error_of_the_driver_is_returned_at_once),
        TEST(a_refused_growth_is_retried_smaller),
        TEST(memory_the_pool_cannot_manage_goes_back),
        TEST(a_raised_limit_is_used_at_once),
        TEST(memory_of_a_growth_is_lost_with_its_context),
        TEST(no_request_fails_while_the_pool_has_the_memory),
        TEST(the_first_units_of_segments_are_used_last),
        TEST(as_many_of_one_size_fit_as_natively),
        TEST(a_live_small_block_keeps_only_its_own_slab),
        TEST(idle_segments_of_the_wrong_size_are_released),
        TEST(no_more_is_released_than_is_needed),
        TEST(idle_slabs_are_released_for_large_blocks_and_back),
        TEST(pending_memory_is_synchronised_before_a_request_fails),
        TEST(work_that_ends_soon_is_waited_for_in_the_end),
        TEST(a_busy_device_with_a_full_list_of_events_is_waited_for),
        TEST(the_caches_of_other_threads_are_flushed),
        TEST(a_block_cached_while_a_request_is_refused_serves_it),
        TEST(free_blocks_of_another_cache_do_not_queue_behind_pending_ones),
        TEST(slabs_taken_ahead_do_not_fail_a_large_request),
        TEST(a_trim_releases_all_idle_memory),
        TEST(a_trim_does_not_wait_unless_told_to),
        TEST(memory_in_use_is_never_released),
        TEST(the_limit_holds_and_nothing_is_lost_with_many_threads),
    };
    return cmocka_run_group_tests_name("short of memory", tests, NULL, NULL);
}
