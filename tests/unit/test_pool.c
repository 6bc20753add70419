/*
 * The pool as its callers see it: blocks and addresses, wrong frees, statistics, the end of the
 * context, and the end of threads.
 */
#include "pool_bench.h"

#include "exchange.h"

#include <pthread.h>
#include <stdlib.h>

/* ---- blocks ---- */

static const uint64_t sizes[] = {1,   511,     512,     513,     4096,        100000,      MIB - 1,
                                 MIB, MIB + 1, 2 * MIB, 5 * MIB, 5 * MIB + 1, 33 * MIB + 7};
#define SIZES (sizeof sizes / sizeof *sizes)

static void every_block_has_its_bytes_and_a_segment_of_its_own_device(void **state) {
    (void)state;
    start(GIB, REUSE_BARRIER, RELAXED);
    uint64_t at[SIZES];
    for (size_t i = 0; i < SIZES; i++) {
        at[i] = get(sizes[i]);
        struct pool_block block;
        struct pool_segment segment;
        assert_int_equal(pool_find_segment(at[i], &block, &segment), 0);
        assert_ptr_equal(block.pool, pool);
        assert_int_equal(block.address, at[i]);
        assert_int_equal(block.requested, sizes[i]);
        assert_true(segment.address <= at[i] &&
                    at[i] + sizes[i] <= segment.address + segment.bytes);
        assert_true(segment.address >= fake->base);
        for (size_t j = 0; j < i; j++)
            assert_false(overlap(at[i], sizes[i], at[j], sizes[j]));
        check();
    }
    for (size_t i = 0; i < SIZES; i++) {
        drop(at[i]);
        check();
    }
}

static void a_look_up_finds_every_byte_of_a_block_and_no_other(void **state) {
    (void)state;
    start(GIB, REUSE_BARRIER, RELAXED);
    for (size_t i = 0; i < SIZES; i++) {
        uint64_t at = get(sizes[i]);
        struct pool_block block;
        assert_int_equal(pool_find(at + sizes[i] - 1, &block), 0);
        assert_int_equal(block.address, at);
        assert_int_equal(pool_find(at + sizes[i] / 2, &block), 0);
        assert_int_equal(block.address, at);
        if (sizes[i] % 512) /* rounding bytes are outside the block */
            assert_int_equal(pool_find(at + sizes[i], &block), -EINVAL);
        drop(at);
        assert_int_equal(pool_find(at, &block), -EINVAL);
    }
    struct pool_block block;
    assert_int_equal(pool_find(0, &block), -ENOENT);
    assert_int_equal(pool_find(fake->base - 1, &block), -ENOENT);
    assert_int_equal(pool_find(UINT64_MAX, &block), -ENOENT);
}

static void an_id_belongs_to_one_allocation_of_one_block(void **state) {
    (void)state;
    start(GIB, REUSE_BARRIER, RELAXED);
    uint64_t seen[2 * SIZES];
    for (size_t i = 0; i < 2 * SIZES; i++) {
        uint64_t bytes = sizes[i / 2], at = get(bytes);
        seen[i] = pool_block_id(at);
        assert_true(seen[i] != 0);
        assert_int_equal(pool_block_id(at + bytes - 1), seen[i]);
        drop(at);
        assert_int_equal(pool_block_id(at), 0);
        for (size_t j = 0; j < i; j++)
            assert_true(seen[j] != seen[i]);
    }
    assert_int_equal(pool_block_id(0), 0);
}

static void a_repeated_pair_of_calls_takes_no_more_memory(void **state) {
    (void)state;
    start(GIB, REUSE_BARRIER, RELAXED);
    for (size_t i = 0; i < SIZES; i++) {
        uint64_t at = get(sizes[i]);
        use_and_drop(at);
        fake_finish_all(fake);
        unsigned reserves = 0;
        for (int j = 0; j < 2000; j++) {
            if (j == 1000) /* the cache has enough blocks */
                reserves = fake->reserves;
            at = get(sizes[i]);
            use_and_drop(at);
            fake_finish_all(fake);
        }
        assert_int_equal(fake->reserves, reserves);
        check();
    }
}

/* ---- wrong frees ---- */

