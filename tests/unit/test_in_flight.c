/* Tests in-flight allocations: which threads a refused request waits for, and for how long. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "driver/state/in_flight.h"

#include <pthread.h>
#include <unistd.h>

static struct in_flight in_flight;
static atomic_int stage; /* of the other thread: 1 it asks, 2 it is to end, 3 it has */

static void *asks(void *again) {
    in_flight_enter(&in_flight);
    atomic_store(&stage, 1);
    while (atomic_load(&stage) < 2) {
        usleep(100);
    }
    in_flight_give_back(&in_flight);
    in_flight_leave(&in_flight);
    if (again) { /* this one came later */
        in_flight_enter(&in_flight);
    }
    atomic_store(&stage, 3);
    return NULL;
}

static pthread_t begin(void *again) {
    pthread_t thread;
    in_flight = (struct in_flight){0};
    atomic_store(&stage, 0);
    assert_int_equal(pthread_create(&thread, NULL, asks, again), 0);
    while (atomic_load(&stage) < 1) {
        usleep(100);
    }
    return thread;
}

static void *ends_it(void *unused) {
    usleep(20000);
    atomic_store(&stage, 2);
    return unused;
}

static void others_are_waited_for(void **state) {
    (void)state;
    pthread_t thread = begin(NULL), other;
    assert_int_equal(pthread_create(&other, NULL, ends_it, NULL), 0);
    assert_true(in_flight_wait(&in_flight));
    assert_true(atomic_load(&stage) >= 2);
    assert_int_equal(atomic_load(&in_flight.return_count), 1);
    assert_false(in_flight_wait(&in_flight));
    pthread_join(thread, NULL);
    pthread_join(other, NULL);
}

static void what_one_gives_back_is_news_to_others(void **state) {
    (void)state;
    pthread_t thread = begin(NULL);
    uint64_t before = in_flight_given_back(&in_flight);
    in_flight_give_back(&in_flight);
    assert_int_equal(in_flight_given_back(&in_flight), before);
    atomic_store(&stage, 2);
    pthread_join(thread, NULL);
    assert_int_not_equal(in_flight_given_back(&in_flight), before);
}

static void *is_refused(void *unused) {
    in_flight_enter(&in_flight);
    atomic_fetch_add(&stage, 1);
    while (atomic_load(&stage) < 2) {
        usleep(100);
    }
    in_flight_wait(&in_flight);
    in_flight_leave(&in_flight);
    return unused;
}

/* Each counts as in flight, because it has charged its bytes. A thread that waits in vain marks the
 * other one as slow, which may happen on a busy machine. */
static void two_who_were_refused_do_not_wait_for_each_other(void **state) {
    (void)state;
    pthread_t threads[2];
    unsigned slow = 0;
    for (int round = 0; round < 6; round++) {
        in_flight = (struct in_flight){0};
        atomic_store(&stage, 0);
        for (int i = 0; i < 2; i++) {
            assert_int_equal(pthread_create(&threads[i], NULL, is_refused, NULL), 0);
        }
        for (int i = 0; i < 2; i++) {
            pthread_join(threads[i], NULL);
        }
        slow +=
            atomic_load(&in_flight.first.of[0].slow) || atomic_load(&in_flight.first.of[1].slow);
    }
    assert_true(slow < 3);
}

static void a_later_thread_is_not_waited_for(void **state) {
    (void)state;
    pthread_t thread = begin(&stage), other;
    assert_int_equal(pthread_create(&other, NULL, ends_it, NULL), 0);
    uint64_t began = atomic_load(&in_flight.asked);
    assert_true(in_flight_wait(&in_flight)); /* it would else last for as long as may be */
    assert_int_equal(began, 1);
    pthread_join(thread, NULL);
    pthread_join(other, NULL);
    assert_int_equal(atomic_load(&in_flight.asked), 2);
}

static void nobody_waits_for_oneself(void **state) {
    (void)state;
    in_flight = (struct in_flight){0};
    in_flight_enter(&in_flight);
    assert_false(in_flight_wait(&in_flight));
    in_flight_enter(&in_flight); /* from a signal's handler */
    assert_false(in_flight_wait(&in_flight));
    in_flight_leave(&in_flight);
    in_flight_leave(&in_flight);
    for (unsigned i = 0; i < 3 * ASKERS; i++) { /* places are free again */
        in_flight_enter(&in_flight);
        in_flight_leave(&in_flight);
    }
    assert_int_equal(atomic_load(&in_flight.first.of[0].number), 0);
    assert_int_equal(atomic_load(&in_flight.first.of[0].who), 0);
}

/* The calling thread fills the first table, so the other one finds its place in a further one. */
static void one_more_than_a_table_holds_is_waited_for(void **state) {
    (void)state;
    pthread_t thread, other;
    in_flight = (struct in_flight){0};
    atomic_store(&stage, 0);
    for (unsigned i = 0; i < ASKERS; i++) {
        in_flight_enter(&in_flight);
    }
    assert_int_equal(pthread_create(&thread, NULL, asks, NULL), 0);
    while (atomic_load(&stage) < 1) {
        usleep(100);
    }
    assert_int_equal(atomic_load(&in_flight.asked), ASKERS + 1);
    assert_int_equal(pthread_create(&other, NULL, ends_it, NULL), 0);
    assert_true(in_flight_wait(&in_flight));
    assert_true(atomic_load(&stage) >= 2);
    pthread_join(thread, NULL);
    pthread_join(other, NULL);
    const struct in_flight_table *more = atomic_load(&in_flight.first.next);
    assert_non_null(more);
    assert_int_equal(atomic_load(&more->of[0].who), 0); /* the place is free again */
    for (unsigned i = 0; i < ASKERS; i++) {
        in_flight_leave(&in_flight);
    }
    assert_false(in_flight_wait(&in_flight));
}

static void nobody_waits_for_ever(void **state) {
    (void)state;
    pthread_t thread = begin(NULL);
    assert_true(in_flight_wait(&in_flight));
    assert_int_equal(atomic_load(&stage), 1);
    assert_false(in_flight_wait(&in_flight)); /* nor for the same one once more */
    atomic_store(&stage, 2);
    pthread_join(thread, NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(others_are_waited_for),
        cmocka_unit_test(what_one_gives_back_is_news_to_others),
        cmocka_unit_test(two_who_were_refused_do_not_wait_for_each_other),
        cmocka_unit_test(a_later_thread_is_not_waited_for),
        cmocka_unit_test(nobody_waits_for_oneself),
        cmocka_unit_test(one_more_than_a_table_holds_is_waited_for),
        cmocka_unit_test(nobody_waits_for_ever),
    };
    return cmocka_run_group_tests_name("in_flight", tests, NULL, NULL);
}
