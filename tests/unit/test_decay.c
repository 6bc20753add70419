/*
 * Tests decay: which idle memory is released to the driver after how many ticks, and which stays.
 * A tick is the decay time divided by DECAY_TICKS.
 */
#include "pool_bench.h"

#include <sched.h>

#define PAGE (2 * MIB)
#define WHOLE                                                                                      \
    (DECAY_TICKS + 1) /* memory freed between two ticks is as old as the decay time then */

static int with_pages(void **state) {
    (void)state;
    maps_pages = true;
    return 0;
}

static int with_segments(void **state) {
    (void)state;
    maps_pages = false;
    return 0;
}

static void begin(uint64_t memory, uint64_t budget) {
    start(memory, REUSE_BARRIER, budget);
    pool->source.config.decays = true;
}

/* Runs one tick as the helper thread does. Returns false if the helper may sleep. */
static bool tick(void) {
    bool any = pool_tick(pool);
    while (pool_decay(pool)) {
    }
    return any;
}

static void ticks(unsigned count) {
    while (count-- > 0)
        tick();
}

static void freed_memory_is_released_after_the_whole_decay_time(void **state) {
    (void)state;
    begin(GIB, RELAXED);
    uint64_t live = get(10 * MIB);
    drop(get(100 * MIB));
    finish_all();
    ticks(WHOLE - 1);
    assert_int_equal(fake->reserved, 110 * MIB);
    ticks(1);
    assert_int_equal(fake->reserved, 10 * MIB);
    assert_int_equal(fake_books(pool).reserved.current, 10 * MIB);
    check();
    drop(live);
    ticks(WHOLE);
    assert_int_equal(fake->reserved, 0);
    assert_int_equal(fake->waits + fake->synchronizes, 0);
}

/* Another thread freed a range that fits while the pool grew, so the new segment stays idle. */
static void a_segment_that_no_request_used_stays_for_the_decay_time(void **state) {
    (void)state;
    begin(GIB, RELAXED);
    struct source *source = &pool->source;
    struct alloc_request request = {.bin = BINS, .bytes = 40 * MIB, .large = true};
    drop(get(10 * MIB));
    finish_all();
    ticks(WHOLE + 1);
    assert_int_equal(fake->reserved, 0);
    lock_acquire(&source->lock);
    assert_int_equal(source->policy->grow(source, &request), 0);
    lock_release(&source->lock);
    ticks(WHOLE - 1);
    assert_true(fake->reserved >= 40 * MIB);
    ticks(1);
    assert_int_equal(fake->reserved, 0);
}

/* A growing thread may need the idle memory, and would otherwise wait until all is released. */
static void nothing_is_released_while_the_pool_grows(void **state) {
    (void)state;
    begin(GIB, RELAXED);
    drop(get(100 * MIB));
    finish_all();
    pool->source.growing.threads = 1;
    ticks(WHOLE + 1);
    assert_int_equal(fake->reserved, 100 * MIB);
    pool->source.growing.threads = 0;
    ticks(1);
    assert_int_equal(fake->reserved, 0);
}

/* The program makes no call, so only the tick can query the events. */
static void memory_is_released_although_the_program_makes_no_call(void **state) {
    (void)state;
    begin(GIB, RELAXED);
    uint64_t blocks[8];
    for (int i = 0; i < 8; i++)
        blocks[i] = get(10 * MIB);
    for (int i = 0; i < 8; i++)
        drop_used(blocks[i], 10 * MIB);
    fake_finish_all(fake);
    ticks(WHOLE + 1);
    assert_int_equal(fake->reserved, 0);
}

static void blocks_in_the_cache_of_an_idle_thread_are_released(void **state) {
    (void)state;
    begin(64 * GIB, RELAXED);
    drop(get(200 * MIB));
    uint64_t blocks[40];
    let_hold(64 * MIB);
    for (int i = 0; i < 40; i++)
        blocks[i] = get(i % 2 ? 2 * MIB : 700 * KIB);
    for (int i = 0; i < 40; i++)
        drop(blocks[i]);
    finish_all();
    ticks(WHOLE - 1);
    assert_true(fake->reserved > 40 * MIB);
    ticks(2); /* blocks over its quota may be a tick younger */
    assert_int_equal(fake->reserved, 0);
    assert_false(tick());
    check();
    drop(get(64 * KIB));
}