static void a_wrong_free_changes_nothing(void **state) {
    (void)state;
    start(GIB, REUSE_BARRIER, RELAXED);
    for (size_t i = 0; i < SIZES; i++) {
        uint64_t at = get(sizes[i]), other = get(sizes[i]);
        struct stats_device before = fake_books(pool);
        assert_int_equal(fake_pool_free(at + 1), -EINVAL);
        assert_int_equal(fake_pool_free(at + 256), -EINVAL);
        if (sizes[i] > 512) {
            assert_int_equal(fake_pool_free(at + 512), -EINVAL);
            assert_int_equal(fake_pool_free((at + sizes[i] - 1) & ~(uint64_t)511), -EINVAL);
        }
        struct stats_device after = fake_books(pool);
        assert_memory_equal(&before, &after, sizeof before);
        drop(at);
        before = fake_books(pool);
        assert_int_equal(fake_pool_free(at), -EINVAL); /* twice */
        assert_int_equal(fake_pool_free(at), -EINVAL);
        after = fake_books(pool);
        assert_memory_equal(&before, &after, sizeof before);
        check();
        drop(other);
    }
}

static void memory_of_others_is_not_the_pools(void **state) {
    (void)state;
    start(GIB, REUSE_BARRIER, RELAXED);
    uint64_t at = get(5 * MIB);
    assert_int_equal(fake_pool_free(0), -ENOENT);
    assert_int_equal(fake_pool_free(1), -ENOENT);
    assert_int_equal(fake_pool_free(UINT64_MAX), -ENOENT);
    assert_int_equal(fake_pool_free((uint64_t)1 << 60), -ENOENT);
    assert_int_equal(fake_pool_free(fake->base - 512), -ENOENT);
    assert_int_equal(fake_pool_free(at + 5 * MIB), -ENOENT); /* after the segment */
    assert_int_equal(fake_pool_free(at - MIB), -EINVAL);     /* free memory of the segment */
    assert_int_equal(pool_mark_externally_visible(0), -ENOENT);
    assert_int_equal(pool_mark_externally_visible(at - MIB), -EINVAL);
}

static void a_segment_given_back_is_not_the_pools_again(void **state) {
    (void)state;
    start(GIB, REUSE_BARRIER, RELAXED);
    uint64_t large = get(5 * MIB), small = get(100);
    drop(large);
    drop(small);
    assert_int_equal(pool_trim(pool, true), 0);
    assert_int_equal(fake->reserved, 0);
    assert_int_equal(fake_pool_free(large), -ENOENT);
    assert_int_equal(fake_pool_free(small), -ENOENT);
}

/* ---- statistics ---- */

/* Returns the bytes of a block for a request: the documented rounding. */
static uint64_t block_of(uint64_t bytes) {
    if (bytes > MIB)
        return (bytes + LARGE_UNIT - 1) / LARGE_UNIT * LARGE_UNIT;
    uint64_t step = 512;
    while (bytes > 32 * step)
        step *= 2;
    return (bytes + step - 1) / step * step;
}

struct expected {
    uint64_t requested, requested_peak, requested_total;
    uint64_t allocated, allocated_peak, allocated_total;
    uint64_t count, count_total;
};

static void expect_alloc(struct expected *e, uint64_t bytes) {
    e->requested += bytes;
    e->requested_total += bytes;
    e->requested_peak = e->requested > e->requested_peak ? e->requested : e->requested_peak;
    e->allocated += block_of(bytes);
    e->allocated_total += block_of(bytes);
    e->allocated_peak = e->allocated > e->allocated_peak ? e->allocated : e->allocated_peak;
    e->count++;
    e->count_total++;
}

static void expect_free(struct expected *e, uint64_t bytes) {
    e->requested -= bytes;
    e->allocated -= block_of(bytes);
    e->count--;
}

static void compare(const struct expected *e) {
    struct stats_device is = fake_books(pool);
    assert_int_equal(is.requested.current, e->requested);
    assert_int_equal(is.requested.total, e->requested_total);
    assert_int_equal(is.requested.freed, e->requested_total - e->requested);
    /* the pool may serve a request by a block of a larger class */
    assert_in_range(is.allocated.current, e->allocated, e->allocated + e->allocated / 5);
    assert_in_range(is.allocated.total, e->allocated_total,
                    e->allocated_total + e->allocated_total / 5);
    assert_int_equal(is.allocated.total - is.allocated.freed, is.allocated.current);
    assert_int_equal(is.allocations.current, e->count);
    assert_int_equal(is.allocations.total, e->count_total);
    assert_int_equal(is.allocations.freed, e->count_total - e->count);
    assert_int_equal(is.reserved.current, fake->reserved - fake->on_its_way);
    assert_int_equal(is.reserved.total - is.reserved.freed, is.reserved.current);
    assert_int_equal(is.segments.total, is.driver_allocs);
    assert_int_equal(is.segments.freed, is.driver_frees);
    assert_true(is.requested.current <= is.allocated.current);
    assert_true(is.allocated.current + is.ready_bytes <= is.reserved.current);
    assert_true(is.releasable_bytes <= is.ready_bytes);
    assert_true(is.largest_free_bytes <= is.ready_bytes);
    uint64_t live = 0, total = 0;
    for (unsigned i = 0; i < STATS_SIZE_CLASSES; i++) {
        live += is.size_classes[i].live;
        total += is.size_classes[i].total;
    }
    assert_int_equal(live, e->count);
    assert_int_equal(total, e->count_total);
}

