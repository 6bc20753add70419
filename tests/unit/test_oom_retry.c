/*
 * Tests retries of refused requests. Numbers replace the pools. The actions of other threads
 * between two retries happen when the library releases idle memory.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "driver/context/device_pool.h"
#include "driver/limit/charge.h"
#include "driver/limit/driver_pools.h"
#include "driver/limit/oom_retry.h"
#include "driver/reuse/deferred.h"
#include "driver/state/device.h"
#include "tuning/tuning.h"

#include <string.h>

static struct device device;
static uint64_t idle, stuck, available, waits, limit_returns;
static unsigned releases;       /* how often idle memory was released */
static unsigned finishes;       /* how often work was waited for */
static uint64_t under_way;      /* bytes that are idle after that wait */
static uint64_t deferred_bytes; /* bytes of deferred frees; streams reach them in that wait */
static uint64_t reached;        /* bytes of deferred frees that streams have reached */
static bool reached_by_release; /* the waits of a release let streams reach all deferred frees */
static uint64_t kept;           /* bytes that the driver's own pools keep */
static unsigned taken;          /* how often others take released memory and keep it idle */
static unsigned returns;        /* how often others release memory themselves */

bool deferred_reclaim_now(void) {
    bool any = reached > 0;
    idle += reached;
    deferred_bytes -= reached;
    reached = 0;
    return any;
}

bool driver_pool_trim(const struct device *where) {
    bool any = kept > 0;
    assert_ptr_equal(where, &device);
    available += kept;
    kept = 0;
    atomic_fetch_add(&in_flight_returns, any);
    return any;
}

uint64_t device_idle_bytes(const struct device *where, const struct device_backend *but) {
    (void)where, (void)but;
    return idle;
}

uint64_t device_deferred_bytes(const struct device *where) {
    (void)where;
    return deferred_bytes;
}

uint64_t device_unreleasable_bytes(struct device *where) {
    (void)where;
    return stuck;
}

bool device_could_have(struct device *where, uint64_t bytes) {
    (void)where;
    return bytes <= available + idle + deferred_bytes;
}

uint64_t device_available(struct device *where) {
    (void)where;
    return available;
}

bool device_pool_wait_for_events_in_free(struct device *where) {
    assert_ptr_equal(where, &device);
    bool any = under_way > 0 || deferred_bytes > reached;
    finishes++;
    idle += under_way;
    reached = deferred_bytes;
    under_way = 0;
    return any;
}

int device_pool_release_idle(struct device *where) {
    (void)where;
    deferred_reclaim_now(); /* pool_trim() reclaims before its waits */
    uint64_t gone = idle - stuck;
    releases++;
    reached = reached_by_release ? deferred_bytes : reached;
    idle -= gone;
    available += gone;
    atomic_fetch_add(&in_flight_returns, gone > 0);
    if (taken > 0) {
        taken--;
        available -= gone;
        idle += gone;
    }
    return 0;
}

uint64_t device_wait_for_in_flight(struct device *where) {
    (void)where;
    waits++;
    return limit_returns;
}

void device_count(struct device *where, stat_counter *counter) {
    (void)where;
    counter_add(counter, 1);
}

static int start(void **state) {
    (void)state;
    memset(&device, 0, sizeof device);
    device.total = 100;
    idle = stuck = available = waits = limit_returns = 0;
    releases = finishes = taken = returns = 0;
    under_way = deferred_bytes = reached = 0;
    reached_by_release = false;
    kept = 0;
    return 0;
}

/* Returns how often the driver is asked for `bytes`. */
static unsigned ask(uint64_t bytes, bool *served) {
    struct oom_retry oom_retry = {.process_returns = oom_retry_returns()};
    unsigned calls = 0;
    do {
        calls++;
        *served = bytes <= available;
        if (returns > 0) {
            returns--;
            atomic_fetch_add(&in_flight_returns, 1);
        }
    } while (!*served && oom_retry_at_driver(&device, bytes, &oom_retry));
    return calls;
}

static unsigned ask_the_limit(uint64_t bytes, bool *served) {
    struct oom_retry oom_retry = {0};
    unsigned charges = 1;
    *served = bytes <= available;
    while (!*served && oom_retry_at_limit(&device, bytes, &oom_retry)) {
        charges++;
        *served = bytes <= available;
    }
    return charges;
}

static void what_others_took_and_freed_comes_back_again(void **state) {
    (void)state;
    bool served;
    idle = 50;
    taken = 3;
    assert_int_equal(ask(40, &served), 5);
    assert_true(served);
    assert_int_equal(releases, 4);
}

static void a_request_refused_at_the_limit_is_retried_after_each_return(void **state) {
    (void)state;
    bool served;
    idle = 50;
    taken = 3;
    assert_int_equal(ask_the_limit(40, &served), 5);
    assert_true(served);
}

static void what_came_back_before_it_was_looked_for_is_asked_for(void **state) {
    (void)state;
    bool served;
    returns = 2; /* by others: nothing is left that could be given back */
    assert_int_equal(ask(40, &served), 3);
    assert_false(served);
    assert_int_equal(releases, 0);
}

static void retries_of_a_request_are_bounded(void **state) {
    (void)state;
    bool served;
    idle = 50;
    taken = 1000;
    assert_int_equal(ask(40, &served), 1 + OTHERS_TRIES);
    assert_false(served);
    assert_int_equal(ask_the_limit(40, &served), 1 + OTHERS_TRIES);
    assert_false(served);
}