static void *drops(void *address) {
    drop(*(const uint64_t *)address);
    return NULL;
}

/*
 * No event covers what the idle thread freed, so the tick must query first: blocks that are not
 * known to be safe would queue behind the newer block and become as young as it is.
 */
static void a_newer_free_of_another_thread_does_not_keep_an_idle_cache(void **state) {
    (void)state;
    begin(64 * GIB, RELAXED);
    uint64_t newer = get(20 * MIB), blocks[40];
    let_hold(64 * MIB);
    for (int i = 0; i < 40; i++)
        blocks[i] = get(MIB);
    for (int i = 0; i < 40; i++)
        drop(blocks[i]);
    fake_finish_all(fake);
    ticks(WHOLE - 1);
    assert_true(fake->reserved >= 60 * MIB);
    pthread_t other;
    pthread_create(&other, NULL, drops, &newer);
    pthread_join(other, NULL);
    ticks(2);
    assert_in_range(fake->reserved, 20 * MIB, 22 * MIB);
    ticks(WHOLE);
    assert_int_equal(fake->reserved, 0);
}

static void blocks_in_the_cache_of_a_busy_thread_stay(void **state) {
    (void)state;
    begin(64 * GIB, RELAXED);
    drop(get(200 * MIB));
    uint64_t blocks[20];
    let_hold(64 * MIB);
    for (int i = 0; i < 20; i++)
        blocks[i] = get(MIB);
    for (int i = 0; i < 20; i++)
        drop(blocks[i]);
    finish_all();
    for (int i = 0; i < 50; i++) {
        drop(get(64 * KIB));
        ticks(1);
    }
    assert_in_range(fake->reserved, 20 * MIB, 30 * MIB);
}

/*
 * In each of two phases, the memory of the other phase is idle: the number of free VMM pages is
 * never 0.
 */
static void a_program_that_comes_back_in_time_loses_nothing(void **state) {
    (void)state;
    begin(GIB, RELAXED);
    unsigned maps = 0, unmaps = 0, reserves = 0, releases = 0;
    for (int period = 0; period < 20; period++) {
        uint64_t size = period % 2 ? 100 * MIB : 60 * MIB, live = get(size), small = get(64 * KIB);
        maps = period < 2 ? fake->maps : maps;
        reserves = period < 2 ? fake->reserves : reserves;
        ticks(DECAY_TICKS / 2);
        drop_used(live, size);
        drop(small);
        finish_all();
    }
    assert_int_equal(fake->maps, maps);
    assert_int_equal(fake->unmaps, unmaps);
    assert_int_equal(fake->reserves, reserves);
    assert_int_equal(fake->releases, releases);
}

/* A tick makes no driver call while the program allocates and frees. */
static void a_tick_queries_nothing_while_the_program_allocates(void **state) {
    (void)state;
    begin(GIB, RELAXED);
    for (int period = 0; period < 40; period++) {
        uint64_t block = get(20 * MIB);
        fake_reach(fake, block, 20 * MIB, 0, fake_submit(fake, 0));
        drop(block);
        fake_finish_all(fake);
        unsigned queries = fake->queries, records = fake->records;
        ticks(1);
        assert_int_equal(fake->queries, queries);
        assert_int_equal(fake->records, records);
    }
    assert_int_equal(fake->unmaps + fake->releases, 0);
}

static void memory_stays_while_its_work_runs(void **state) {
    (void)state;
    begin(GIB, RELAXED);
    for (int i = 0; i < 3; i++) { /* event recorded in the free, recorded later, behind a barrier */
        uint64_t block = get((uint64_t)(10 + i) * MIB);
        drop_used(block, (uint64_t)(10 + i) * MIB);
        ticks(3 * WHOLE); /* the fake device checks each release */
        assert_int_not_equal(fake->reserved, 0);
    }
    assert_int_equal(fake->releases, 0);
    fake_finish_all(fake);
    ticks(WHOLE + 1);
    assert_int_equal(fake->reserved, 0);
}