/* A change under source.lock updates the peaks. */
static void compare_peaks(const struct expected *e) {
    pool_lock(pool);
    pool_unlock(pool);
    struct stats_device is = fake_books(pool);
    assert_int_equal(is.requested.peak, e->requested_peak);
    assert_int_equal(is.allocated.peak, e->allocated_peak);
    assert_true(is.peaks_exact);
}

static void the_counters_agree_at_every_step(void **state) {
    (void)state;
    static const enum reuse modes[] = {REUSE_BARRIER, REUSE_WAIT, REUSE_SYNC};
    static const uint64_t budgets[] = {RELAXED, TIGHT, 0};
    for (int round = 0; round < 9; round++) {
        start(GIB, modes[round / 3], budgets[round % 3]);
        struct expected e = {0};
        struct {
            uint64_t at, bytes;
        } live[64] = {0};
        srand(3);
        for (int step = 0; step < 2000; step++) {
            int i = rand() % 64;
            fake_submit(fake, 0);
            if (live[i].at) {
                drop(live[i].at);
                expect_free(&e, live[i].bytes);
                live[i].at = 0;
            } else {
                live[i].bytes = rand() % 3 ? 1 + (uint64_t)rand() % (64 * KIB)
                                           : 1 + (uint64_t)rand() % (8 * MIB);
                live[i].at = get(live[i].bytes);
                expect_alloc(&e, live[i].bytes);
            }
            compare(&e);
            if (rand() % 8 == 0)
                fake_finish_all(fake);
            if (step % 100 == 0)
                check();
        }
        if (round < 8)
            assert_int_equal(stop(NULL), 0);
    }
}

static void the_peak_of_small_blocks_is_exact(void **state) {
    (void)state;
    start(GIB, REUSE_BARRIER, RELAXED);
    struct expected e = {0};
    uint64_t at[64];
    for (int round = 1; round <= 8; round++) {
        for (int i = 0; i < 8 * round; i++) {
            at[i] = get(10000);
            expect_alloc(&e, 10000);
        }
        for (int i = 0; i < 8 * round; i++) {
            drop(at[i]);
            expect_free(&e, 10000);
        }
        fake_finish_all(fake);
        assert_int_equal(pool_trim(pool, false), 0);
        compare_peaks(&e);
    }
}

/*
 * Small blocks are counted without the lock. They must be added to the large blocks that were live
 * at the same time, not to later or earlier ones.
 */
static void the_peak_of_the_count_is_exact(void **state) {
    (void)state;
    start(GIB, REUSE_BARRIER, RELAXED);
    uint64_t at[40];
    for (int i = 0; i < 40; i++)
        at[i] = get(i % 4 ? 1000 : 3 * MIB);
    for (int i = 0; i < 40; i++)
        drop(at[i]);
    get(3 * MIB);
    assert_int_equal(fake_books(pool).allocations.peak, 40);
}

static void a_large_block_after_small_ones_does_not_add_to_their_peak(void **state) {
    (void)state;
    start(GIB, REUSE_BARRIER, RELAXED);
    struct expected e = {0};
    uint64_t at[8];
    for (int i = 0; i < 8; i++) {
        at[i] = get(MIB);
        expect_alloc(&e, MIB);
    }
    for (int i = 0; i < 8; i++) {
        drop(at[i]);
        expect_free(&e, MIB);
    }
    uint64_t large = get(100 * MIB);
    expect_alloc(&e, 100 * MIB);
    compare_peaks(&e);
    drop(large);
}

static void a_large_block_freed_after_small_ones_still_counts_for_their_peak(void **state) {
    (void)state;
    start(GIB, REUSE_BARRIER, RELAXED);
    struct expected e = {0};
    uint64_t kept = get(MIB), cached = get(MIB);
    use_and_drop(kept);
    use_and_drop(cached);
    fake_finish_all(fake);
    kept = get(MIB); /* both blocks are free; the other one stays in the cache */
    e = (struct expected){.requested_peak = 2 * MIB, .allocated_peak = 2 * MIB};
    expect_alloc(&e, MIB);
    uint64_t large = get(100 * MIB);
    expect_alloc(&e, 100 * MIB);
    cached = get(MIB); /* allocated and freed without the lock */
    expect_alloc(&e, MIB);
    drop(cached);
    expect_free(&e, MIB);
    drop(large);
    expect_free(&e, 100 * MIB);
    compare_peaks(&e);
    drop(kept);
}

