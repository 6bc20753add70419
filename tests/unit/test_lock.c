/*
 * Tests the order of locks: a thread that breaks the order is stopped at once, even if no thread
 * waits.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "base/lock.h"
#include "child.h"

#include <signal.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

static struct lock registry = LOCK_INITIALIZER(REGISTRY);
static struct lock pool, other_pool, transfer;

static int start(void **state) {
    (void)state;
    lock_start(&pool, LOCK_POOL);
    lock_start(&other_pool, LOCK_POOL);
    lock_start(&transfer, LOCK_TRANSFER);
    return 0;
}

/* Returns the message of a child that ends by SIGABRT; "" if it ends with status 0. */
static const char *death_of(void (*body)(void)) {
    int pipes[2];
    assert_int_equal(pipe(pipes), 0);
    pid_t child = fork();
    if (child == 0) {
        const struct rlimit no_core = {0, 0};
        setrlimit(RLIMIT_CORE, &no_core);
        signal(SIGABRT, SIG_DFL);
        dup2(pipes[1], STDERR_FILENO);
        body();
        _exit(0);
    }
    close(pipes[1]);
    const char *said = child_read(pipes[0]);
    int status = child_status(child);
    close(pipes[0]);
    assert_true(said[0] ? WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT : status == 0);
    return said;
}

static void in_order(void) {
    for (int i = 0; i < 2; i++) {
        lock_acquire(&registry);
        lock_acquire(&pool);
        lock_acquire(&transfer);
        lock_release(&pool); /* the order of releases is free */
        lock_release(&transfer);
        lock_release(&registry);
    }
    lock_acquire(&transfer);
    lock_release(&transfer);
    lock_acquire(&registry);
}

static void locks_are_taken_in_the_order_of_their_ranks(void **state) {
    (void)state;
    assert_string_equal(death_of(in_order), "");
}

static void out_of_order(void) {
    lock_acquire(&transfer);
    lock_acquire(&pool);
}

static void a_lock_taken_out_of_order_aborts_with_both_names(void **state) {
    (void)state;
    const char *said = death_of(out_of_order);
    assert_non_null(strstr(said, "gpucache: lock POOL ("));
    assert_non_null(strstr(said, ") taken while TRANSFER ("));
}

static void two_of_a_rank(void) {
    lock_acquire(&pool);
    lock_acquire(&other_pool);
}

static void two_pools_are_not_locked_at_once(void **state) {
    (void)state;
    assert_non_null(strstr(death_of(two_of_a_rank), "the fast paths) taken while POOL"));
}

static void several_caches(void) {
    lock_acquire(&pool);
    lock_check(LOCK_CACHE);
    lock_note(LOCK_CACHE);
    lock_check(LOCK_CACHE);
    lock_note(LOCK_CACHE);
    lock_acquire(&transfer);
}

static void several_caches_are_held_at_once(void **state) {
    (void)state;
    assert_string_equal(death_of(several_caches), "");
}

/* A report may be requested at any time, while the interrupted thread holds any lock. */
static void tried(void) {
    lock_acquire(&transfer);
    if (lock_try(&pool))
        lock_release(&pool);
    lock_release(&transfer);
}

static void a_lock_that_is_only_tried_has_no_order(void **state) {
    (void)state;
    assert_string_equal(death_of(tried), "");
}

static void held_after_a_try(void) {
    if (lock_try(&transfer))
        lock_acquire(&pool);
}

static void a_lock_that_was_tried_is_held(void **state) {
    (void)state;
    assert_non_null(strstr(death_of(held_after_a_try), "taken while TRANSFER"));
}

static void released_twice(void) {
    lock_acquire(&pool);
    lock_release(&pool);
    lock_release(&pool);
}

static void a_lock_that_is_not_held_is_not_released(void **state) {
    (void)state;
    assert_non_null(strstr(death_of(released_twice), "released, but not held"));
}

static void asserts_a_lock_it_has_not(void) {
    lock_acquire(&pool);
    ASSERT_HELD(&pool);
    ASSERT_HELD(&other_pool);
}

static void an_assertion_names_the_lock_that_is_not_held(void **state) {
    (void)state;
    const char *said = death_of(asserts_a_lock_it_has_not);
    assert_non_null(strstr(said, "test_lock.c:"));
    assert_non_null(strstr(said, "other_pool"));
}

static void *assert_held_elsewhere(void *with) {
    ASSERT_NOT_HELD(&pool);
    ASSERT_HELD(&pool);
    return with;
}

static void asserts_in_another_thread(void) {
    pthread_t thread;
    lock_acquire(&pool);
    pthread_create(&thread, NULL, assert_held_elsewhere, NULL);
    pthread_join(thread, NULL);
}

static void a_lock_is_held_by_one_thread_only(void **state) {
    (void)state;
    assert_non_null(strstr(death_of(asserts_in_another_thread), "holder_is_me"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(locks_are_taken_in_the_order_of_their_ranks, start),
        cmocka_unit_test_setup(a_lock_taken_out_of_order_aborts_with_both_names, start),
        cmocka_unit_test_setup(two_pools_are_not_locked_at_once, start),
        cmocka_unit_test_setup(several_caches_are_held_at_once, start),
        cmocka_unit_test_setup(a_lock_that_is_only_tried_has_no_order, start),
        cmocka_unit_test_setup(a_lock_that_was_tried_is_held, start),
        cmocka_unit_test_setup(a_lock_that_is_not_held_is_not_released, start),
        cmocka_unit_test_setup(an_assertion_names_the_lock_that_is_not_held, start),
        cmocka_unit_test_setup(a_lock_is_held_by_one_thread_only, start),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
