/*
 * Reports: where the device memory went.
 *
 * A report is written from snapshots (stats/stats.h) and from what the process knows of itself, by
 * a formatter that allocates nothing and takes no lock: at exit, from a signal handler, in a dying
 * process. It makes no CUDA call. errno stays as it was. options_load() must have run.
 */
#ifndef GPUCACHE_REPORT_REPORT_H
#define GPUCACHE_REPORT_REPORT_H

#include "process/options.h" /* enum report_format */

#include <stdint.h>

/** An allocation that failed in the end. */
struct report_oom {
    int device;
    uint64_t requested; /* bytes asked for */
    uint64_t limit;     /* in force for the device; 0: none */
    uint64_t
        device_free; /* as the driver said last; means something only if device_total is not 0 */
    uint64_t device_total; /* 0: both unknown */
};

/** What cuDriverGetVersion says, once it is known. */
void report_set_driver_version(int version);

/**
 * Writes a report to where GPUCACHE_REPORT says. Nothing if no device was used. A file that cannot
 * be written is warned of once, and its report goes to stderr. The reason is one of the
 * interface's: exit, signal, interval, oom, request, or the name of the deadly signal.
 */
void report_write(const char *reason);

/** Writes a report to a descriptor, even if no device was used. Returns 0 or a negative errno
 * (-EINVAL: no format). */
int report_write_fd(int fd, int format, const char *reason);

/** Writes the report that explains an OOM, and a line on stderr if reports do not go there. Only for the first few per process; the rest
 * are counted only. */
void report_oom(const struct report_oom *oom);

#endif
