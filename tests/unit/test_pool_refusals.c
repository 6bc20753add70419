/*
 * The pool when the driver or the system refuses requests, sometimes or always.
 *
 * The test replaces the function that sleeps (see meson.build): it counts sleeps, which take only
 * the time of the fake clock below.
 */
#include "pool_bench.h"

#include <limits.h>
#include <pthread.h>

static unsigned sleeps;
static unsigned
    calm_at; /* number of sleeps after which a call that may end the context returns; 0: never */
static uint64_t now_ns, ns_per_sleep;
static void (*during_sleep)(void); /* acts as other threads and the device during a sleep */

void __wrap_sleep_ns(uint64_t ns);
void __wrap_sleep_ns(uint64_t ns) {
    (void)ns;
    sleeps++;
    now_ns += ns_per_sleep;
    if (calm_at > 0 && sleeps >= calm_at)
        fake->backend.suspended = false;
    if (during_sleep)
        during_sleep();
}

/* ---- records ---- */

/* Starts over a backend that has not recorded an event yet. */
static void start_invalidated(uint64_t memory, enum reuse reuse, uint64_t budget) {
    fake = fake_new(memory);
    fake->backend.refused = 1;
    pool = pool_create(&fake->backend, &(struct pool_config){.reuse = reuse, .budget = budget});
    assert_non_null(pool);
}

static void a_driver_that_never_records_is_synchronised_inside_frees(void **state) {
    (void)state;
    static const enum reuse modes[] = {REUSE_BARRIER, REUSE_WAIT, REUSE_SYNC};
    for (int i = 0; i < 6; i++) {
        start_invalidated(64 * MIB, modes[i % 3], i < 3 ? TIGHT : RELAXED);
        fake->record_code = -EIO;
        for (unsigned j = 0; j < 100; j++) /* memory for one at a time */
            use_and_drop(get(40 * MIB));
        assert_true(fake->synchronizes > 0);
        assert_true(fake->records <= BACKEND_REFUSALS);
        assert_false(fake->backend.has_events);
        assert_int_equal(fake->orders + fake->waits, 0);
        check();
        if (i < 5)
            assert_int_equal(stop(NULL), 0);
    }
}

static int synchronize_while_the_context_ends(struct backend *backend) {
    (void)backend;
    pool_forget(pool); /* another thread resets the device */
    return 700;
}

static void a_free_that_synchronises_does_not_break_the_next_context(void **state) {
    (void)state;
    start_invalidated(64 * MIB, REUSE_SYNC, TIGHT);
    struct backend_ops ops = *fake->backend.ops;
    ops.synchronize = synchronize_while_the_context_ends;
    fake->backend.ops = &ops;
    fake->record_code = -EIO;
    fake_pool_free(get(40 * MIB));
    assert_int_equal(pool_broken(pool), 0);
    assert_int_equal(stop(NULL), 0);
}

static void the_first_free_shows_whether_the_driver_records(void **state) {
    (void)state;
    start_invalidated(GIB, REUSE_BARRIER, RELAXED);
    uint64_t first = get(20 * MIB);
    get(512);
    get(64 * KIB); /* no update of the budget is due for some time */
    use_and_drop(first);
    assert_int_equal(fake->records, 1);
    assert_true(fake->latest.in_free);
    for (int i = 0; i < 10; i++) { /* later frees record no event */
        fake_finish_all(fake);
        uint64_t at = get(20 * MIB);
        unsigned records = fake->records;
        use_and_drop(at);
        assert_int_equal(fake->records, records);
    }
    assert_int_equal(fake->synchronizes, 0);
}

static void refuse_records(unsigned count) {
    fake->record_code = count > 0 ? -EIO : 0;
    fake->record_refusals = count;
}

