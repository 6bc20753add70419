/* Functions for programs that print the codes of calls: in the order of the calls, with each case
 * in a process of its own. */
#ifndef GPU_CODES_H
#define GPU_CODES_H

#include <cstdio>
#include <cstring>
#include <initializer_list>
#include <sys/wait.h>
#include <unistd.h>

/* Prints `fmt` with the codes for its %d. The codes are a braced list, because arguments of a call
 * are evaluated in any order, and elements of a braced list from left to right. */
static inline void codes(const char *fmt, std::initializer_list<int> values) {
    auto v = values.begin();
    for (; *fmt; fmt++) {
        if (fmt[0] == '%' && fmt[1] == 'd') {
            printf("%d", *v++);
            fmt++;
        } else {
            putchar(*fmt);
        }
    }
}

/*
 * Runs the named case. Without a name, runs each case in a process of its own and prints how it
 * ended. Returns status 1 if a case failed a CHECK or died of a signal.
 */
template <class T, size_t n> static int run_cases(int argc, char **argv, const T (&cases)[n]) {
    setvbuf(stdout, nullptr, _IOLBF, 0);
    if (argc > 1) {
        alarm(60);
        for (auto &c : cases)
            if (strcmp(c.name, argv[1]) == 0) {
                c.run();
                return 0;
            }
        fprintf(stderr, "no case %s\n", argv[1]);
        return 2;
    }
    int broken = 0;
    for (auto &c : cases) {
        printf("[%s]\n", c.name);
        fflush(stdout);
        pid_t pid = fork();
        if (pid == 0) {
            execl("/proc/self/exe", argv[0], c.name, (char *)nullptr);
            _exit(127);
        }
        int status;
        waitpid(pid, &status, 0);
        printf("[%s] status 0x%x\n", c.name, status);
        broken |= WIFSIGNALED(status) || WEXITSTATUS(status) == 2 || WEXITSTATUS(status) == 127;
    }
    return broken;
}

#endif
