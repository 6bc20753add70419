/*
 * A thread, and no timer: a timer's signal would interrupt the program's calls. It takes none of the program's signals.
 */
#include "process/interval.h"

#include "process/log.h"
#include "process/options.h"
#include "process/process.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define PATIENCE_MS 2000 /* a second for its reader, and the rest for the report */

enum { IDLE, WRITING, HELD };
static _Atomic int state;

static void report_unless_held(void) {
    int idle = IDLE;
    if (!atomic_compare_exchange_strong(&state, &idle, WRITING))
        return;
    process_report("interval");
    atomic_store(&state, IDLE);
}

void interval_hold(void) {
    const struct timespec turn = {0, 1000000};
    for (int i = 0; i < PATIENCE_MS; i++) {
        int idle = IDLE;
        if (atomic_compare_exchange_strong(&state, &idle, HELD) || idle == HELD)
            return;
        syscall(SYS_nanosleep, &turn, NULL);
    }
}

void interval_release(void) {
    int held = HELD;
    atomic_compare_exchange_strong(&state, &held, IDLE);
}

static void *report_every(void *unused) {
    uint64_t ms = options()->report_interval_ms;
    struct timespec left;
    for (;;) {
        left = (struct timespec){(time_t)(ms / 1000), (long)(ms % 1000) * 1000000};
        while (syscall(SYS_nanosleep, &left, &left) != 0 && errno == EINTR)
            continue;
        report_unless_held();
    }
    return unused;
}

void interval_start(void) {
    sigset_t all, before;
    pthread_t thread;
    if (options()->report_interval_ms == 0)
        return;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = pthread_create(&thread, NULL, report_every, NULL);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error != 0) {
        log_warn("no reports at an interval: a thread cannot be made: error %d", error);
        return;
    }
    pthread_setname_np(thread, "gpucache");
    pthread_detach(thread);
}
