#include "base/clock.h"

#include <errno.h>
#include <sched.h>

#define YIELDS 100     /* turns of a waiting loop before it sleeps */
#define SLEEP_NS 50000 /* of each further turn */

void sleep_ns(uint64_t ns) {
    struct timespec time = clock_from_ns(ns);
    syscall(SYS_nanosleep, &time, NULL);
}

void let_others_run(unsigned turn) {
    if (turn < YIELDS)
        sched_yield();
    else
        sleep_ns(SLEEP_NS);
}

void sleep_despite_signals(uint64_t ns) {
    struct timespec left = clock_from_ns(ns);
    while (syscall(SYS_nanosleep, &left, &left) != 0 && errno == EINTR) {
    }
}