/* Memory that was freed during the request counts, too. */
static void what_was_freed_since_is_asked_for(void **state) {
    (void)state;
    struct oom_retry oom_retry = {.process_returns = oom_retry_returns()};
    idle = stuck = 20;
    assert_true(oom_retry_at_driver(&device, 20, &oom_retry));
    idle = 30;
    assert_true(oom_retry_at_driver(&device, 20, &oom_retry));
    assert_int_equal(releases, 2);
    assert_int_equal(available, 10);
}

/* The earlier work may itself wait for the program's next call. */
static void work_is_waited_for_if_the_rest_is_not_enough(void **state) {
    (void)state;
    bool served;
    idle = 50;
    under_way = 20;
    assert_int_equal(ask(40, &served), 2);
    assert_true(served);
    assert_int_equal(finishes, 0);
    idle = 1;
    available = 0;
    assert_int_equal(ask(0x15, &served), 1); /* there may not be as much */
    assert_int_equal(finishes, 0);
    idle = 21;
    stuck = 20;
    assert_int_equal(ask(0x15, &served), 2);
    assert_true(served);
    assert_int_equal(finishes, 1);
}

/* A stream behind a barrier cannot report that it has reached a free. */
static void what_streams_hold_back_is_waited_for(void **state) {
    (void)state;
    bool served;
    deferred_bytes = 50;
    assert_int_equal(ask(40, &served), 2);
    assert_true(served);
    deferred_bytes = 50;
    available = 0;
    assert_int_equal(ask_the_limit(40, &served), 2);
    assert_true(served);
    assert_int_equal(finishes, 2);
}

/* The release waits for the thread's own free, so no event is left to wait for. */
static void what_streams_reach_during_a_release_is_released_too(void **state) {
    (void)state;
    bool served;
    deferred_bytes = 50;
    idle = stuck = 1;
    reached_by_release = true;
    assert_int_equal(ask(40, &served), 2);
    assert_true(served);
    assert_int_equal(releases, 2);
    deferred_bytes = 50;
    available = 0;
    assert_int_equal(ask_the_limit(40, &served), 2);
    assert_true(served);
    assert_int_equal(releases, 4);
}

static void what_the_drivers_pools_keep_is_trimmed(void **state) {
    (void)state;
    bool served;
    kept = 50;
    assert_int_equal(ask(40, &served), 2);
    assert_true(served);
    kept = 10;
    assert_int_equal(ask(60 + 1, &served), 2); /* not enough: asked once more, and not again */
    assert_false(served);
}

/* Unloaded code and memory of other processes are not counted. */
static void what_the_driver_has_by_then_is_asked_for(void **state) {
    (void)state;
    struct oom_retry oom_retry = {.process_returns = oom_retry_returns()};
    idle = stuck = 20;
    assert_true(oom_retry_at_driver(&device, 20, &oom_retry));
    idle = stuck = 30;
    available = 19;
    assert_false(oom_retry_at_driver(&device, 20, &oom_retry));
    idle = stuck = 40;
    available = 20;
    assert_true(oom_retry_at_driver(&device, 20, &oom_retry));
}

/* ---- where nothing moves ---- */

static void nothing_idle_is_one_call(void **state) {
    (void)state;
    bool served;
    assert_int_equal(ask(40, &served), 1);
    assert_int_equal(ask(0x10000, &served), 1);
    idle = 30; /* too little */
    assert_int_equal(ask(40, &served), 1);
    assert_int_equal(releases, 0);
}

static void a_release_without_memory_is_retried_once(void **state) {
    (void)state;
    bool served;
    idle = stuck = 50;
    assert_int_equal(ask(40, &served), 2);
    assert_int_equal(releases, 1);
    assert_int_equal(ask_the_limit(40, &served), 2);
    assert_int_equal(releases, 2);
}

static void what_came_back_in_vain_is_asked_for_once(void **state) {
    (void)state;
    bool served;
    idle = 50;
    stuck = 20;
    assert_int_equal(ask(40, &served), 2); /* the rest of the sum lies in pieces */
    assert_int_equal(releases, 2);
}

static void more_than_the_limit_is_not_waited_for(void **state) {
    (void)state;
    bool served;
    atomic_store(&device.limit, 10);
    idle = 50;
    assert_int_equal(ask_the_limit(40, &served), 2);
    assert_int_equal(waits + releases, 0);
}

#define TEST(name) cmocka_unit_test_setup(name, start)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(what_others_took_and_freed_comes_back_again),
        TEST(a_request_refused_at_the_limit_is_retried_after_each_return),
        TEST(what_came_back_before_it_was_looked_for_is_asked_for),
        TEST(retries_of_a_request_are_bounded),
        TEST(what_was_freed_since_is_asked_for),
        TEST(work_is_waited_for_if_the_rest_is_not_enough),
        TEST(what_streams_hold_back_is_waited_for),
        TEST(what_streams_reach_during_a_release_is_released_too),
        TEST(what_the_drivers_pools_keep_is_trimmed),
        TEST(what_the_driver_has_by_then_is_asked_for),
        TEST(nothing_idle_is_one_call),
        TEST(a_release_without_memory_is_retried_once),
        TEST(what_came_back_in_vain_is_asked_for_once),
        TEST(more_than_the_limit_is_not_waited_for),
    };
    return cmocka_run_group_tests_name("oom_retry", tests, NULL, NULL);
}