static void a_record_refused_now_and_then_loses_no_memory(void **state) {
    (void)state;
    static const enum reuse modes[] = {REUSE_BARRIER, REUSE_WAIT, REUSE_SYNC};
    for (int i = 0; i < 6; i++) {
        start(64 * MIB, modes[i % 3], i < 3 ? TIGHT : RELAXED);
        fake->done_every = 50;
        for (unsigned j = 0; j < 100; j++) { /* memory for one at a time */
            uint64_t at = get(40 * MIB);
            refuse_records(j % 4);
            use_and_drop(at);
        }
        assert_true(fake->backend.has_events);
        check();
        if (i < 5)
            assert_int_equal(stop(NULL), 0);
    }
}

static void before_out_of_memory_a_refused_record_is_repeated(void **state) {
    (void)state;
    start(64 * MIB, REUSE_BARRIER, RELAXED);
    uint64_t at = get(40 * MIB);
    fake->record_code = -EBUSY; /* like during a capture */
    use_and_drop(at);
    refuse_records(BACKEND_REFUSALS / 2);
    fake->done_every = 10;
    get(40 * MIB);
}

static void a_record_refused_for_the_moment_is_no_refusal(void **state) {
    (void)state;
    start(GIB, REUSE_BARRIER, TIGHT);
    fake->record_code = -EBUSY;
    for (int i = 0; i < 3 * BACKEND_REFUSALS; i++)
        use_and_drop(get(3 * MIB));
    assert_true(fake->backend.has_events);
    assert_int_equal(fake->synchronizes, 0);
}

/* ---- memory ---- */

static void memory_that_the_pool_cannot_manage_is_taken_once(void **state) {
    (void)state;
    static const uint64_t odd[] = {512, (uint64_t)1 << 50}; /* in a slab; beyond the page map */
    for (int i = 0; i < 2; i++) {
        start(64 * MIB, REUSE_BARRIER, TIGHT);
        uint64_t kept = get(3 * MIB), small = get(100), at;
        fake->misalign = odd[i];
        unsigned reserves = fake->reserves;
        for (int j = 0; j < 100; j++)
            assert_int_equal(pool_alloc(pool, 5 * MIB, &at), -ERANGE);
        assert_int_equal(fake->reserves, reserves + 1);
        assert_int_equal(fake->releases, 1);
        fake->misalign = 0; /* the pool keeps its other memory */
        use_and_drop(kept);
        assert_int_equal(get(3 * MIB), kept);
        drop(small);
        get(100);
        check();
        if (i == 0)
            assert_int_equal(stop(NULL), 0);
    }
}

static const struct backend_ops *usual_ops;

static int reserve_as_the_context_ends(struct backend *backend, uint64_t bytes, uint64_t *address) {
    int r = usual_ops->reserve(backend, bytes, address);
    pool_forget(pool);
    return r;
}

static void memory_of_a_context_that_ended_during_the_call_is_not_the_pools(void **state) {
    (void)state;
    static const uint64_t sizes[] = {100, 3 * MIB};
    for (int i = 0; i < 2; i++) {
        start(64 * MIB, REUSE_BARRIER, RELAXED);
        usual_ops = fake->backend.ops;
        struct backend_ops ops = *usual_ops;
        ops.reserve = reserve_as_the_context_ends;
        fake->backend.ops = &ops;
        uint64_t at = 0;
        assert_int_equal(pool_alloc(pool, sizes[i], &at), -ENOMEM);
        assert_int_equal(fake->releases, 0); /* the memory ended with the context */
        assert_int_equal(fake_books(pool).reserved.current, 0);
        assert_int_equal(pool_free(fake->base), -ENOENT);
        check();
        fake->backend.ops = usual_ops;
        if (i == 0)
            assert_int_equal(stop(NULL), 0);
    }
}

/* ---- waits before out of memory ---- */

#define LATE_WAIT_S 10 /* the longest wait */

static uint64_t slow_clock(struct backend *backend) {
    (void)backend;
    return now_ns;
}

/* Installs a clock that advances by `per_sleep` ns with each sleep of the pool. */
static void set_clock(uint64_t per_sleep) {
    static struct backend_ops ops;
    ops = *fake->backend.ops;
    ops.clock = slow_clock;
    fake->backend.ops = &ops;
    ns_per_sleep = per_sleep;
    sleeps = calm_at = 0;
    during_sleep = NULL;
}

