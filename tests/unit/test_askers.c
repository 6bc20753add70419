/* Askers: who is waited for, and for how long. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "driver/state/in_flight.h"

#include <pthread.h>
#include <unistd.h>

static struct askers askers;
static atomic_int stage; /* of the other thread: 1 it asks, 2 it is to end, 3 it has */

static void *asks(void *again) {
    askers_enter(&askers);
    atomic_store(&stage, 1);
    while (atomic_load(&stage) < 2) {
        usleep(100);
    }
    askers_give_back(&askers);
    askers_leave(&askers);
    if (again) { /* this one came later */
        askers_enter(&askers);
    }
    atomic_store(&stage, 3);
    return NULL;
}

static pthread_t begin(void *again) {
    pthread_t thread;
    askers = (struct askers){0};
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
    assert_true(askers_wait(&askers));
    assert_true(atomic_load(&stage) >= 2);
    assert_int_equal(atomic_load(&askers.return_count), 1);
    assert_false(askers_wait(&askers));
    pthread_join(thread, NULL);
    pthread_join(other, NULL);
}

static void what_one_gives_back_is_news_to_others(void **state) {
    (void)state;
    pthread_t thread = begin(NULL);
    uint64_t before = askers_given_back(&askers);
    askers_give_back(&askers);
    assert_int_equal(askers_given_back(&askers), before);
    atomic_store(&stage, 2);
    pthread_join(thread, NULL);
    assert_int_not_equal(askers_given_back(&askers), before);
}

static void *is_refused(void *unused) {
    askers_enter(&askers);
    atomic_fetch_add(&stage, 1);
    while (atomic_load(&stage) < 2) {
        usleep(100);
    }
    askers_wait(&askers);
    askers_leave(&askers);
    return unused;
}

/* Each still counts as asking: it has charged what it asks for. Who waits for the other in vain finds it slow; on a
 * busy machine one may be. */
static void two_who_were_refused_do_not_wait_for_each_other(void **state) {
    (void)state;
    pthread_t threads[2];
    unsigned slow = 0;
    for (int round = 0; round < 6; round++) {
        askers = (struct askers){0};
        atomic_store(&stage, 0);
        for (int i = 0; i < 2; i++) {
            assert_int_equal(pthread_create(&threads[i], NULL, is_refused, NULL), 0);
        }
        for (int i = 0; i < 2; i++) {
            pthread_join(threads[i], NULL);
        }
        slow += atomic_load(&askers.first.of[0].slow) || atomic_load(&askers.first.of[1].slow);
    }
    assert_true(slow < 3);
}

static void whoever_comes_later_is_not(void **state) {
    (void)state;
    pthread_t thread = begin(&stage), other;
    assert_int_equal(pthread_create(&other, NULL, ends_it, NULL), 0);
    uint64_t began = atomic_load(&askers.asked);
    assert_true(askers_wait(&askers)); /* it would else last for as long as may be */
    assert_int_equal(began, 1);
    pthread_join(thread, NULL);
    pthread_join(other, NULL);
    assert_int_equal(atomic_load(&askers.asked), 2);
}

static void nobody_waits_for_oneself(void **state) {
    (void)state;
    askers = (struct askers){0};
    askers_enter(&askers);
    assert_false(askers_wait(&askers));
    askers_enter(&askers); /* from a signal's handler */
    assert_false(askers_wait(&askers));
    askers_leave(&askers);
    askers_leave(&askers);
    for (unsigned i = 0; i < 3 * ASKERS; i++) { /* places are free again */
        askers_enter(&askers);
        askers_leave(&askers);
    }
    assert_int_equal(atomic_load(&askers.first.of[0].number), 0);
    assert_int_equal(atomic_load(&askers.first.of[0].who), 0);
}

/* The calling thread fills the first table, so the other one finds its place in a further one. */
static void one_more_than_a_table_holds_is_waited_for(void **state) {
    (void)state;
    pthread_t thread, other;
    askers = (struct askers){0};
    atomic_store(&stage, 0);
    for (unsigned i = 0; i < ASKERS; i++) {
        askers_enter(&askers);
    }
    assert_int_equal(pthread_create(&thread, NULL, asks, NULL), 0);
    while (atomic_load(&stage) < 1) {
        usleep(100);
    }
    assert_int_equal(atomic_load(&askers.asked), ASKERS + 1);
    assert_int_equal(pthread_create(&other, NULL, ends_it, NULL), 0);
    assert_true(askers_wait(&askers));
    assert_true(atomic_load(&stage) >= 2);
    pthread_join(thread, NULL);
    pthread_join(other, NULL);
    const struct asker_table *more = atomic_load(&askers.first.next);
    assert_non_null(more);
    assert_int_equal(atomic_load(&more->of[0].who), 0); /* the place is free again */
    for (unsigned i = 0; i < ASKERS; i++) {
        askers_leave(&askers);
    }
    assert_false(askers_wait(&askers));
}

static void nobody_waits_for_ever(void **state) {
    (void)state;
    pthread_t thread = begin(NULL);
    assert_true(askers_wait(&askers));
    assert_int_equal(atomic_load(&stage), 1);
    assert_false(askers_wait(&askers)); /* nor for the same one once more */
    atomic_store(&stage, 2);
    pthread_join(thread, NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(others_are_waited_for),
        cmocka_unit_test(what_one_gives_back_is_news_to_others),
        cmocka_unit_test(two_who_were_refused_do_not_wait_for_each_other),
        cmocka_unit_test(whoever_comes_later_is_not),
        cmocka_unit_test(nobody_waits_for_oneself),
        cmocka_unit_test(one_more_than_a_table_holds_is_waited_for),
        cmocka_unit_test(nobody_waits_for_ever),
    };
    return cmocka_run_group_tests_name("askers", tests, NULL, NULL);
}
