/*
 * A test that fails half way, in three ways that could lose the message: with a lock held that the
 * tear-down takes, in another thread, and in a child. failing.py looks for the message.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <pthread.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static const char *how;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void *thread(void *unused) {
    int answer = 41;
    assert_int_equal(answer, 42);
    return unused;
}

static void fails(void **state) {
    (void)state;
    int answer = 41;
    pthread_t other;
    if (strcmp(how, "thread") == 0) {
        pthread_create(&other, NULL, thread, NULL);
        pthread_join(other, NULL);
    } else if (strcmp(how, "child") == 0 && fork() != 0) {
        wait(NULL);
        return;
    }
    pthread_mutex_lock(&lock);
    assert_true(answer == 42);
}

static int tear_down(void **state) {
    (void)state;
    pthread_mutex_lock(&lock);
    return 0;
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {cmocka_unit_test_teardown(fails, tear_down)};
    how = argc > 1 ? argv[1] : "";
    return cmocka_run_group_tests(tests, NULL, NULL);
}
