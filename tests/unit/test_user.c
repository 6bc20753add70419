/*
 * Tests which user IDs count as this process's user (base/user.h).
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "base/user.h"
#include "child.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define OVERFLOW 65534
#define NOT_PERMITTED 77

static void only_the_effective_user_is_own(void **state) {
    (void)state;
    if (geteuid() != OVERFLOW)
        assert_true(user_is_own(geteuid()));
    assert_false(user_is_own(geteuid() + 1));
    if (geteuid() != 0) {
        assert_false(user_is_own(0));
        return;
    }
    pid_t child = fork();
    if (child == 0)
        _exit(seteuid(2001) == 0 && user_is_own(2001) && !user_is_own(0) ? 0 : 1);
    assert_int_equal(child_status(child), 0);
}

/** In a new user namespace without a map, every user has the overflow ID, this process included. */
static void the_overflow_user_is_not_own(void **state) {
    (void)state;
    pid_t child = fork();
    if (child == 0) {
        if (unshare(CLONE_NEWUSER) != 0)
            _exit(NOT_PERMITTED);
        _exit(geteuid() == OVERFLOW && !user_is_own(OVERFLOW) && !user_is_own(0) ? 0 : 1);
    }
    int status = child_status(child);
    if (status == NOT_PERMITTED << 8)
        skip();
    assert_int_equal(status, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(only_the_effective_user_is_own),
        cmocka_unit_test(the_overflow_user_is_not_own),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