static void two_pools_of_one_thread_have_exact_peaks(void **state) {
    (void)state;
    start(GIB, REUSE_BARRIER, RELAXED);
    struct fake *other_fake = fake_new(GIB);
    struct pool *other =
        pool_create(&other_fake->backend, &(struct pool_config){.budget = RELAXED});
    struct expected e = {0};
    uint64_t at, there;
    for (int i = 0; i < 20; i++) {
        at = get(MIB);
        expect_alloc(&e, MIB);
        drop(at);
        expect_free(&e, MIB);
        assert_int_equal(pool_alloc(other, 4096, &there), 0);
        uint64_t large = get(2 * MIB + 2 * (uint64_t)i * MIB);
        expect_alloc(&e, 2 * MIB + 2 * (uint64_t)i * MIB);
        drop(there);
        drop(large);
        expect_free(&e, 2 * MIB + 2 * (uint64_t)i * MIB);
        compare_peaks(&e);
    }
    assert_whole(other);
    pool_forget(other);
    fake_free(other_fake);
}

static void *small_peak_and_end(void *unused) {
    (void)unused;
    uint64_t at[8];
    for (int i = 0; i < 8; i++)
        if (pool_alloc(pool, MIB, &at[i]) != 0)
            return (void *)1;
    for (int i = 0; i < 8; i++)
        fake_pool_free(at[i]);
    return NULL;
}

static void *run_thread(void *(*body)(void *)) {
    pthread_t thread;
    void *result;
    assert_int_equal(pthread_create(&thread, NULL, body, NULL), 0);
    pthread_join(thread, &result);
    return result;
}

static void the_peak_of_a_thread_that_ended_is_not_added_for_ever(void **state) {
    (void)state;
    start(GIB, REUSE_BARRIER, RELAXED);
    assert_null(run_thread(small_peak_and_end));
    struct expected e = {.requested_peak = 8 * MIB, .allocated_peak = 8 * MIB};
    uint64_t large = get(100 * MIB);
    expect_alloc(&e, 100 * MIB);
    compare_peaks(&e);
    drop(large);
}

static pthread_barrier_t step;

static void *hold_small_blocks(void *unused) {
    uint64_t at[8];
    for (int i = 0; i < 8; i++)
        if (pool_alloc(pool, MIB, &at[i]) != 0)
            unused = (void *)1;
    pthread_barrier_wait(&step);
    pthread_barrier_wait(&step);
    for (int i = 0; i < 8; i++)
        fake_pool_free(at[i]);
    return unused;
}

/* With several caches the peak may be too low, by at most the reported error. */
static void the_error_of_a_shared_peak_is_not_understated(void **state) {
    (void)state;
    start(GIB, REUSE_BARRIER, RELAXED);
    pthread_barrier_init(&step, NULL, 5);
    pthread_t threads[4];
    for (int i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, hold_small_blocks, NULL), 0);
    pthread_barrier_wait(&step);
    for (int i = 0; i < 8; i++)
        drop(get(100 * MIB + (uint64_t)i * MIB)); /* other threads hold 32 MiB */
    struct stats_device is = fake_books(pool);
    pthread_barrier_wait(&step);
    for (int i = 0; i < 4; i++) {
        void *result;
        pthread_join(threads[i], &result);
        assert_null(result);
    }
    pthread_barrier_destroy(&step);
    assert_true(is.requested.peak <= 139 * MIB);
    assert_true(is.requested.peak + is.peak_error_bytes >= 139 * MIB);
    assert_true(!is.peaks_exact || is.requested.peak == 139 * MIB);
}

static uint64_t live_of_any_class(const struct stats_device *counters) {
    uint64_t live = 0;
    for (unsigned i = 0; i < STATS_SIZE_CLASSES; i++)
        live += counters->size_classes[i].live;
    return live;
}

static void a_sum_that_misses_an_allocation_but_not_its_free_is_0(void **state) {
    (void)state;
    start(GIB, REUSE_BARRIER, RELAXED);
    get(4096);
    for (unsigned i = 0; i < WATERMARKS; i++)
        watermark_fall(&cache_mine(pool)->watermarks[i], 10000);
    struct stats_device is = fake_books(pool);
    assert_int_equal(is.requested.current, 0);
    assert_int_equal(is.requested.freed, is.requested.total);
    assert_int_equal(is.requested.peak, 4096);
    assert_true(pool_unused_bytes(pool) > 0);
    for (unsigned i = 0; i < WATERMARKS; i++) {
        watermark_rise(&cache_mine(pool)->watermarks[i], 10000);
        watermark_raise(&cache_mine(pool)->watermarks[i]);
    }
}