/* A barrier made two blocks safe: one is free, but the work in front of the barrier still runs. */
static void free_memory_behind_a_barrier_stays_until_its_work_is_done(void **state) {
    (void)state;
    begin(GIB, TIGHT);
    fake->wait_code = -EBUSY;
    uint64_t a = get(8 * MIB), b = get(8 * MIB);
    drop_used(b, 8 * MIB);
    drop_used(a, 8 * MIB);
    a = get(8 * MIB);
    assert_int_equal(fake->orders, 1);
    assert_int_equal(pool->source.large.idle_bytes, 8 * MIB);
    ticks(3 * WHOLE); /* the fake device checks each release */
    assert_int_equal(fake->reserved, 16 * MIB);
    fake_finish_all(fake);
    ticks(1);
    assert_int_equal(fake->reserved, 8 * MIB);
}

/* The kernel submitted after the frees never ends. */
static void memory_is_released_while_later_work_runs(void **state) {
    (void)state;
    begin(16 * GIB, RELAXED);
    uint64_t blocks[32];
    for (int i = 0; i < 32; i++)
        blocks[i] = get(70 * MIB);
    uint64_t last = fake_submit(fake, 0);
    for (int i = 0; i < 32; i++) {
        fake_reach(fake, blocks[i], 70 * MIB, 0, last);
        drop(blocks[i]);
    }
    fake_finish_all(fake);
    fake_submit(fake, 1);
    ticks(3 * WHOLE);
    assert_in_range(fake->reserved, 0, 2 * 70 * MIB);
    assert_int_equal(fake->waits + fake->synchronizes, 0);
}

/*
 * Without context events, no free adds a wait. With them, frees of as many bytes record an event.
 */
static void where_an_event_is_a_wait_no_free_adds_one(void **state) {
    (void)state;
    for (int has = 0; has < 2; has++) {
        begin(GIB, 60 * MIB);
        atomic_store(&fake->backend.has_events, has);
        uint64_t blocks[8];
        for (int i = 0; i < 8; i++)
            blocks[i] = get(4 * MIB);
        drop(blocks[0]); /* the first free always records */
        unsigned waits = fake->synchronizes, records = fake->records;
        for (int i = 1; i < 4; i++)
            drop(blocks[i]);
        assert_int_equal(fake->synchronizes, waits);
        assert_int_equal(fake->records > records, has);
        assert_int_equal(stop(NULL), 0);
    }
}

/* Natively the free would have released the memory. */
static void externally_visible_memory_is_released_too(void **state) {
    (void)state;
    begin(GIB, RELAXED);
    uint64_t exported = get(8 * MIB);
    assert_int_equal(pool_mark_externally_visible(exported), 0);
    drop_used(exported, 8 * MIB);
    ticks(3 * WHOLE);
    assert_int_equal(fake->reserved, 8 * MIB);
    fake_finish_all(fake);
    ticks(WHOLE + 1);
    assert_int_equal(fake->reserved, 0);
}

static void after_a_fault_nothing_is_released(void **state) {
    (void)state;
    begin(GIB, RELAXED);
    drop(get(8 * MIB));
    finish_all();
    atomic_store(&pool->source.epochs.broken, 719);
    assert_false(tick());
    ticks(4 * WHOLE);
    assert_int_equal(fake->reserved, 8 * MIB);
}

static void the_helper_is_woken_once_for_each_idle_period(void **state) {
    (void)state;
    begin(GIB, RELAXED);
    for (unsigned turn = 1; turn < 4; turn++) {
        drop(get(8 * MIB));
        drop(get(20 * MIB));
        assert_int_equal(fake->idles, turn);
        fake_finish_all(fake);
        unsigned rounds = 0;
        while (tick() && rounds < 100)
            rounds++;
        assert_in_range(rounds, WHOLE, 2 * WHOLE);
        assert_int_equal(fake->reserved, 0);
    }
}