static void start_with_clock(uint64_t memory, uint64_t per_sleep) {
    start(memory, REUSE_BARRIER, RELAXED);
    set_clock(per_sleep);
}

/*
 * Frees without recording an event, like during a capture. Under pressure, a free would otherwise
 * record one, which the pool may wait for.
 */
static void use_and_drop_late(uint64_t address) {
    fake->record_code = -EBUSY;
    use_and_drop(address);
    fake->record_code = 0;
}

static unsigned sleeps_until(uint64_t bytes, int code) {
    uint64_t at;
    sleeps = 0;
    assert_int_equal(pool_alloc(pool, bytes, &at), code);
    return sleeps;
}

static unsigned sleeps_until_refused(uint64_t bytes) {
    return sleeps_until(bytes, -ENOMEM);
}

static void a_wait_ends_by_the_clock(void **state) {
    (void)state;
    start_with_clock(64 * MIB, 1000000000);
    use_and_drop_late(get(40 * MIB));
    unsigned count = sleeps_until_refused(40 * MIB);
    assert_in_range(count, LATE_WAIT_S, LATE_WAIT_S + 1);
}

static void a_wait_ends_though_the_clock_stands_still(void **state) {
    (void)state;
    start_with_clock(64 * MIB, 0);
    use_and_drop_late(get(40 * MIB));
    unsigned count = sleeps_until_refused(40 * MIB);
    assert_in_range(count, 1000, LATE_WAIT_S * 1000000 / 50 + 1);
    sleeps = 0;
    use_and_drop_late(get(10 * MIB));
    assert_int_equal(pool_trim(pool, true), 0);
    assert_in_range(sleeps, 0, 1000000 / 50 + 1);
}

static void an_impossible_request_is_refused_at_once(void **state) {
    (void)state;
    start_with_clock(64 * MIB, 1000);
    uint64_t at = get(40 * MIB);
    fake_submit(fake, 0);
    fake->memory -= 10 * MIB;                            /* held by other processes */
    assert_int_equal(sleeps_until_refused(20 * MIB), 0); /* nothing pending or idle */
    fake->memory += 10 * MIB;
    use_and_drop_late(get(10 * MIB));
    assert_int_equal(sleeps_until_refused(30 * MIB), 0); /* too much even with all of it */
    assert_true(sleeps_until_refused(20 * MIB) > 0);
    drop(at);
}

static void work_that_does_not_end_is_waited_for_once(void **state) {
    (void)state;
    start_with_clock(64 * MIB, 1000000);
    use_and_drop_late(get(40 * MIB));
    assert_true(sleeps_until_refused(40 * MIB) >= LATE_WAIT_S * 1000);
    for (int i = 0; i < 3; i++) {
        fake_submit(fake, 1);
        assert_true(sleeps_until_refused(50 * MIB) <= 1);
        pool_trim(pool, true);
        assert_true(sleeps <= 1);
    }
    fake_finish_all(fake); /* new work is waited for again */
    use_and_drop_late(get(40 * MIB));
    assert_true(sleeps_until_refused(40 * MIB) >= LATE_WAIT_S * 1000);
    fake_finish_all(fake);
    get(40 * MIB);
}

/* A trim waits less long: the rest of the time is still available before out of memory. */
static void a_short_wait_in_vain_leaves_the_rest_of_a_long_one(void **state) {
    (void)state;
    start_with_clock(64 * MIB, 1000000);
    use_and_drop_late(get(40 * MIB));
    pool_trim(pool, true);
    unsigned short_wait = sleeps;
    assert_true(short_wait >= 1000 && short_wait < LATE_WAIT_S * 1000 / 2);
    unsigned rest = sleeps_until_refused(40 * MIB);
    assert_in_range(rest + short_wait, LATE_WAIT_S * 1000, LATE_WAIT_S * 1000 + 100);
}