#define PLACES 4
#define LOOKS 30000
#define BYSTANDERS 100

static uint64_t always_64_kib(unsigned turn) {
    (void)turn;
    return 64 * KIB;
}

static void *have_a_cache(void *unused) {
    cache_of_thread(pool);
    pthread_barrier_wait(&step);
    pthread_barrier_wait(&step);
    return unused;
}

/*
 * The sum may see a free without its allocation, or an allocation without its free. Many other
 * caches between the two make the sum slow.
 */
static void blocks_that_change_hands_are_not_counted_twice(void **state) {
    (void)state;
    start(GIB, REUSE_BARRIER, RELAXED);
    struct exchange exchange = {.places = PLACES, .bytes = always_64_kib};
    exchange_start_asking(&exchange);
    pthread_t bystanders[BYSTANDERS];
    pthread_barrier_init(&step, NULL, BYSTANDERS + 1);
    for (int i = 0; i < BYSTANDERS; i++)
        assert_int_equal(pthread_create(&bystanders[i], NULL, have_a_cache, NULL), 0);
    pthread_barrier_wait(&step);
    exchange_start_freeing(&exchange);
    bool right = true;
    for (int i = 0; i < LOOKS; i++) {
        struct peaks_sums sums = peaks_sums(pool, false);
        right = right && sums.of[WATERMARK_BLOCKS].live <= PLACES &&
                sums.of[WATERMARK_REQUESTED].live <= PLACES * 64 * KIB;
        if (i % 32 == 0) {
            lock_acquire(&pool->source.lock);
            slow_path_recompute(pool);
            lock_release(&pool->source.lock);
            struct stats_device is = fake_books(pool);
            right = right && is.requested.current <= PLACES * 64 * KIB &&
                    is.requested.peak <= PLACES * 64 * KIB && is.allocations.peak <= PLACES &&
                    is.allocations.current <= PLACES && live_of_any_class(&is) <= PLACES &&
                    is.requested.total - is.requested.freed == is.requested.current;
        }
    }
    bool ended = exchange_end(&exchange);
    pthread_barrier_wait(&step);
    for (int i = 0; i < BYSTANDERS; i++)
        pthread_join(bystanders[i], NULL);
    pthread_barrier_destroy(&step);
    assert_true(ended);
    assert_true(right);
    struct stats_device is = fake_books(pool);
    assert_int_equal(is.requested.current, 0);
    assert_true(is.requested.peak + is.peak_error_bytes <= is.active.peak);
}

static void reset_peaks_are_the_current_values(void **state) {
    (void)state;
    start(GIB, REUSE_BARRIER, RELAXED);
    uint64_t large = get(10 * MIB), small = get(MIB), kept = get(3000);
    drop(large);
    drop(small);
    pool_reset_peaks(pool);
    struct stats_device is = fake_books(pool);
    assert_int_equal(is.requested.peak, 3000);
    assert_int_equal(is.allocated.peak, 3072);
    assert_int_equal(is.reserved.peak, is.reserved.current);
    assert_int_equal(is.allocations.current, 1);
    drop(kept);
}

static void active_memory_cannot_be_handed_out_at_once(void **state) {
    (void)state;
    start(GIB, REUSE_BARRIER, RELAXED);
    uint64_t large = get(4 * MIB), small = get(64 * KIB);
    struct stats_device is = fake_books(pool);
    assert_in_range(is.reserved.current - is.ready_bytes, is.allocated.current,
                    is.allocated.current + 128 * KIB);
    use_and_drop(large);
    use_and_drop(small);
    is = fake_books(pool);
    assert_int_equal(is.allocated.current, 0);
    /* pending and cached blocks */
    assert_in_range(is.reserved.current - is.ready_bytes, 4 * MIB + 64 * KIB, 4 * MIB + 192 * KIB);
    fake_finish_all(fake);
    pool_trim(pool, false);
    large = get(4 * MIB);
    is = fake_books(pool);
    assert_int_equal(is.reserved.current - is.ready_bytes, 4 * MIB);
    drop(large);
}

