/*
 * Maps the tool's file of peaks and raises the values in it. Takes no lock (peaks.h).
 */
#include "live/peaks.h"

#include "base/user.h"
#include "base/write.h"
#include "options/options.h"
#include "process/guard.h"
#include "report/derived.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static _Atomic(struct peaks *) file;
static pid_t owner; /* the process that mapped `file`; a child does not use it */
static atomic_flag reading = ATOMIC_FLAG_INIT;
static struct stats_device fresh; /* used only by the holder of `reading` */

static struct peaks *own_file(void) {
    struct peaks *peaks = atomic_load(&file);
    return peaks && owner == (pid_t)syscall(SYS_getpid) ? peaks : NULL;
}

/* Returns the peak of requested memory plus the peak of unpooled memory, in bytes. */
static uint64_t peaks_of(const struct stats_device *stats) {
    struct report_derived derived;
    report_derive(stats, &derived);
    return stats->requested.peak + derived.unpooled.peak;
}

static struct peaks *map(const char *path) {
    struct stat status;
    struct peaks *peaks = MAP_FAILED;
    int fd = write_open(AT_FDCWD, path, O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0);
    if (fd < 0)
        return NULL;
    if (fstat(fd, &status) == 0 && S_ISREG(status.st_mode) && user_is_own(status.st_uid) &&
        status.st_size >= (off_t)sizeof *peaks)
        peaks = mmap(NULL, sizeof *peaks, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    syscall(SYS_close, fd);
    if (peaks == MAP_FAILED)
        return NULL;
    if (peaks->magic != PEAKS_MAGIC) {
        munmap(peaks, sizeof *peaks);
        return NULL;
    }
    guard_mapping(peaks, sizeof *peaks, NULL);
    return peaks;
}

void peaks_start(void) {
    int saved_errno = errno;
    struct peaks *peaks = *options()->peaks_path ? map(options()->peaks_path) : NULL;
    if (peaks) {
        owner = (pid_t)syscall(SYS_getpid);
        atomic_fetch_add(&peaks->processes, 1);
        atomic_store(&file, peaks);
    }
    errno = saved_errno;
}

void peaks_note(int ordinal, const struct stats_device *stats) {
    struct peaks *peaks = own_file();
    if (!peaks)
        return;
    uint64_t now = peaks_of(stats), before = atomic_load(&peaks->bytes[ordinal]);
    while (before < now && !atomic_compare_exchange_weak(&peaks->bytes[ordinal], &before, now)) {
    }
}

void peaks_end(enum process_end how, int signal) {
    (void)signal;
    if (how == PROCESS_GOES_ON || !own_file() ||
        atomic_flag_test_and_set_explicit(&reading, memory_order_acquire))
        return;
    for (int i = 0; i < stats_device_count() && i < STATS_MAX_DEVICES; i++)
        if (stats_read_counters(i, &fresh))
            peaks_note(i, &fresh);
    atomic_flag_clear_explicit(&reading, memory_order_release);
}
