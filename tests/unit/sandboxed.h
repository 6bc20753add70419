/* Runs test cases that enter a sandbox, each in a process of its own, because no process can leave
 * a sandbox. Include this file after cmocka.h. */
#ifndef GPUCACHE_TESTS_SANDBOXED_H
#define GPUCACHE_TESTS_SANDBOXED_H

#include "../sandbox.h"

#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

/* Asserts in the child. cmocka's assertions would continue with the next test there. */
#define HOLDS(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition);                \
            return __LINE__;                                                                       \
        }                                                                                          \
    } while (0)

#define NO_SANDBOX (-2)
#define SET_UP_SANDBOX()                                                                           \
    do {                                                                                           \
        if (!refuse_membarrier())                                                                  \
            return NO_SANDBOX;                                                                     \
    } while (0)

static inline void in_a_process_of_its_own(int (*body)(void)) {
    int channel[2], line = -1, status = -1;
    assert_int_equal(pipe(channel), 0);
    pid_t child = fork();
    if (child == 0) {
        line = body();
        _exit(write(channel[1], &line, sizeof line) == sizeof line ? 0 : 1);
    }
    close(channel[1]);
    if (read(channel[0], &line, sizeof line) != sizeof line)
        line = -1;
    close(channel[0]);
    waitpid(child, &status, 0);
    assert_int_equal(status, 0);
    if (line == NO_SANDBOX)
        skip();
    assert_int_equal(line, 0);
}

#endif