static void without_memory_to_give_back_there_is_no_wait(void **state) {
    (void)state;
    start_with_clock(64 * MIB, 1000);
    get(40 * MIB);
    fake_submit(fake, 0);
    assert_int_equal(pool_trim(pool, true), 0);
    assert_int_equal(sleeps, 0);
}

/* Another thread's growth held most of the limit's charge, and gave it back. */
static void memory_that_another_growth_gave_back_is_requested_again(void **state) {
    (void)state;
    start_with_clock(64 * MIB, 1000);
    get(10 * MIB);
    fake->refusal = -EDQUOT;
    fake->refusals = 1;
    uint64_t at = get(5 * MIB);
    assert_int_equal(sleeps, 0);
    assert_int_equal(fake->refusals, 0);
    drop(at);
}

static uint64_t much_room(struct backend *backend, uint64_t *others) {
    (void)backend;
    *others = 10 * MIB;
    return GIB;
}

static bool there_is_enough(struct backend *backend, uint64_t bytes, bool wait) {
    (void)backend, (void)bytes, (void)wait;
    return true;
}

static bool asked_to_wait[4];
static unsigned asked;

/* The other pools have memory, but their work still uses it. */
static bool others_after_a_wait(struct backend *backend, uint64_t bytes, bool wait) {
    (void)backend, (void)bytes;
    asked_to_wait[asked++] = wait;
    fake->refusals = wait ? 0 : fake->refusals;
    return wait;
}

/* The work of other pools may take long: their memory that needs no wait comes first. */
static void other_pools_wait_only_when_nothing_else_is_left(void **state) {
    (void)state;
    static struct backend_ops ops;
    start_with_clock(64 * MIB, 1000);
    ops = *fake->backend.ops;
    ops.available = much_room;
    ops.release_others = others_after_a_wait;
    fake->backend.ops = &ops;
    fake->refusal = -ENOMEM;
    fake->refusals = UINT_MAX;
    get(20 * MIB);
    assert_int_equal(asked, 2);
    assert_false(asked_to_wait[0]);
    assert_true(asked_to_wait[1]);
}

/* A stream that is never idle: each piece of work ends after nine seconds. */
static void work_on(void) {
    if (sleeps % 9 == 0)
        fake_finish_all(fake);
    fake_submit(fake, 1);
}

/* A driver may have less memory than it reports. No other thread took the memory then. */
static void available_memory_that_is_refused_is_not_waited_for_long(void **state) {
    (void)state;
    static struct backend_ops ops;
    start_with_clock(64 * MIB, 1000000000);
    ops = *fake->backend.ops;
    ops.available = much_room;
    ops.release_others = there_is_enough;
    fake->backend.ops = &ops;
    get(10 * MIB);
    fake->refusal = -ENOMEM;
    fake->refusals = UINT_MAX;
    fake_submit(fake, 1);
    during_sleep = work_on;
    assert_in_range(sleeps_until_refused(20 * MIB), 0, LATE_WAIT_S + 1);
    during_sleep = NULL;
}

/* ---- waits that native frees would have made ---- */

static void start_behind(uint64_t per_sleep) {
    start(GIB, REUSE_BARRIER, TIGHT);
    set_clock(per_sleep);
}

static void end_at_last(void) {
    if (sleeps == 10 * LATE_WAIT_S)
        fake_finish_all(fake);
}

static void memory_freed_by_the_same_thread_is_waited_for_without_limit(void **state) {
    (void)state;
    start_behind(1000000000);
    use_and_drop(get(3 * MIB));
    during_sleep = end_at_last;
    assert_true(pool_wait_for_events_in_free(pool));
    assert_int_equal(sleeps, 10 * LATE_WAIT_S);
    assert_false(pool_wait_for_events_in_free(pool));
}

static void *free_it(void *address) {
    use_and_drop(*(uint64_t *)address);
    return NULL;
}

