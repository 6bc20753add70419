/*
 * How far the pool grows while it has idle segments: slightly beyond the peak of live memory,
 * whether the device is busy or not, as long as idle segments can be released.
 */
#include "pool_bench.h"

#include <stdlib.h>

static uint64_t live, live_peak;

/* Starts a pool on a large device. */
static void start_growing(void) {
    start(140 * GIB, REUSE_BARRIER, 0);
    live = live_peak = 0;
}

static uint64_t get_live(uint64_t bytes) {
    live += bytes;
    live_peak = live > live_peak ? live : live_peak;
    return get(bytes);
}

static void drop_live(uint64_t address, uint64_t bytes) {
    live -= bytes;
    drop(address);
}

static uint64_t allowed(uint64_t peak) {
    return peak + peak / 10 * 3 + 64 * MIB;
}

static void is_within_bounds(void) {
    assert_in_range(fake->reserved_peak, live_peak, allowed(live_peak));
}

/* ---- sizes that change ---- */

/* Replaces a buffer by a larger one, step by step. Both are in use before the old one is freed. */
static void grow_a_buffer(void (*between)(void)) {
    uint64_t bytes = 64 * MIB, at = get_live(bytes);
    while (bytes < GIB) {
        uint64_t more = (bytes + bytes / 32 + 511) & ~(uint64_t)511, to = get_live(more);
        fake_submit(fake, 0);
        drop_live(at, bytes);
        if (between)
            between();
        at = to;
        bytes = more;
    }
    is_within_bounds();
}

static void finish(void) {
    fake_finish_all(fake);
}

static void submit_more(void) {
    fake_submit(fake, 1);
}

static void a_buffer_that_grows_holds_little_more_than_itself(void **state) {
    (void)state;
    start_growing();
    grow_a_buffer(finish);
}

static void a_buffer_that_grows_on_a_busy_device_holds_little_more(void **state) {
    (void)state;
    start_growing();
    grow_a_buffer(submit_more);
    assert_true(fake->waits > 0);
}

/* The pool can wait for work on freed memory only by an event recorded in the free. */
static void blocks_of_another_size_in_the_next_phase_hold_little_more(void **state) {
    (void)state;
    enum { EACH = 32 };
    static const uint64_t sizes[] = {100 * MIB, 137 * MIB, 174 * MIB};
    uint64_t at[EACH];
    start_growing();
    for (int phase = 0; phase < 9; phase++) {
        uint64_t bytes = sizes[phase % 3], count = EACH * sizes[0] / bytes;
        for (uint64_t i = 0; i < count; i++)
            at[i] = get_live(bytes);
        for (uint64_t i = 0; i < count; i++) {
            fake_submit(fake, 0);
            drop_live(at[i], bytes);
        }
        if (phase < 2) /* later phases share segments of several sizes */
            is_within_bounds();
    }
    assert_true(fake->records > 0);
}

static void changing_sizes_within_the_bound_call_no_driver(void **state) {
    (void)state;
    start_growing();
    uint64_t kept = get_live(GIB);
    unsigned reserves = 0;
    for (int i = 0; i < 40; i++) {
        uint64_t bytes = i % 2 ? 70 * MIB : 90 * MIB, at = get_live(bytes);
        fake_submit(fake, 0);
        drop_live(at, bytes);
        fake_finish_all(fake);
        reserves = i == 3 ? fake->reserves : reserves;
    }
    assert_int_equal(fake->reserves, reserves);
    assert_int_equal(fake->releases, 0);
    drop(kept);
}

/* ---- releases to the driver ---- */

/* Leaves two idle segments of 1 GiB. The second was freed after the first. */
static void leave_two_idle(void) {
    start_growing();
    uint64_t a = get_live(GIB), b = get_live(GIB);
    for (int i = 0; i < 2; i++) { /* each free records an event */
        fake_submit(fake, 0);
        drop_live(i == 0 ? a : b, GIB);
    }
    assert_int_equal(fake->reserved, 2 * GIB);
}

/*
 * The pool tries a barrier first. The barrier holds up the stream that frees segments, so the pool
 * waits for its work too.
 */
static void only_the_work_in_front_of_released_memory_is_waited_for(void **state) {
    (void)state;
    leave_two_idle();
    fake_submit(fake, 0);
    get_live(GIB + 512 * MIB);
    assert_int_equal(fake->orders, 1);
    assert_int_equal(fake->waits, 2);
    assert_int_equal(fake->completed[0], 2); /* the third piece of work still runs */
    assert_int_equal(fake->releases, 1);
    is_within_bounds();
}

