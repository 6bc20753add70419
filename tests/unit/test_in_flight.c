/* Tests in-flight allocations: which threads a refused request waits for, and for how long. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "base/clock.h"
#include "driver/state/in_flight.h"

#include <pthread.h>
#include <unistd.h>

static struct in_flight in_flight;
static atomic_int stage; /* of the other thread: 1 in flight, 2 told to end, 3 ended */

static void *allocate_in_flight(void *again) {
    in_flight_enter(&in_flight);
    atomic_store(&stage, 1);
    while (atomic_load(&stage) < 2)
        usleep(100);
    in_flight_give_back(&in_flight);
    in_flight_leave(&in_flight);
    if (again) /* a later allocation of the same thread */
        in_flight_enter(&in_flight);
    atomic_store(&stage, 3);
    return NULL;
}

static pthread_t begin(void *again) {
    pthread_t thread;
    in_flight = (struct in_flight){0};
    atomic_store(&stage, 0);
    assert_int_equal(pthread_create(&thread, NULL, allocate_in_flight, again), 0);
    while (atomic_load(&stage) < 1)
        usleep(100);
    return thread;
}

static void *end_other_thread(void *unused) {
    usleep(20000);
    atomic_store(&stage, 2);
    return unused;
}

static void others_are_waited_for(void **state) {
    (void)state;
    pthread_t thread = begin(NULL), other;
    assert_int_equal(pthread_create(&other, NULL, end_other_thread, NULL), 0);
    assert_true(in_flight_wait(&in_flight));
    assert_true(atomic_load(&stage) >= 2);
    assert_int_equal(atomic_load(&in_flight.return_count), 1);
    assert_false(in_flight_wait(&in_flight));
    pthread_join(thread, NULL);
    pthread_join(other, NULL);
}

static void memory_given_back_is_counted_for_other_threads(void **state) {
    (void)state;
    pthread_t thread = begin(NULL);
    uint64_t before = in_flight_given_back(&in_flight);
    in_flight_give_back(&in_flight);
    assert_int_equal(in_flight_given_back(&in_flight), before);
    atomic_store(&stage, 2);
    pthread_join(thread, NULL);
    assert_int_not_equal(in_flight_given_back(&in_flight), before);
}

static void *wait_after_refusal(void *unused) {
    in_flight_enter(&in_flight);
    atomic_fetch_add(&stage, 1);
    while (atomic_load(&stage) < 2)
        usleep(100);
    in_flight_wait(&in_flight);
    in_flight_leave(&in_flight);
    return unused;
}

/* Both refused threads count as in flight. A thread that waits in vain marks the other one as slow.
 * A busy machine may cause that too, so some rounds may fail. */
static void two_refused_threads_do_not_wait_for_each_other(void **state) {
    (void)state;
    pthread_t threads[2];
    unsigned slow = 0;
    for (int round = 0; round < 6; round++) {
        in_flight = (struct in_flight){0};
        atomic_store(&stage, 0);
        for (int i = 0; i < 2; i++)
            assert_int_equal(pthread_create(&threads[i], NULL, wait_after_refusal, NULL), 0);
        for (int i = 0; i < 2; i++)
            pthread_join(threads[i], NULL);
        slow +=
            atomic_load(&in_flight.first.of[0].slow) || atomic_load(&in_flight.first.of[1].slow);
    }
    assert_true(slow < 3);
}

static void a_later_thread_is_not_waited_for(void **state) {
    (void)state;
    pthread_t thread = begin(&stage), other;
    assert_int_equal(pthread_create(&other, NULL, end_other_thread, NULL), 0);
    uint64_t began = atomic_load(&in_flight.asked);
    assert_true(
        in_flight_wait(&in_flight)); /* a wait for the later one would last for the whole limit */
    assert_int_equal(began, 1);
    pthread_join(thread, NULL);
    pthread_join(other, NULL);
    assert_int_equal(atomic_load(&in_flight.asked), 2);
}

static void no_thread_waits_for_itself(void **state) {
    (void)state;
    in_flight = (struct in_flight){0};
    in_flight_enter(&in_flight);
    assert_false(in_flight_wait(&in_flight));
    in_flight_enter(&in_flight); /* from a signal's handler */
    assert_false(in_flight_wait(&in_flight));
    in_flight_leave(&in_flight);
    in_flight_leave(&in_flight);
    for (unsigned i = 0; i < 3 * IN_FLIGHT_THREADS; i++) { /* entries of the table are free again */
        in_flight_enter(&in_flight);
        in_flight_leave(&in_flight);
    }
    assert_int_equal(atomic_load(&in_flight.first.of[0].number), 0);
    assert_int_equal(atomic_load(&in_flight.first.of[0].who), 0);
}

/* The calling thread fills the first table, so the other thread is entered in a second table. */
static void a_thread_beyond_the_first_table_is_waited_for(void **state) {
    (void)state;
    pthread_t thread, other;
    in_flight = (struct in_flight){0};
    atomic_store(&stage, 0);
    for (unsigned i = 0; i < IN_FLIGHT_THREADS; i++)
        in_flight_enter(&in_flight);
    assert_int_equal(pthread_create(&thread, NULL, allocate_in_flight, NULL), 0);
    while (atomic_load(&stage) < 1)
        usleep(100);
    assert_int_equal(atomic_load(&in_flight.asked), IN_FLIGHT_THREADS + 1);
    assert_int_equal(pthread_create(&other, NULL, end_other_thread, NULL), 0);
    assert_true(in_flight_wait(&in_flight));
    assert_true(atomic_load(&stage) >= 2);
    pthread_join(thread, NULL);
    pthread_join(other, NULL);
    const struct in_flight_table *more = atomic_load(&in_flight.first.next);
    assert_non_null(more);
    assert_int_equal(atomic_load(&more->of[0].who), 0); /* the entry is free again */
    for (unsigned i = 0; i < IN_FLIGHT_THREADS; i++)
        in_flight_leave(&in_flight);
    assert_false(in_flight_wait(&in_flight));
}

static void no_thread_waits_for_more_than_a_second(void **state) {
    (void)state;
    pthread_t thread = begin(NULL);
    uint64_t begun = clock_kernel_ns();
    assert_true(in_flight_wait(&in_flight));
    assert_in_range(clock_kernel_ns() - begun, SECOND_NS, SECOND_NS / 10 * 19);
    assert_int_equal(atomic_load(&stage), 1);
    assert_false(in_flight_wait(&in_flight)); /* a slow thread is not waited for again */
    atomic_store(&stage, 2);
    pthread_join(thread, NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(others_are_waited_for),
        cmocka_unit_test(memory_given_back_is_counted_for_other_threads),
        cmocka_unit_test(two_refused_threads_do_not_wait_for_each_other),
        cmocka_unit_test(a_later_thread_is_not_waited_for),
        cmocka_unit_test(no_thread_waits_for_itself),
        cmocka_unit_test(a_thread_beyond_the_first_table_is_waited_for),
        cmocka_unit_test(no_thread_waits_for_more_than_a_second),
    };
    return cmocka_run_group_tests_name("in_flight", tests, NULL, NULL);
}
