#include "child.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

bool child_under_valgrind(void) {
    const char *preloaded = getenv("LD_PRELOAD");
    return preloaded && strstr(preloaded, "vgpreload");
}

int child_status(pid_t child) {
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    return status;
}

const char *child_read(int fd) {
    static char text[1 << 20];
    size_t length = 0;
    ssize_t part;
    while ((part = read(fd, text + length, sizeof text - 1 - length)) > 0)
        length += (size_t)part;
    text[length] = '\0';
    return text;
}

const char *child_stderr(const char *const *variables, void (*body)(void)) {
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    pid_t child = fork();
    if (child == 0) {
        dup2(ends[1], STDERR_FILENO);
        close(ends[0]);
        close(ends[1]);
        if (variables)
            clearenv();
        for (; variables && *variables; variables++)
            putenv((char *)*variables);
        body();
        _exit(0);
    }
    close(ends[1]);
    const char *text = child_read(ends[0]);
    close(ends[0]);
    assert_int_equal(child_status(child), 0);
    return text;
}