static void misses_count_requests_to_the_driver(void **state) {
    (void)state;
    start(GIB, REUSE_BARRIER, RELAXED);
    uint64_t at = get(5 * MIB);
    assert_int_equal(fake_books(pool).cache_misses, 1);
    drop(at);
    fake_finish_all(fake);
    at = get(5 * MIB);
    assert_int_equal(fake_books(pool).cache_misses, 1);
    get(100);
    assert_int_equal(fake_books(pool).cache_misses, 2);
    get(100);
    assert_int_equal(fake_books(pool).cache_misses, 2);
    assert_int_equal(fake_books(pool).driver_allocs, 2);
}

/* ---- the end of the context ---- */

static void a_forgotten_pool_is_empty_and_serves_the_next_context(void **state) {
    (void)state;
    start(GIB, REUSE_BARRIER, RELAXED);
    uint64_t at[SIZES];
    for (size_t i = 0; i < SIZES; i++)
        at[i] = get(sizes[i]);
    for (size_t i = 0; i < SIZES; i += 2) /* some cached, some pending */
        use_and_drop(at[i]);
    struct stats_device before = fake_books(pool);
    assert_int_equal(pool_forget(pool), fake->reserved);
    assert_int_equal(fake->releases, 0);
    check();
    struct stats_device after = fake_books(pool);
    assert_int_equal(after.requested.current, 0);
    assert_int_equal(after.allocated.current, 0);
    assert_int_equal(after.active.current, 0);
    assert_int_equal(after.reserved.current, 0);
    assert_int_equal(after.segments.current, 0);
    assert_int_equal(after.ready_bytes, 0);
    assert_int_equal(after.allocations.current, 0);
    assert_int_equal(after.allocations.total, before.allocations.total);
    assert_int_equal(after.requested.total, before.requested.total);
    assert_int_equal(after.requested.peak, before.requested.peak);
    for (size_t i = 0; i < SIZES; i++)
        assert_int_equal(fake_pool_free(at[i]), -ENOENT);
    uint64_t fresh = fake_new_context(fake);
    for (size_t i = 0; i < SIZES; i++) {
        at[i] = get(sizes[i]);
        assert_true(at[i] >= fresh);
        check();
    }
    for (size_t i = 0; i < SIZES; i++)
        use_and_drop(at[i]);
    check();
}

static int health_of_a_dead_context(struct backend *backend) {
    (void)backend;
    return 700;
}

static int health_in_a_host_function(struct backend *backend) {
    (void)backend;
    return 800;
}

/*
 * The driver refuses one call, in a host function or in a thread without a context. The context
 * stays usable.
 */
static void a_refusal_of_one_call_does_not_end_the_pool(void **state) {
    (void)state;
    start(GIB, REUSE_BARRIER, RELAXED);
    const struct backend_ops *usual = fake->backend.ops;
    struct backend_ops ops = *usual;
    ops.health = health_in_a_host_function;
    fake->backend.ops = &ops;
    uint64_t address;
    assert_int_equal(pool_alloc(pool, 100, &address), 800);
    assert_int_equal(pool_alloc(pool, 3 * MIB, &address), 800);
    assert_int_equal(pool_broken(pool), 0);
    fake->backend.ops = usual;
    get(100);
    get(3 * MIB);
}

/* Includes a request that no device could serve: natively the error of the context comes first. */
static void every_slow_path_checks_the_health_of_the_context(void **state) {
    (void)state;
    static const uint64_t asked[] = {100, 3 * MIB, 8 * GIB, UINT64_MAX};
    for (int i = 0; i < 4; i++) {
        start(GIB, REUSE_BARRIER, RELAXED);
        struct backend_ops ops = *fake->backend.ops;
        ops.health = health_of_a_dead_context;
        fake->backend.ops = &ops;
        uint64_t address;
        assert_int_equal(pool_alloc(pool, asked[i], &address), 700);
        assert_int_equal(pool_broken(pool), 700);
        assert_int_equal(stop(NULL), 0);
    }
}

static int health_while_the_context_ends(struct backend *backend) {
    (void)backend;
    pool_forget(pool); /* another thread resets the device */
    return 700;
}

static void a_fault_of_an_ended_context_does_not_break_the_next_one(void **state) {
    (void)state;
    start(GIB, REUSE_BARRIER, RELAXED);
    struct backend_ops ops = *fake->backend.ops;
    ops.health = health_while_the_context_ends;
    fake->backend.ops = &ops;
    assert_int_equal(pool_health(pool), 700);
    assert_int_equal(pool_broken(pool), 0);
    assert_int_equal(stop(NULL), 0);
}

