#include "process/guard.h"

#include "options/options.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/mman.h>
#include <unistd.h>

#define GUARDED 4 /* mappings: trace, live page, file of the peaks; one is spare */

static struct {
    uintptr_t start, end;
    void (*lost)(void);
    atomic_bool complete; /* set last: the other fields may be read */
} guarded[GUARDED];
static _Atomic unsigned count;

bool guard_is_needed(void) {
    return *options()->trace_pattern || *options()->peaks_path;
}

void guard_mapping(void *start, size_t bytes, void (*lost)(void)) {
    unsigned at = atomic_fetch_add(&count, 1);
    if (at >= GUARDED)
        return;
    guarded[at].start = (uintptr_t)start;
    guarded[at].end = (uintptr_t)start + bytes;
    guarded[at].lost = lost;
    atomic_store_explicit(&guarded[at].complete, true, memory_order_release);
}

/* Maps a page of zeros at the page of an address. Returns false if the kernel refuses. */
static bool put_zeros(uintptr_t address) {
    int saved_errno = errno;
    size_t bytes = (size_t)sysconf(_SC_PAGESIZE);
    void *page =
        (void *)(address & ~(uintptr_t)(bytes - 1)); /* NOLINT(performance-no-int-to-ptr) */
    bool put = mmap(page, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED,
                    -1, 0) != MAP_FAILED;
    errno = saved_errno;
    return put;
}

bool guard_repair(const siginfo_t *info) {
    uintptr_t address = (uintptr_t)info->si_addr;
    if (info->si_signo != SIGBUS || info->si_code != BUS_ADRERR)
        return false;
    for (unsigned i = 0; i < GUARDED; i++) {
        if (!atomic_load_explicit(&guarded[i].complete, memory_order_acquire) ||
            address < guarded[i].start || address >= guarded[i].end || !put_zeros(address))
            continue;
        if (guarded[i].lost)
            guarded[i].lost();
        return true;
    }
    return false;
}
