#include "base/clock.h"

#include <errno.h>

void sleep_ns(uint64_t ns) {
    struct timespec time = clock_from_ns(ns);
    syscall(SYS_nanosleep, &time, NULL);
}

void sleep_despite_signals(uint64_t ns) {
    struct timespec left = clock_from_ns(ns);
    while (syscall(SYS_nanosleep, &left, &left) != 0 && errno == EINTR) {
    }
}