static void a_broken_context_answers_with_its_error(void **state) {
    (void)state;
    start(GIB, REUSE_BARRIER, RELAXED);
    uint64_t address, at = get(100), large = get(5 * MIB);
    assert_int_equal(pool_broken(pool), 0);
    atomic_store(&pool->source.epochs.broken, 719);
    assert_int_equal(pool_broken(pool), 719);
    assert_int_equal(pool_alloc(pool, 100, &address), 719);
    assert_int_equal(pool_alloc(pool, 5 * MIB, &address), 719);
    assert_int_equal(fake_pool_free(at), 719);
    assert_int_equal(fake_pool_free(large), 719);
    assert_int_equal(fake_pool_free(large), 719); /* still live */
    pool_forget(pool);
    assert_int_equal(pool_broken(pool), 0);
    get(100);
}

/* ---- threads that end ---- */

static uint64_t shared[1024];

static void *alloc_shared(void *unused) {
    (void)unused;
    for (int i = 0; i < 1024; i++)
        if (pool_alloc(pool, 2048, &shared[i]) != 0)
            return (void *)1;
    return NULL;
}

static void *free_shared(void *unused) {
    (void)unused;
    for (int i = 0; i < 1024; i++)
        if (fake_pool_free(shared[i]) != 0)
            return (void *)1;
    return NULL;
}

static void a_block_of_one_thread_may_be_freed_by_another(void **state) {
    (void)state;
    start(GIB, REUSE_BARRIER, RELAXED);
    assert_null(run_thread(alloc_shared));
    check();
    assert_int_equal(fake_books(pool).requested.current, 1024 * 2048);
    assert_null(run_thread(free_shared));
    check();
    struct stats_device is = fake_books(pool);
    assert_int_equal(is.requested.current, 0);
    assert_int_equal(is.allocations.current, 0);
    assert_int_equal(is.requested.freed, 1024 * 2048);
}

static void a_thread_that_ends_leaves_its_blocks_to_the_others(void **state) {
    (void)state;
    start(2 * MIB, REUSE_BARRIER, RELAXED); /* no memory for a second slab */
    assert_null(run_thread(alloc_shared));
    assert_null(run_thread(free_shared));
    uint64_t at = get(MIB);
    drop(at);
    assert_int_equal(pool_trim(pool, true), 0);
    assert_int_equal(fake->reserved, 0);
}

static pthread_key_t late_key;

static void free_late(void *unused) {
    (void)unused;
    fake_pool_free(shared[0]);
    if (pool_alloc(pool, 2048, &shared[1]) == 0)
        fake_pool_free(shared[1]);
}

static void *free_in_a_destructor(void *unused) {
    if (pool_alloc(pool, 2048, &shared[0]) != 0)
        return (void *)1;
    pthread_setspecific(late_key, shared);
    return unused;
}

/* The destructor runs after the destructor that removes the thread's caches. */
static void a_free_in_a_threads_last_destructor_is_not_lost(void **state) {
    (void)state;
    start(GIB, REUSE_BARRIER, RELAXED);
    get(100); /* creates the pool's key first */
    assert_int_equal(pthread_key_create(&late_key, free_late), 0);
    assert_null(run_thread(free_in_a_destructor));
    pthread_key_delete(late_key);
    check();
    assert_int_equal(fake_books(pool).requested.current, 100);
}

enum { LATE_PAIRS = 100000 };
static atomic_bool late_ended;

static void churn_late(void *unused) {
    (void)unused;
    for (int i = 0; i < LATE_PAIRS; i++) {
        uint64_t address;
        if (pool_alloc(pool, 2048, &address) == 0)
            fake_pool_free(address);
    }
    atomic_store(&late_ended, true);
}

/* The destructor counts in the common cache. The sums of another thread restart its watermarks. */
static void counts_of_a_threads_last_destructor_are_not_lost_to_a_sum(void **state) {
    (void)state;
    pthread_t thread;
    start(GIB, REUSE_BARRIER, RELAXED);
    get(100); /* creates the pool's key first */
    assert_int_equal(pthread_key_create(&late_key, churn_late), 0);
    assert_int_equal(pthread_create(&thread, NULL, free_in_a_destructor, NULL), 0);
    while (!atomic_load(&late_ended))
        pool_set_capacity(pool, GIB); /* updates the peaks */
    pthread_join(thread, NULL);
    pthread_key_delete(late_key);
    check();
    assert_int_equal(fake_books(pool).requested.current, 100 + 2048);
}

static void a_hundred_threads_one_after_another_leave_no_cache(void **state) {
    (void)state;
    start(GIB, REUSE_BARRIER, RELAXED);
    for (int i = 0; i < 100; i++) {
        assert_null(run_thread(alloc_shared));
        assert_null(run_thread(free_shared));
        fake_finish_all(fake);
        assert_ptr_equal(atomic_load(&pool->caches), pool->common);
        assert_null(pool->common->next_in_pool);
    }
    assert_true(fake->reserved <= 8 * MIB);
    check();
}