/* The work may end only after this thread continues: the native free might not have returned. */
static void memory_freed_by_another_thread_is_waited_for_once(void **state) {
    (void)state;
    pthread_t thread;
    start_behind(1000000000);
    uint64_t at = get(3 * MIB);
    assert_int_equal(pthread_create(&thread, NULL, free_it, &at), 0);
    pthread_join(thread, NULL);
    assert_true(pool_wait_for_events_in_free(pool));
    assert_int_equal(sleeps, LATE_WAIT_S);
    assert_true(pool_wait_for_events_in_free(pool));
    assert_int_equal(sleeps, LATE_WAIT_S);
    fake_finish_all(fake);
    assert_false(pool_wait_for_events_in_free(pool));
}

static void an_allocation_waits_for_the_free_of_another_thread_with_a_limit(void **state) {
    (void)state;
    pthread_t thread;
    start(GIB, REUSE_WAIT, TIGHT);
    set_clock(1000000000);
    use_and_drop(get(3 * MIB)); /* the first free puts the pool under pressure */
    fake_finish_all(fake);
    uint64_t at = get(3 * MIB);
    assert_int_equal(pthread_create(&thread, NULL, free_it, &at), 0);
    pthread_join(thread, NULL);
    fake->busy_for_ever = true;
    get(3 * MIB);
    assert_int_equal(sleeps, LATE_WAIT_S);
    get(3 * MIB); /* the wait that failed is not repeated */
    assert_int_equal(sleeps, LATE_WAIT_S);
    fake_finish_all(fake);
}

static uint64_t freed_since;

/*
 * Submits work that ends only when the first thread continues, and frees the memory it uses. Then
 * all earlier work ends.
 */
static void go_on(void) {
    if (sleeps == 1) {
        fake_submit(fake, 1);
        drop(freed_since);
    } else if (sleeps == 2) {
        fake_finish_one(fake, 0);
    } else if (sleeps == 100) {
        fake_finish_all(fake);
    }
}

/* All event slots are in use. */
static void work_submitted_after_a_free_is_not_waited_for(void **state) {
    (void)state;
    uint64_t at[BACKEND_SLOTS];
    start_behind(0);
    for (unsigned i = 0; i < BACKEND_SLOTS; i++)
        at[i] = get(3 * MIB);
    freed_since = get(3 * MIB);
    fake_submit(fake, 0);
    for (unsigned i = 0; i < BACKEND_SLOTS; i++)
        drop(at[i]);
    assert_int_equal(fake->records, BACKEND_SLOTS);
    during_sleep = go_on;
    assert_true(pool_wait_for_events_in_free(pool));
    during_sleep = NULL;
    assert_int_equal(fake->records, BACKEND_SLOTS + 1);
    assert_in_range(sleeps, 2, 10);
}

/* ---- during a call that may end the context ---- */

#define QUIET_WAIT_SLEEPS 40 /* the longest wait before growth past the budget */

/* Frees a block while the backend is suspended, which ends after `calm` sleeps. All work has
 * completed. */
static void use_and_drop_quietly(uint64_t address, unsigned calm) {
    calm_at = calm;
    fake->backend.suspended = true;
    use_and_drop(address);
    fake_finish_all(fake);
    sleeps = 0;
}

static void before_out_of_memory_an_ending_call_is_waited_for(void **state) {
    (void)state;
    for (unsigned calm = 1; calm < 100000; calm *= 10) {
        start_with_clock(64 * MIB, 50000);
        uint64_t at = get(40 * MIB);
        use_and_drop_quietly(at, calm);
        assert_int_equal(get(40 * MIB), at);
        assert_int_equal(sleeps, calm);
        assert_int_equal(stop(NULL), 0);
    }
    start_with_clock(64 * MIB, 50000);
    use_and_drop_quietly(get(40 * MIB), 0);
    unsigned count = sleeps_until_refused(40 * MIB);
    assert_in_range(count, LATE_WAIT_S * 20000, LATE_WAIT_S * 20000 + QUIET_WAIT_SLEEPS);
    assert_int_equal(stop(NULL), 0);
    start_with_clock(64 * MIB, 50000);
    get(40 * MIB);
    fake->backend.suspended = true; /* pending memory would not suffice */
    assert_in_range(sleeps_until_refused(30 * MIB), 0, QUIET_WAIT_SLEEPS);
}