/* The block was freed in stream order. The program allocates nothing meanwhile. */
static void a_deferred_free_starts_the_decay_time_when_reclaimed(void **state) {
    (void)state;
    begin(GIB, RELAXED);
    struct pool_deferred retired;
    uint64_t block = get(8 * MIB);
    ticks(4 * WHOLE);
    assert_int_equal(pool_defer_free(block, &retired), 0);
    ticks(4 * WHOLE);
    assert_int_equal(fake->reserved, 8 * MIB);
    pool_reclaim(&retired);
    ticks(WHOLE - 1);
    assert_int_equal(fake->reserved, 8 * MIB);
    ticks(1);
    assert_int_equal(fake->reserved, 0);
}

/* New memory is mapped into the gaps of released memory, so addresses are not used up. */
static void new_memory_is_mapped_where_memory_was_released(void **state) {
    (void)state;
    begin(4 * GIB, RELAXED);
    uint64_t first = 0;
    for (int round = 0; round < 40; round++) {
        for (uint64_t size = 3; size < 100; size += 7) {
            uint64_t at = get(size * MIB);
            first = first ? first : at;
            assert_in_range(at, first, first + 200 * MIB);
            drop(at);
            finish_all();
        }
        ticks(WHOLE + 1);
        assert_int_equal(fake->reserved, 0);
    }
}

static void a_new_context_is_watched_anew(void **state) {
    (void)state;
    begin(GIB, RELAXED);
    drop(get(8 * MIB));
    fake_finish_all(fake);
    pool_forget(pool);
    fake_new_context(fake);
    ticks(2 * WHOLE);
    assert_false(tick());
    unsigned idles = fake->idles;
    drop(get(8 * MIB));
    assert_int_equal(fake->idles, idles + 1);
    fake_finish_all(fake);
    ticks(WHOLE + 1);
    assert_int_equal(fake->reserved, 0);
}

/* ---- segments ---- */

/* Returns whether the range lies in one segment that the pool holds. */
static bool is_had(uint64_t address, uint64_t bytes) {
    bool had = false;
    pthread_mutex_lock(&fake->lock);
    for (unsigned i = 0; i < fake->segment_count && !had; i++) {
        const struct fake_segment *s = &fake->segments[i];
        had = s->taken && address >= s->address && address + bytes <= s->address + s->bytes;
    }
    pthread_mutex_unlock(&fake->lock);
    return had;
}

/* A segment is idle since the free of its last block, however long the others were free. */
static void a_segment_is_released_whole(void **state) {
    (void)state;
    begin(GIB, RELAXED);
    drop(get(100 * MIB));
    finish_all();
    uint64_t block = get(25 * MIB); /* taken from the free range */
    ticks(3 * WHOLE);
    assert_int_equal(fake->reserved, 100 * MIB);
    drop(block);
    finish_all();
    ticks(WHOLE - 1);
    assert_int_equal(fake->reserved, 100 * MIB);
    ticks(1);
    assert_int_equal(fake->reserved, 0);
    check();
    assert_int_equal(fake_books(pool).reserved.current, 0);
    assert_int_equal(fake_books(pool).driver_frees, 1);
}

/* One block was in an idle thread's cache for long. The other becomes free just before the tick. */
static void a_segment_is_as_young_as_its_youngest_block(void **state) {
    (void)state;
    begin(64 * GIB, RELAXED);
    struct pool_deferred retired;
    keep_large_blocks();
    drop(get(200 * MIB));
    let_hold(63 * MIB);
    uint64_t young = get(3 * MIB / 2), old = get(3 * MIB / 2);
    assert_true(is_had(young < old ? young : old, 3 * MIB));
    finish_all();
    assert_int_equal(pool_defer_free(young, &retired), 0);
    drop(old);
    finish_all();
    ticks(DECAY_TICKS);
    assert_int_equal(cache_mine(pool)->bytes, 3 * MIB / 2);
    pool_reclaim(&retired);
    ticks(1);
    assert_int_equal(cache_mine(pool)->bytes, 0);
    ticks(DECAY_TICKS - 1);
    assert_true(is_had(young, 3 * MIB / 2));
    ticks(1);
    assert_false(is_had(young, 3 * MIB / 2));
}

