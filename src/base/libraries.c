#include "base/libraries.h"

#include "base/clock.h"

#include <errno.h>
#include <stdatomic.h>

/* In one wait. Each sleep lasts longer than SLEEP_NS by the timer slack (50 us by default:
 * prctl(2)), so a wait takes some 1.5 s. */
#define SLEEPS 10000
#define SLEEP_NS 100000

static _Atomic int readers, forks; /* each thread counts itself before it checks the other count */

/* Reads of this thread in progress: a callback may read again. Only the outermost one counts in
 * `readers` and waits. An inner one that waited for a fork would wait for a thread that waits for
 * the outer one. */
static _Thread_local int depth __attribute__((tls_model("initial-exec")));

void libraries_begin_reading(void) {
    if (depth++ > 0)
        return;
    int saved = errno;
    atomic_fetch_add(&readers, 1);
    for (int i = 0; atomic_load(&forks) > 0 && i < SLEEPS; i++) {
        atomic_fetch_sub(&readers, 1);
        sleep_ns(SLEEP_NS);
        atomic_fetch_add(&readers, 1);
    }
    errno = saved;
}

void libraries_end_reading(void) {
    if (--depth == 0)
        atomic_fetch_sub(&readers, 1);
}

int libraries_visit(int (*look_at)(struct dl_phdr_info *info, size_t bytes, void *argument),
                    void *argument) {
    int saved = errno;
    libraries_begin_reading();
    int r = dl_iterate_phdr(look_at, argument);
    libraries_end_reading();
    errno = saved;
    return r;
}

void libraries_before_fork(void) {
    int saved = errno;
    atomic_fetch_add(&forks, 1);
    int own = depth > 0; /* the thread forks inside a callback */
    for (int i = 0; atomic_load(&readers) > own && i < SLEEPS; i++)
        sleep_ns(SLEEP_NS);
    errno = saved;
}

void libraries_after_fork(void) {
    atomic_fetch_sub(&forks, 1);
}

void libraries_forked(void) {
    atomic_store(&forks, 0);
    atomic_store(&readers, depth > 0);
}
