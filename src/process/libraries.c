#include "process/libraries.h"

#include "process/nap.h"

#include <errno.h>
#include <stdatomic.h>

#define TRIES 10000 /* per wait: a thread may fork inside a callback */
#define TURN_NS 100000

static _Atomic int readers, forks; /* each thread counts itself before it checks the other count */

static void begin(void) {
    atomic_fetch_add(&readers, 1);
    for (int i = 0; atomic_load(&forks) > 0 && i < TRIES; i++) {
        atomic_fetch_sub(&readers, 1);
        nap(TURN_NS);
        atomic_fetch_add(&readers, 1);
    }
}

int libraries_visit(int (*look_at)(struct dl_phdr_info *info, size_t bytes, void *with),
                    void *with) {
    int saved = errno;
    begin();
    int r = dl_iterate_phdr(look_at, with);
    atomic_fetch_sub(&readers, 1);
    errno = saved;
    return r;
}

void libraries_before_fork(void) {
    int saved = errno;
    atomic_fetch_add(&forks, 1);
    for (int i = 0; atomic_load(&readers) > 0 && i < TRIES; i++) {
        nap(TURN_NS);
    }
    errno = saved;
}

void libraries_after_fork(void) {
    atomic_fetch_sub(&forks, 1);
}

void libraries_forked(void) {
    atomic_store(&forks, 0);
    atomic_store(&readers, 0);
}
