/**
 * @file gpucache.h
 * What a program may ask of libgpucache while it runs under it.
 *
 * Nothing has to be linked: the symbols are weak, and all of them are NULL when the program runs without the library, so
 *
 *     if (gpucache_get_stats) { ... }
 *
 * works in both cases. From Python: `ctypes.CDLL(None).gpucache_empty_cache(-1)`.
 *
 * Sizes are bytes. Devices are the ordinals of the CUDA driver in this process. Every function returns 0 or a negative errno:
 *
 * - -EINVAL  an argument makes no sense (a NULL pointer, a fraction outside (0, 1], an unknown format or size)
 * - -ENODEV  there is no such device, or this process has not used it yet
 * - -EBUSY   not now: the device is busy, or memory cannot be given back yet
 *
 * All of them may be called from any thread; gpucache_get_stats() and gpucache_write_report() also from a signal handler.
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

/** The books of a device, or of all devices together. Current values and highest values since the start or the last reset. */
struct gpucache_stats {
    size_t
        size; /**< sizeof(struct gpucache_stats), set by the caller: later versions append fields */

    uint64_t requested, requested_peak; /**< asked for and not freed */
    uint64_t allocated, allocated_peak; /**< the blocks that hold it */
    uint64_t active, active_peak; /**< allocated, and freed but not yet reusable without ordering */
    uint64_t reserved, reserved_peak; /**< held from the driver by the pool */
    uint64_t outside, outside_peak;   /**< device memory the program took past the pool */

    uint64_t largest_free; /**< longest free block of the pool */
    uint64_t limit;        /**< in force; 0: none */
    uint64_t total;        /**< the device's memory */
    uint64_t allocations;  /**< served so far */
    uint64_t hits;         /**< of these, without a driver call that takes memory */
    uint64_t misses;       /**< of these, with one */
    uint64_t ooms;         /**< allocations that failed in the end */
};

/** Fills *stats for a device, or for all of them with device -1. */
GPUCACHE_API int gpucache_get_stats(int device, struct gpucache_stats *stats);

/** Sets every peak to the current value; device -1: on all devices. */
GPUCACHE_API int gpucache_reset_peak_stats(int device);

/** Gives idle memory back to the driver, after waiting up to a second for work in flight; device -1: on all devices. */
GPUCACHE_API int gpucache_empty_cache(int device);

/** Limits the process to a share in (0, 1] of the device's memory; 1 lifts the limit. Takes effect for later allocations. Device -1:
 * on all devices, those as well that are used later. */
GPUCACHE_API int gpucache_set_memory_fraction(int device, double fraction);

/** The same in bytes; 0 lifts the limit. */
GPUCACHE_API int gpucache_set_memory_limit(int device, uint64_t bytes);

/** Formats of a report. */
enum { GPUCACHE_REPORT_TEXT = 0, GPUCACHE_REPORT_JSON = 1 };

/** Writes a report, reason "request", to a file descriptor. */
GPUCACHE_API int gpucache_write_report(int fd, int format);

/** Names this moment for the log and the trace: the first 159 bytes of the text. */
GPUCACHE_API int gpucache_mark(const char *label);

/** "0.2.0"; a constant. */
GPUCACHE_API const char *gpucache_version(void);

#ifdef __cplusplus
}
#endif

#endif