static void work_that_finished_by_now_is_not_waited_for(void **state) {
    (void)state;
    leave_two_idle();
    get_live(GIB); /* handed out behind a barrier */
    assert_int_equal(fake->orders, 1);
    fake_finish_all(fake);
    get_live(GIB + 512 * MIB);
    assert_int_equal(fake->waits, 0);
    assert_int_equal(fake->releases, 1);
    is_within_bounds();
}

static void nothing_is_waited_for_within_the_bound(void **state) {
    (void)state;
    start_growing();
    get_live(8 * GIB);
    uint64_t at = get_live(GIB);
    fake_submit(fake, 0);
    drop_live(at, GIB);
    get_live(GIB + 512 * MIB);
    assert_int_equal(fake->waits, 0);
    assert_int_equal(fake->releases, 0);
    is_within_bounds();
}

static void work_of_a_late_event_is_not_waited_for(void **state) {
    (void)state;
    start_growing();
    uint64_t at = get_live(GIB);
    fake_submit(fake, 0);
    fake->record_code = -EBUSY; /* as during a capture */
    drop_live(at, GIB);
    fake->record_code = 0;
    fake->busy_for_ever = true;
    get_live(GIB + 512 * MIB);
    assert_int_equal(fake->waits, 0);
    assert_int_equal(fake->releases, 0);
}

/* ---- other threads during a request ---- */

static const struct backend_ops *fake_ops;

static void call_with(struct backend_ops *ops) {
    fake_ops = fake->backend.ops;
    *ops = *fake_ops;
    fake->backend.ops = ops;
}

static unsigned to_grow;

/* Lets another thread allocate the same size while this one is inside the driver. */
static int grow_in_another_thread(struct backend *backend, uint64_t bytes, uint64_t *address) {
    if (to_grow > 0) {
        to_grow--;
        get_live(bytes);
    }
    return fake_ops->reserve(backend, bytes, address);
}

static void grow_in_threads(unsigned threads, uint64_t bytes) {
    struct backend_ops ops;
    call_with(&ops);
    ops.reserve = grow_in_another_thread;
    to_grow = threads - 1;
    get_live(bytes);
    assert_int_equal(to_grow, 0);
    fake->backend.ops = fake_ops;
}

static void growths_of_other_threads_count_as_reserved(void **state) {
    (void)state;
    enum { EACH = 32 };
    uint64_t at[EACH];
    start_growing();
    for (int i = 0; i < EACH; i++)
        at[i] = get_live(256 * MIB);
    for (int i = 0; i < EACH; i++) {
        fake_submit(fake, 0);
        drop_live(at[i], 256 * MIB);
    }
    fake_finish_all(fake);
    grow_in_threads(EACH / 2, 258 * MIB); /* the budget allows the first ones */
    is_within_bounds();
}

static void growths_of_other_threads_count_as_live(void **state) {
    (void)state;
    start_growing();
    use_and_drop(get_live(GIB));
    live -= GIB;
    fake_finish_all(fake);
    grow_in_threads(8, 4 * GIB);
    is_within_bounds();
}

static uint64_t in_use;

/*
 * Another thread uses one block after another while any is free. Idle segments then wait for its
 * new work.
 */
static int use_others_meanwhile(struct backend *backend, unsigned slot) {
    int r = fake_ops->wait(backend, slot);
    bool fresh = fake->waits > 40;
    while (!fresh) {
        uint64_t next = get(GIB);
        fake_submit(fake, 1);
        drop(in_use);
        in_use = next;
        fresh = pool->source.large.idle_bytes > 0 &&
                !idle_segment(&pool->source.large, 0, pool->source.epochs.finished);
    }
    return r;
}

static void only_memory_freed_before_the_request_is_waited_for(void **state) {
    (void)state;
    enum { EACH = 6 };
    uint64_t at[EACH];
    start_growing();
    for (int i = 0; i < EACH; i++)
        at[i] = get_live(GIB);
    for (int i = 0; i < EACH; i++) {
        fake_submit(fake, 1);
        drop_live(at[i], GIB);
    }
    in_use = get(GIB);
    struct backend_ops ops;
    call_with(&ops);
    ops.wait = use_others_meanwhile;
    get(3 * GIB);
    assert_in_range(fake->waits, 1, EACH);
    fake->backend.ops = fake_ops;
}

/* Another thread uses one block after another while this one waits. */
static int take_turns_meanwhile(struct backend *backend, unsigned slot) {
    for (int i = 0; i < 50; i++)
        use_and_drop(get(GIB));
    return fake_ops->wait(backend, slot);
}