static void before_growth_an_ending_call_is_waited_for_briefly(void **state) {
    (void)state;
    for (unsigned calm = 0; calm < 2 * QUIET_WAIT_SLEEPS; calm += 10) {
        start_with_clock(GIB, 50000);
        pool->source.config.budget = TIGHT;
        uint64_t at = get(40 * MIB);
        use_and_drop_quietly(at, calm);
        bool in_time = calm > 0 && calm <= QUIET_WAIT_SLEEPS;
        assert_int_equal(get(40 * MIB) == at, in_time);
        assert_int_equal(sleeps, in_time ? calm : QUIET_WAIT_SLEEPS);
        fake->backend.suspended = false;
        assert_int_equal(stop(NULL), 0);
    }
    start_with_clock(GIB, 50000);
    use_and_drop_quietly(get(40 * MIB), 0);
    get(40 * MIB);
    assert_int_equal(sleeps, 0); /* no wait within the budget */
}

static void end_context(void) {
    fake->backend.suspended = fake->backend.ended = true;
    pool_forget(pool);
}

/*
 * The context may end after a request has found the pool, or during its driver call, which then
 * counts as refused. Perhaps no other thread gives the pool a new context.
 */
static void a_request_does_not_wait_for_a_new_context(void **state) {
    (void)state;
    start_with_clock(64 * MIB, 50000);
    use_and_drop_quietly(get(40 * MIB), 0);
    end_context();
    assert_int_equal(sleeps_until(40 * MIB, -ERANGE), 0);
    assert_int_equal(stop(NULL), 0);
    start_with_clock(64 * MIB, 50000);
    use_and_drop_late(get(40 * MIB)); /* the request waits for the work, with a limit */
    during_sleep = end_context;
    assert_int_equal(sleeps_until(40 * MIB, -ERANGE), 1);
    during_sleep = NULL;
}

/*
 * The backend stays suspended until the pool is used again. A request for memory may come after the
 * end.
 */
static void an_end_that_is_over_is_not_waited_for(void **state) {
    (void)state;
    start_with_clock(GIB, 50000);
    use_and_drop_quietly(get(40 * MIB), 0);
    pool_forget(pool);
    assert_int_equal(pool_give_back(pool, MIB, true), -ENOENT);
    assert_int_equal(pool_trim(pool, true), 0);
    assert_int_equal(sleeps, 0);
}

static unsigned reserves, last_reserve;

static int refuse_as_the_context_ends(struct backend *backend, uint64_t bytes, uint64_t *address) {
    (void)backend, (void)bytes, (void)address;
    if (++reserves == last_reserve)
        end_context();
    return -ENOMEM;
}

/*
 * The context ends during the first refused growth, or during the second one, when the request has
 * seen pending memory. The request would wait for that memory if the pool still had it.
 */
static void a_request_does_not_wait_for_the_work_of_an_ended_context(void **state) {
    (void)state;
    for (last_reserve = 1; last_reserve <= 2; last_reserve++) {
        start_with_clock(64 * MIB, 50000);
        struct backend_ops ops = *fake->backend.ops;
        ops.reserve = refuse_as_the_context_ends;
        use_and_drop_late(get(40 * MIB));
        fake->backend.ops = &ops;
        reserves = 0;
        assert_int_equal(sleeps_until(30 * MIB, -ERANGE), 0);
        assert_int_equal(reserves, last_reserve);
        assert_int_equal(stop(NULL), 0);
    }
}

/* A request may find the pool before the context ends, and need memory after the end. */
static void a_pool_does_not_grow_after_the_end_of_its_context(void **state) {
    (void)state;
    static const uint64_t sizes[] = {100, 3 * MIB};
    for (int i = 0; i < 2; i++) {
        start(64 * MIB, REUSE_BARRIER, RELAXED);
        end_context();
        uint64_t at = 0;
        assert_int_equal(pool_alloc(pool, sizes[i], &at), -ERANGE);
        assert_int_equal(fake->reserved, 0);
        assert_int_equal(stop(NULL), 0);
    }
}