/* A barrier also holds up the stream in which segments are freed. The tick must query, not wait. */
static void a_tick_queries_memory_that_is_being_freed(void **state) {
    (void)state;
    begin(GIB, TIGHT);
    uint64_t idle = get(4 * MIB), a = get(8 * MIB);
    drop(idle);
    finish_all();
    drop_used(a, 8 * MIB);
    a = get(8 * MIB);
    assert_int_equal(fake->orders, 1);
    ticks(WHOLE + 1);
    assert_int_equal(fake->releases, 1);
    assert_int_equal(fake->reserved, 12 * MIB);
    assert_int_equal(fake_books(pool).reserved.current, 8 * MIB);
    assert_true(tick());
    fake_finish_all(fake);
    ticks(1);
    assert_int_equal(fake->reserved, 8 * MIB);
    assert_int_equal(pool->source.returning_bytes, 0);
    assert_int_equal(fake->waits + fake->synchronizes, 0);
}

/* The decay thread may release the memory after the driver has refused a request. */
static void a_refused_request_waits_for_memory_that_is_being_freed(void **state) {
    (void)state;
    begin(12 * MIB, TIGHT);
    uint64_t idle = get(4 * MIB), a = get(8 * MIB);
    drop(idle);
    finish_all();
    drop_used(a, 8 * MIB);
    get(8 * MIB);
    ticks(WHOLE + 1);
    assert_int_equal(pool->source.returning_bytes, 4 * MIB);
    fake_finish_all(fake);
    fake->backend.capacity = 8 * MIB; /* the driver does not count it as available */
    struct alloc_request request = {.bin = BINS, .bytes = 4 * MIB, .large = true};
    pool_lock(pool);
    int r = retry_refused(pool, &request, -ENOMEM);
    if (request.block)
        pending_add(&pool->source, request.block);
    pool_unlock(pool);
    assert_int_equal(r, 0);
}

static void a_segment_that_stays_does_not_keep_the_others(void **state) {
    (void)state;
    begin(GIB, RELAXED);
    uint64_t blocks[3];
    for (int i = 0; i < 3; i++)
        blocks[i] = get(32 * MIB);
    for (int i = 0; i < 3; i++)
        drop(blocks[i]);
    finish_all();
    const struct segment *first = pool->source.large.segments;
    uint64_t kept = first->bytes;
    fake->kept_address = first->base;
    assert_in_range(kept, 2 * MIB, 32 * MIB);
    ticks(WHOLE);
    assert_int_equal(fake->reserved, kept);
    fake->kept_address = 0;
    ticks(1);
    assert_int_equal(fake->reserved, 0);
}

static void while_a_context_may_be_ending_nothing_is_released(void **state) {
    (void)state;
    begin(GIB, RELAXED);
    drop(get(8 * MIB));
    finish_all();
    get(20 * MIB);
    fake->backend.suspended = true;
    const struct segment *idle = pool->source.large.segments->next;
    assert_int_equal(idle->bytes, 8 * MIB);
    ticks(3 * WHOLE);
    assert_ptr_equal(pool->source.large.segments->next, idle); /* no release was tried */
    assert_int_equal(fake->reserved, 28 * MIB);
    fake->backend.suspended = false;
    ticks(1);
    assert_int_equal(fake->reserved, 20 * MIB);
}

static void where_a_native_free_waits_nothing_is_released(void **state) {
    (void)state;
    begin(GIB, RELAXED);
    fake->backend.release_waits = true;
    drop(get(8 * MIB));
    finish_all();
    assert_int_equal(fake->idles, 0);
    assert_false(tick());
    ticks(3 * WHOLE);
    assert_int_equal(fake->reserved, 8 * MIB);
}