/* ---- memory that can go back ---- */

static uint64_t cannot_go_back(void) {
    uint64_t stuck = pool_stuck_bytes(pool), idle = pool_unused_bytes(pool);
    return fake->reserved - (idle - stuck);
}

/* Cached blocks next to a live one cannot go back. A slab with cached blocks only can. */
static void small_blocks_that_are_freed_change_nothing_of_what_can_go_back(void **state) {
    (void)state;
    start(4 * GIB, REUSE_BARRIER, RELAXED);
    get(4);
    uint64_t before_pairs = cannot_go_back();
    for (unsigned i = 0; i < 2000; i++)
        drop(get(i * 37 % 100000 + 1));
    assert_int_equal(cannot_go_back(), before_pairs);
}

/* Freed blocks in more than STUCK_SLABS_MOST slabs count as free while work still uses them. */
static void pending_small_blocks_count_as_free(void **state) {
    static uint64_t blocks[2 * STUCK_SLABS_MOST * 8];
    (void)state;
    start(4 * GIB, REUSE_BARRIER, RELAXED);
    get(4 * MIB);
    uint64_t before = cannot_go_back();
    for (unsigned i = 0; i < sizeof blocks / sizeof *blocks; i++)
        blocks[i] = get(256 << 10);
    for (unsigned i = 0; i < sizeof blocks / sizeof *blocks; i++)
        use_and_drop(blocks[i]);
    assert_true(cannot_go_back() <= before + 4 * MIB);
}

/* More slabs than STUCK_SLABS_MOST. */
static void free_memory_between_many_small_blocks_cannot_go_back(void **state) {
    (void)state;
    start(4 * GIB, REUSE_BARRIER, RELAXED);
    while (pool->source.small.reserved_bytes - pool->source.small.free_bytes <
           2 * STUCK_SLABS_MOST * PAGE_BYTES)
        get(300 << 10);
    uint64_t stuck = pool_stuck_bytes(pool);
    assert_in_range(stuck, pool->source.runs.free_units << UNIT_SHIFT, pool_unused_bytes(pool));
    assert_true(pool->source.runs.free_units > 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(every_block_has_its_bytes_and_a_segment_of_its_own_device),
        TEST(a_look_up_finds_every_byte_of_a_block_and_no_other),
        TEST(an_id_belongs_to_one_allocation_of_one_block),
        TEST(a_repeated_pair_of_calls_takes_no_more_memory),
        TEST(a_wrong_free_changes_nothing),
        TEST(memory_of_others_is_not_the_pools),
        TEST(a_segment_given_back_is_not_the_pools_again),
        TEST(the_counters_agree_at_every_step),
        TEST(the_peak_of_small_blocks_is_exact),
        TEST(the_peak_of_the_count_is_exact),
        TEST(a_large_block_after_small_ones_does_not_add_to_their_peak),
        TEST(a_large_block_freed_after_small_ones_still_counts_for_their_peak),
        TEST(two_pools_of_one_thread_have_exact_peaks),
        TEST(the_peak_of_a_thread_that_ended_is_not_added_for_ever),
        TEST(the_error_of_a_shared_peak_is_not_understated),
        TEST(a_sum_that_misses_an_allocation_but_not_its_free_is_0),
        TEST(blocks_that_change_hands_are_not_counted_twice),
        TEST(reset_peaks_are_the_current_values),
        TEST(active_memory_cannot_be_handed_out_at_once),
        TEST(misses_count_requests_to_the_driver),
        TEST(a_forgotten_pool_is_empty_and_serves_the_next_context),
        TEST(every_slow_path_checks_the_health_of_the_context),
        TEST(a_fault_of_an_ended_context_does_not_break_the_next_one),
        TEST(a_refusal_of_one_call_does_not_end_the_pool),
        TEST(a_broken_context_answers_with_its_error),
        TEST(a_block_of_one_thread_may_be_freed_by_another),
        TEST(a_thread_that_ends_leaves_its_blocks_to_the_others),
        TEST(a_free_in_a_threads_last_destructor_is_not_lost),
        TEST(counts_of_a_threads_last_destructor_are_not_lost_to_a_sum),
        TEST(a_hundred_threads_one_after_another_leave_no_cache),
        TEST(small_blocks_that_are_freed_change_nothing_of_what_can_go_back),
        TEST(pending_small_blocks_count_as_free),
        TEST(free_memory_between_many_small_blocks_cannot_go_back),
    };
    return cmocka_run_group_tests_name("pool", tests, NULL, NULL);
}