/* ---- other processes at the limit ---- */

/* Without returned memory between two queries the pool does not repeat its request. */
static void memory_that_other_processes_return_is_requested_again(void **state) {
    (void)state;
    for (unsigned answers = 1; answers < 6; answers++) {
        start(GIB, REUSE_BARRIER, RELAXED);
        fake->limit = 2 * MIB;
        fake->others = 62 * MIB;
        fake->answers = answers; /* the first query precedes any request */
        uint64_t address;
        assert_int_equal(pool_alloc(pool, 60 * MIB, &address), answers < 3 ? 0 : -EDQUOT);
        assert_int_equal(fake->growing, 0);
        assert_int_equal(stop(NULL), 0);
    }
}

static uint64_t theirs[4 * LATE_WAIT_S];

static void free_one(void) {
    if (sleeps % 5 == 0 && sleeps / 5 < sizeof theirs / sizeof *theirs)
        drop(theirs[sleeps / 5]);
}

/* The wait does not restart when other threads free memory. */
static void an_ending_call_is_waited_for_once(void **state) {
    (void)state;
    start_with_clock(160 * MIB, 1000000000);
    uint64_t at = get(60 * MIB);
    for (unsigned i = 0; i < sizeof theirs / sizeof *theirs; i++)
        theirs[i] = get(2 * MIB);
    use_and_drop_quietly(at, 0);
    during_sleep = free_one;
    assert_in_range(sleeps_until_refused(64 * MIB), LATE_WAIT_S, LATE_WAIT_S + 2);
    during_sleep = NULL;
    fake->backend.suspended = false;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(a_driver_that_never_records_is_synchronised_inside_frees),
        TEST(a_free_that_synchronises_does_not_break_the_next_context),
        TEST(the_first_free_shows_whether_the_driver_records),
        TEST(a_record_refused_now_and_then_loses_no_memory),
        TEST(before_out_of_memory_a_refused_record_is_repeated),
        TEST(a_record_refused_for_the_moment_is_no_refusal),
        TEST(memory_that_the_pool_cannot_manage_is_taken_once),
        TEST(memory_of_a_context_that_ended_during_the_call_is_not_the_pools),
        TEST(memory_that_another_growth_gave_back_is_requested_again),
        TEST(a_wait_ends_by_the_clock),
        TEST(a_wait_ends_though_the_clock_stands_still),
        TEST(an_impossible_request_is_refused_at_once),
        TEST(work_that_does_not_end_is_waited_for_once),
        TEST(a_short_wait_in_vain_leaves_the_rest_of_a_long_one),
        TEST(without_memory_to_give_back_there_is_no_wait),
        TEST(other_pools_wait_only_when_nothing_else_is_left),
        TEST(available_memory_that_is_refused_is_not_waited_for_long),
        TEST(memory_freed_by_the_same_thread_is_waited_for_without_limit),
        TEST(memory_freed_by_another_thread_is_waited_for_once),
        TEST(an_allocation_waits_for_the_free_of_another_thread_with_a_limit),
        TEST(work_submitted_after_a_free_is_not_waited_for),
        TEST(an_ending_call_is_waited_for_once),
        TEST(before_out_of_memory_an_ending_call_is_waited_for),
        TEST(before_growth_an_ending_call_is_waited_for_briefly),
        TEST(a_request_does_not_wait_for_a_new_context),
        TEST(an_end_that_is_over_is_not_waited_for),
        TEST(a_request_does_not_wait_for_the_work_of_an_ended_context),
        TEST(a_pool_does_not_grow_after_the_end_of_its_context),
        TEST(memory_that_other_processes_return_is_requested_again),
    };
    return cmocka_run_group_tests_name("refusals", tests, NULL, NULL);
}
