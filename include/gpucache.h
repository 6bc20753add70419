/**
 * @file gpucache.h
 * Functions that a program can call while it runs under libgpucache.
 *
 * No library has to be linked. The symbols are weak, and NULL when the program runs without the
 * library. This test works in both cases:
 *
 *     if (gpucache_get_stats) { ... }
 *
 * From Python: `ctypes.CDLL(None).gpucache_empty_cache(-1)`.
 *
 * Sizes are bytes. Devices are the ordinals of the CUDA driver in this process. Every function but
 * gpucache_version() returns 0 or a negative errno:
 *
 * - -EINVAL  an argument is invalid: a NULL pointer, a fraction outside (0, 1], an unknown format
 *            or size.
 * - -ENODEV  there is no such device, or this process has not used it yet. The two functions that
 *            set a limit accept a device that the process has not used yet.
 * - -EBUSY   not possible now: the device is busy, memory cannot be given back yet, or too many
 *            threads write reports.
 * - others   gpucache_write_report() returns the error of the write.
 *
 * All functions may be called from any thread. gpucache_get_stats() and gpucache_write_report() may
 * also be called from a signal handler.
 */
#ifndef GPUCACHE_H
#define GPUCACHE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#ifndef GPUCACHE_API
#define GPUCACHE_API __attribute__((weak))
#endif

/**
 * Statistics of a device, or of all devices together. Each pair is the current value, and its peak
 * since the start or the last reset.
 */
struct gpucache_stats {
    /** sizeof(struct gpucache_stats), set by the caller: later versions append fields. */
    size_t size;

    uint64_t requested, requested_peak; /**< asked for by the program and not freed */
    uint64_t allocated, allocated_peak; /**< the blocks that hold it */
    /** Allocated, plus freed memory that earlier work may still use. */
    uint64_t active, active_peak;
    uint64_t reserved, reserved_peak; /**< held from the driver by the pool */
    /** Device memory of the process that the pool does not serve. */
    uint64_t outside, outside_peak;

    uint64_t largest_free; /**< longest free block of the pool */
    uint64_t limit;        /**< in force; 0: none */
    uint64_t total;        /**< memory of the device */
    uint64_t allocations;  /**< allocations served so far */
    uint64_t hits;         /**< of these, without a driver call that takes memory */
    uint64_t misses;       /**< of these, with such a driver call */
    uint64_t ooms;         /**< allocations that failed for lack of memory */
};

/** Fills *stats for a device; -1: for all devices together. */
GPUCACHE_API int gpucache_get_stats(int device, struct gpucache_stats *stats);

/** Sets every peak of a device to its current value; -1: of all devices. */
GPUCACHE_API int gpucache_reset_peak_stats(int device);

/**
 * Gives idle memory of a device back to the driver; -1: of all devices. First waits for submitted
 * work, for at most one second.
 */
GPUCACHE_API int gpucache_empty_cache(int device);

/**
 * Limits the process to a share in (0, 1] of the device's memory; 1 lifts the limit. Takes effect
 * for later allocations. Device -1: all devices, including those that are used later.
 */
GPUCACHE_API int gpucache_set_memory_fraction(int device, double fraction);

/**
 * Limits the process to `bytes` bytes on a device, as gpucache_set_memory_fraction(); 0 lifts the
 * limit.
 */
GPUCACHE_API int gpucache_set_memory_limit(int device, uint64_t bytes);

/** Formats of a report. */
enum { GPUCACHE_REPORT_TEXT = 0, GPUCACHE_REPORT_JSON = 1 };

/** Writes a report, with reason "request", to a file descriptor. */
GPUCACHE_API int gpucache_write_report(int fd, int format);

/** Writes the label to the log and the trace. The trace keeps its first 159 bytes. */
GPUCACHE_API int gpucache_mark(const char *label);

/** "0.2.0"; a constant string: returns the version of the library. */
GPUCACHE_API const char *gpucache_version(void);

#ifdef __cplusplus
}
#endif

#endif