static void other_threads_go_on_within_bounds_while_one_waits(void **state) {
    (void)state;
    start_growing();
    for (int i = 0; i < 2 * BACKEND_SLOTS; i++) { /* more than the number of events */
        use_and_drop(get_live(GIB));
        live -= GIB;
    }
    struct backend_ops ops;
    call_with(&ops);
    ops.wait = take_turns_meanwhile;
    get_live(GIB + 512 * MIB);
    assert_true(fake->waits > 0);
    live_peak += GIB; /* live block of the other thread */
    is_within_bounds();
    fake->backend.ops = fake_ops;
}

static bool taking;

/* Other threads take all memory that this thread waits for, and what is freed after it. */
static int take_all_meanwhile(struct backend *backend, unsigned slot) {
    uint64_t all = epochs_latest_in_free(&pool->source.epochs);
    int r = fake_ops->wait(backend, slot);
    bool first = !taking;
    taking = true;
    while (first && (source_free(&pool->source) > 0 || !epochs_is_safe(&pool->source.epochs, all)))
        use_and_drop(get(256 * MIB));
    return r;
}

static void frees_of_others_during_a_wait_are_synchronised_before_the_pool_grows(void **state) {
    (void)state;
    enum { EACH = 20 };
    uint64_t at[EACH];
    start(140 * GIB, REUSE_BARRIER, EACH * 256 * MIB);
    pool_expect_streams(4); /* makes the pool wait */
    for (int i = 0; i < EACH; i++)
        at[i] = get(256 * MIB);
    for (int i = 0; i < EACH; i++)
        use_and_drop(at[i]);
    struct backend_ops ops;
    call_with(&ops);
    ops.wait = take_all_meanwhile;
    get(256 * MIB);
    assert_true(taking);
    assert_int_equal(fake->reserves, EACH);
    fake->backend.ops = fake_ops;
    pool_expect_streams(0);
}

/* ---- a driver whose releases complete later ---- */

static unsigned returns_left, early_reserves;

static int release_slowly(struct backend *backend, uint64_t address, uint64_t bytes) {
    returns_left = 3;
    return fake_ops->release(backend, address, bytes);
}

static int returned_slowly(struct backend *backend) {
    (void)backend;
    returns_left -= returns_left > 0;
    return returns_left > 0 ? -EAGAIN : 0;
}

static int reserve_and_see(struct backend *backend, uint64_t bytes, uint64_t *address) {
    uint64_t then = fake->reserved + pool->source.returning_bytes + bytes;
    early_reserves += returns_left > 0 && then > allowed(live_peak + bytes);
    return fake_ops->reserve(backend, bytes, address);
}

static void a_release_is_complete_before_the_pool_grows(void **state) {
    (void)state;
    start_growing();
    struct backend_ops ops;
    call_with(&ops);
    ops.release = release_slowly;
    ops.returned = returned_slowly;
    ops.reserve = reserve_and_see;
    returns_left = early_reserves = 0;
    grow_a_buffer(finish);
    assert_true(fake->releases > 0);
    assert_int_equal(early_reserves, 0);
    fake->backend.ops = fake_ops;
}

/* ---- large ranges ---- */

static void a_large_range_is_cut_before_the_pool_holds_too_much(void **state) {
    (void)state;
    start_growing();
    use_and_drop(get_live(10 * GIB));
    live -= 10 * GIB;
    fake_finish_all(fake);
    uint64_t first = get_live(2 * GIB); /* large enough to split the free range */
    assert_int_equal(fake->reserved, 10 * GIB);
    for (int i = 0; i < 14; i++) {
        struct pool_block found;
        struct pool_segment segment;
        uint64_t at = get_live(512 * MIB);
        assert_int_equal(pool_find_segment(at, &found, &segment), 0);
        assert_true(segment.address != at || segment.bytes == 512 * MIB);
    }
    is_within_bounds();
    drop(first);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(a_buffer_that_grows_holds_little_more_than_itself),
        TEST(a_buffer_that_grows_on_a_busy_device_holds_little_more),
        TEST(blocks_of_another_size_in_the_next_phase_hold_little_more),
        TEST(changing_sizes_within_the_bound_call_no_driver),
        TEST(only_the_work_in_front_of_released_memory_is_waited_for),
        TEST(work_that_finished_by_now_is_not_waited_for),
        TEST(nothing_is_waited_for_within_the_bound),
        TEST(work_of_a_late_event_is_not_waited_for),
        TEST(growths_of_other_threads_count_as_reserved),
        TEST(growths_of_other_threads_count_as_live),
        TEST(only_memory_freed_before_the_request_is_waited_for),
        TEST(other_threads_go_on_within_bounds_while_one_waits),
        TEST(frees_of_others_during_a_wait_are_synchronised_before_the_pool_grows),
        TEST(a_release_is_complete_before_the_pool_grows),
        TEST(a_large_range_is_cut_before_the_pool_holds_too_much),
    };
    return cmocka_run_group_tests_name("growth", tests, NULL, NULL);
}
