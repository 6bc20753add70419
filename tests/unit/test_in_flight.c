/* Tests in-flight allocations: which threads a refused request waits for, and for how long. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "base/clock.h"
#include "driver/state/in_flight.h"

#include <pthread.h>
#include <unistd.h>

#define MANY_TURNS 100000 /* of a wait that would never end: 5 s */

static struct in_flight in_flight;
static atomic_int stage;        /* of the other thread: 1 in flight, 2 told to end, 3 ended */
static bool ends_at_first_turn; /* the first turn of a wait tells the other thread to end */
static _Atomic uint64_t now_ns; /* of the kernel's clock, as the tests set it */
static uint64_t turn_ns;        /* time that passes in each turn of a wait */

long __real_syscall(long number, ...);
long __wrap_syscall(long number, ...);
void __real_let_others_run(unsigned turn);
void __wrap_let_others_run(unsigned turn);

/* Answers clock_kernel_ns(), and makes sleep_ns() sleep: both calls have two arguments. */
long __wrap_syscall(long number, ...) {
    va_list arguments;
    va_start(arguments, number);
    long first = va_arg(arguments, long);
    struct timespec *second = va_arg(arguments, struct timespec *);
    va_end(arguments);
    if (number != SYS_clock_gettime)
        return __real_syscall(number, first, second);
    *second = clock_from_ns(atomic_load(&now_ns));
    return 0;
}

void __wrap_let_others_run(unsigned turn) {
    if (ends_at_first_turn && turn == 0)
        atomic_store(&stage, 2);
    atomic_fetch_add(&now_ns, turn < MANY_TURNS ? turn_ns : SECOND_NS);
    __real_let_others_run(turn);
}

static bool any_is_slow(void) {
    for (unsigned i = 0; i < IN_FLIGHT_THREADS; i++)
        if (atomic_load(&in_flight.first.of[i].slow))
            return true;
    return false;
}

static int set_time(void **state) {
    (void)state;
    ends_at_first_turn = false;
    turn_ns = 0;
    return 0;
}

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

static void others_are_waited_for(void **state) {
    (void)state;
    pthread_t thread = begin(NULL);
    ends_at_first_turn = true;
    assert_true(in_flight_wait(&in_flight));
    assert_true(atomic_load(&stage) >= 2);
    assert_false(any_is_slow());
    assert_int_equal(atomic_load(&in_flight.return_count), 1);
    assert_false(in_flight_wait(&in_flight));
    pthread_join(thread, NULL);
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

/* Both refused threads count as in flight. A thread that waits in vain marks the other as slow. */
static void two_refused_threads_do_not_wait_for_each_other(void **state) {
    (void)state;
    pthread_t threads[2];
    for (int round = 0; round < 6; round++) {
        in_flight = (struct in_flight){0};
        atomic_store(&stage, 0);
        for (int i = 0; i < 2; i++)
            assert_int_equal(pthread_create(&threads[i], NULL, wait_after_refusal, NULL), 0);
        for (int i = 0; i < 2; i++)
            pthread_join(threads[i], NULL);
        assert_false(any_is_slow());
    }
}

static void a_later_thread_is_not_waited_for(void **state) {
    (void)state;
    pthread_t thread = begin(&stage);
    ends_at_first_turn = true;
    uint64_t began = atomic_load(&in_flight.asked);
    assert_true(in_flight_wait(&in_flight));
    assert_int_equal(began, 1);
    pthread_join(thread, NULL);
    assert_int_equal(atomic_load(&in_flight.asked), 2);
    assert_false(any_is_slow()); /* a wait for the later request would mark it */
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
    pthread_t thread;
    in_flight = (struct in_flight){0};
    atomic_store(&stage, 0);
    for (unsigned i = 0; i < IN_FLIGHT_THREADS; i++)
        in_flight_enter(&in_flight);
    assert_int_equal(pthread_create(&thread, NULL, allocate_in_flight, NULL), 0);
    while (atomic_load(&stage) < 1)
        usleep(100);
    assert_int_equal(atomic_load(&in_flight.asked), IN_FLIGHT_THREADS + 1);
    ends_at_first_turn = true;
    assert_true(in_flight_wait(&in_flight));
    assert_true(atomic_load(&stage) >= 2);
    pthread_join(thread, NULL);
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
    uint64_t begun = atomic_load(&now_ns);
    turn_ns = SECOND_NS / 10;
    assert_true(in_flight_wait(&in_flight));
    assert_int_equal(atomic_load(&now_ns) - begun, SECOND_NS);
    assert_true(any_is_slow());
    assert_int_equal(atomic_load(&stage), 1);
    assert_false(in_flight_wait(&in_flight)); /* a slow thread is not waited for again */
    atomic_store(&stage, 2);
    pthread_join(thread, NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(others_are_waited_for, set_time),
        cmocka_unit_test_setup(memory_given_back_is_counted_for_other_threads, set_time),
        cmocka_unit_test_setup(two_refused_threads_do_not_wait_for_each_other, set_time),
        cmocka_unit_test_setup(a_later_thread_is_not_waited_for, set_time),
        cmocka_unit_test_setup(no_thread_waits_for_itself, set_time),
        cmocka_unit_test_setup(a_thread_beyond_the_first_table_is_waited_for, set_time),
        cmocka_unit_test_setup(no_thread_waits_for_more_than_a_second, set_time),
    };
    return cmocka_run_group_tests_name("in_flight", tests, NULL, NULL);
}
