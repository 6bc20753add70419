/*
 * Reports of the device memory of this process, as text or JSON.
 *
 * A report is made from snapshots of the statistics (stats/stats.h) and from the description of the
 * process. Reports are written at exit, from a signal handler and in a crashing process. Therefore
 * writing one waits for no lock, allocates nothing, makes no CUDA call. Each function keeps errno.
 * options_load() must have run.
 */
#ifndef GPUCACHE_REPORT_REPORT_H
#define GPUCACHE_REPORT_REPORT_H

#include "options/options.h" /* enum report_format */

#include <stdint.h>

/** An allocation that failed for good. */
struct report_oom {
    int device;
    uint64_t requested;    /* bytes */
    uint64_t limit;        /* of the device, in bytes; 0: none */
    uint64_t device_free;  /* free bytes that the driver reported last */
    uint64_t device_total; /* bytes; 0: device_total and device_free are unknown */
};

/** Sets the driver version that reports show, as cuDriverGetVersion() returns it. */
void report_set_driver_version(int version);

/**
 * Writes a report to the destination of GPUCACHE_REPORT, unless no device was used. If the file
 * cannot be written, logs one warning and writes the report to stderr. The reason is exit, signal,
 * interval, oom, request, or the name of the signal that ends the process.
 */
void report_write(const char *reason);

/** Writes a report to a descriptor, even if no device was used. Returns 0, -EINVAL for an unknown
 * format, -EBADF for a negative descriptor, -EBUSY if too many reports are being written, or the
 * negative errno of the write. */
int report_write_fd(int fd, int format, const char *reason);

/**
 * Writes the report that explains an OOM, and logs one line if reports do not go to stderr. Only
 * the first few OOMs of a process are reported.
 */
void report_oom(const struct report_oom *oom);

#endif
