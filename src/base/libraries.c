#include "base/libraries.h"

#include "base/clock.h"

#include <errno.h>
#include <stdatomic.h>

/* In one wait: a thread that forks inside a callback waits for itself. Each sleep lasts longer than
 * SLEEP_NS by the timer slack (50 us by default: prctl(2)), so a wait takes some 1.5 s. */
#define SLEEPS 10000
#define SLEEP_NS 100000

static _Atomic int readers, forks; /* each thread counts itself before it checks the other count */

/* Waits for a fork in progress, and counts this thread as a reader. */
static void begin_reading(void) {
    atomic_fetch_add(&readers, 1);
    for (int i = 0; atomic_load(&forks) > 0 && i < SLEEPS; i++) {
        atomic_fetch_sub(&readers, 1);
        sleep_ns(SLEEP_NS);
        atomic_fetch_add(&readers, 1);
    }
}

int libraries_visit(int (*look_at)(struct dl_phdr_info *info, size_t bytes, void *argument),
                    void *argument) {
    int saved = errno;
    begin_reading();
    int r = dl_iterate_phdr(look_at, argument);
    atomic_fetch_sub(&readers, 1);
    errno = saved;
    return r;
}

void libraries_before_fork(void) {
    int saved = errno;
    atomic_fetch_add(&forks, 1);
    for (int i = 0; atomic_load(&readers) > 0 && i < SLEEPS; i++)
        sleep_ns(SLEEP_NS);
    errno = saved;
}

void libraries_after_fork(void) {
    atomic_fetch_sub(&forks, 1);
}

void libraries_forked(void) {
    atomic_store(&forks, 0);
    atomic_store(&readers, 0);
}
