/* Tests forks and walks of the list of libraries: a fork waits for the end of each walk, and a walk
 * waits for the end of a fork. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "base/libraries.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

static atomic_int inside, looked, about_to_walk;

static int look(struct dl_phdr_info *info, size_t bytes, void *with) {
    (void)info, (void)bytes;
    atomic_store(&inside, 1);
    usleep(*(unsigned *)with);
    atomic_store(&inside, 0);
    atomic_fetch_add(&looked, 1);
    return 1;
}

static void *walk(void *with) {
    atomic_store(&about_to_walk, 1);
    libraries_visit(look, with);
    return NULL;
}

static void a_fork_waits_for_a_walk(void **state) {
    (void)state;
    pthread_t thread;
    unsigned us = 20000;
    assert_int_equal(pthread_create(&thread, NULL, walk, &us), 0);
    while (!atomic_load(&inside))
        usleep(100);
    errno = 77;
    libraries_before_fork();
    assert_int_equal(errno, 77);
    assert_int_equal(atomic_load(&inside), 0);
    assert_int_equal(atomic_load(&looked), 1);
    libraries_after_fork();
    pthread_join(thread, NULL);
}

static int stop_at_once(struct dl_phdr_info *info, size_t bytes, void *unused) {
    (void)info, (void)bytes, (void)unused;
    return 1;
}

static int look_again(struct dl_phdr_info *info, size_t bytes, void *unused) {
    (void)info, (void)bytes;
    atomic_store(&inside, 1);
    usleep(50000); /* the fork begins */
    libraries_visit(stop_at_once, unused);
    atomic_store(&inside, 0);
    return 1;
}

static void *walk_twice(void *unused) {
    libraries_visit(look_again, unused);
    return NULL;
}

/* Otherwise both would wait until the limit, and the fork would end first. */
static void a_walk_inside_a_walk_does_not_wait_for_a_fork(void **state) {
    (void)state;
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, walk_twice, NULL), 0);
    while (!atomic_load(&inside))
        usleep(100);
    libraries_before_fork();
    assert_int_equal(atomic_load(&inside), 0);
    libraries_after_fork();
    pthread_join(thread, NULL);
}

static void a_walk_waits_for_a_fork(void **state) {
    (void)state;
    pthread_t thread;
    unsigned us = 0;
    atomic_store(&looked, 0);
    atomic_store(&about_to_walk, 0);
    libraries_before_fork();
    assert_int_equal(pthread_create(&thread, NULL, walk, &us), 0);
    while (!atomic_load(&about_to_walk))
        usleep(100);
    usleep(50000);
    assert_int_equal(atomic_load(&looked), 0);
    libraries_after_fork();
    pthread_join(thread, NULL);
    assert_int_equal(atomic_load(&looked), 1);
}

static void a_child_looks_at_once(void **state) {
    (void)state;
    unsigned us = 0;
    libraries_before_fork();
    libraries_forked();
    errno = 77;
    assert_int_equal(libraries_visit(look, &us), 1);
    assert_int_equal(errno, 77);
    libraries_before_fork();
    libraries_after_fork();
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_fork_waits_for_a_walk),
        cmocka_unit_test(a_walk_inside_a_walk_does_not_wait_for_a_fork),
        cmocka_unit_test(a_walk_waits_for_a_fork),
        cmocka_unit_test(a_child_looks_at_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