/* ---- while threads allocate ---- */

#define ROUNDS 4000

static atomic_bool over;

static void *allocates(void *of) {
    unsigned stream = *(const unsigned *)of;
    for (unsigned i = 0; i < ROUNDS; i++) {
        uint64_t bytes = (1 + (i * 7 + stream) % 12) * MIB / 2, address = 0;
        assert_int_equal(pool_alloc(pool, bytes, &address), 0);
        assert_true(is_had(address, bytes));
        fake_reach(fake, address, bytes, stream, fake_submit(fake, stream));
        if (i % 3 == 0)
            sched_yield();
        assert_true(is_had(address, bytes));
        assert_int_equal(fake_pool_free(address), 0);
        if (i % 5 == 0)
            fake_finish_one(fake, stream);
        if (i % 64 == 0)
            fake_finish_all(fake);
    }
    return NULL;
}

static void *keeps_ticking(void *unused) {
    while (!atomic_load(&over))
        ticks(1);
    return unused;
}

/*
 * Segments are reserved and released all the time. The fake device checks that none is released
 * while work that fake_reach() recorded uses it.
 */
static void while_threads_allocate(void **state) {
    (void)state;
    const unsigned streams[] = {1, 2};
    pthread_t helper, threads[2];
    begin(GIB, 0);
    atomic_store(&over, false);
    pthread_create(&helper, NULL, keeps_ticking, NULL);
    for (int i = 0; i < 2; i++)
        pthread_create(&threads[i], NULL, allocates, (void *)&streams[i]);
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    atomic_store(&over, true);
    pthread_join(helper, NULL);
    fake_finish_all(fake);
    ticks(3 * WHOLE);
    check();
    assert_int_equal(fake->reserved, 0);
    assert_true(fake->releases > 0);
}

#define PAGES(name) cmocka_unit_test_setup_teardown(name, with_pages, stop)
#define SEGMENTS(name)                                                                             \
    { #name ", segments", name, with_segments, stop, NULL }
#define BOTH(name) PAGES(name), SEGMENTS(name)

int main(void) {
    const struct CMUnitTest tests[] = {
        BOTH(freed_memory_is_released_after_the_whole_decay_time),
        BOTH(a_segment_that_no_request_used_stays_for_the_decay_time),
        BOTH(nothing_is_released_while_the_pool_grows),
        BOTH(memory_is_released_although_the_program_makes_no_call),
        BOTH(blocks_in_the_cache_of_an_idle_thread_are_released),
        BOTH(a_newer_free_of_another_thread_does_not_keep_an_idle_cache),
        PAGES(blocks_in_the_cache_of_a_busy_thread_stay),
        BOTH(a_program_that_comes_back_in_time_loses_nothing),
        BOTH(a_tick_queries_nothing_while_the_program_allocates),
        BOTH(memory_stays_while_its_work_runs),
        BOTH(free_memory_behind_a_barrier_stays_until_its_work_is_done),
        BOTH(memory_is_released_while_later_work_runs),
        BOTH(where_an_event_is_a_wait_no_free_adds_one),
        BOTH(externally_visible_memory_is_released_too),
        BOTH(after_a_fault_nothing_is_released),
        BOTH(the_helper_is_woken_once_for_each_idle_period),
        BOTH(a_deferred_free_starts_the_decay_time_when_reclaimed),
        PAGES(a_segment_that_stays_does_not_keep_the_others),
        PAGES(new_memory_is_mapped_where_memory_was_released),
        BOTH(a_new_context_is_watched_anew),
        SEGMENTS(a_segment_is_released_whole),
        SEGMENTS(a_segment_is_as_young_as_its_youngest_block),
        SEGMENTS(a_tick_queries_memory_that_is_being_freed),
        SEGMENTS(a_refused_request_waits_for_memory_that_is_being_freed),
        SEGMENTS(while_a_context_may_be_ending_nothing_is_released),
        SEGMENTS(where_a_native_free_waits_nothing_is_released),
        SEGMENTS(while_threads_allocate),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
