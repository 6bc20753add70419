/*
 * The public C interface (gpucache.h). A function with a device argument works on that device, or
 * on all used devices for -1. Errors are negative errno values. Called with no lock held, by the
 * program and by the thread that executes orders of gpucache ctl (page_helper.c).
 */
#define GPUCACHE_API __attribute__((visibility("default")))
#include "gpucache.h"

#include "base/log.h"
#include "driver/context/context.h"
#include "driver/context/device_pool.h"
#include "driver/limit/driver_pools.h"
#include "driver/observe/snapshot.h"
#include "driver/reuse/pinned.h"
#include "driver/state/device.h"
#include "live/peaks.h"
#include "options/options.h"
#include "pool/pool.h"
#include "process/process.h"
#include "report/derived.h"
#include "report/report.h"
#include "trace/trace.h"

#include <errno.h>
#include <string.h>

/*
 * Calls `action` for a device, or for all used devices if `ordinal` is -1. Returns -EINVAL below
 * -1, -ENODEV if the process has not used the device, else an error of `action` or 0.
 */
static int for_devices(int ordinal, int (*action)(struct device *device, void *argument),
                       void *argument) {
    if (ordinal < -1)
        return -EINVAL;
    int result = ordinal < 0 ? 0 : -ENODEV;
    for (int i = 0; i < stats_device_count(); i++) {
        struct device *device = ordinal < 0 || i == ordinal ? device_used(i) : NULL;
        if (device) {
            int r = action(device, argument);
            result = result == -ENODEV || r != 0 ? r : result;
        }
    }
    return result;
}

/* Adds the statistics of a device to `sum`, a struct gpucache_stats. */
static int add_stats(struct device *device, void *sum) {
    struct gpucache_stats *out = sum;
    struct stats_device in;
    if (!stats_read_counters(device->ordinal, &in))
        return -ENODEV;
#define ADD(field)                                                                                 \
    out->field += in.field.current;                                                                \
    out->field##_peak += in.field.peak;
    ADD(requested)
    ADD(allocated)
    ADD(active)
    ADD(reserved)
#undef ADD
    struct report_derived derived;
    report_derive(&in, &derived);
    out->outside += derived.unpooled.current;
    out->outside_peak += derived.unpooled.peak;
    out->largest_free =
        in.largest_free_bytes > out->largest_free ? in.largest_free_bytes : out->largest_free;
    out->limit += in.limit_bytes;
    out->total += in.total_bytes;
    out->allocations += in.allocations.total;
    out->hits += in.cache_hits;
    out->misses += in.cache_misses;
    out->ooms += in.ooms;
    return 0;
}

int gpucache_get_stats(int device, struct gpucache_stats *stats) {
    if (!stats || stats->size < sizeof(size_t))
        return -EINVAL;
    struct gpucache_stats sum = {.size = sizeof sum};
    int r = for_devices(device, add_stats, &sum);
    if (r == 0) {
        sum.size = stats->size < sizeof sum ? stats->size : sizeof sum;
        memcpy(stats, &sum, sum.size);
    }
    return r;
}

static int reset_peaks_of(struct device *device, void *unused) {
    struct stats_device before;
    (void)unused;
    /* Before the reset, or `gpucache run --max-peak` would not see this peak. */
    if (stats_read_counters(device->ordinal, &before))
        peaks_note(device->ordinal, &before);
    device_reset_peaks(device);
    return 0;
}

int gpucache_reset_peak_stats(int device) {
    return for_devices(device, reset_peaks_of, NULL);
}

static int empty_cache_of(struct device *device, void *unused) {
    (void)unused;
    bool any = false;
    int idle = device_pool_release_idle(device); /* waits a short time for work in progress */
    int host = pinned_release(&any);
    return idle ? idle : host;
}

int gpucache_empty_cache(int device) {
    return for_devices(device, empty_cache_of, NULL);
}

/* Sets the limit of a device, after counting what the driver's own pools hold. */
static int set_limit_of(struct device *device, void *limit) {
    driver_pool_query_all(device);
    device_set_limit(device, limit);
    return 0;
}

static int update_pools_of(struct device *device, void *unused) {
    (void)unused;
    driver_pool_query_all(device);
    return 0;
}

/*
 * Sets the limit of a device, or of all devices if `device` is -1. device_get() registers a device
 * that the process has not used yet, so that it can get a limit. The limit of all devices can be
 * set before cuInit(). Returns -EINVAL below -1, or -ENODEV if the library is not running or there
 * is no such device.
 */
static int set_limit(int device, struct device_limit *limit) {
    if (device < -1)
        return -EINVAL;
    bool ready = process_ready();
    if (process_is_forked() || (device >= 0 && !ready))
        return -ENODEV;
    if (device >= 0) {
        device_get(device);
        return for_devices(device, set_limit_of, limit);
    }
    if (ready)
        for_devices(device, update_pools_of, NULL);
    device_set_limits(limit);
    return 0;
}

int gpucache_set_memory_fraction(int device, double fraction) {
    return fraction > 0 && fraction <= 1
               ? set_limit(device, &(struct device_limit){.fraction = fraction})
               : -EINVAL;
}

int gpucache_set_memory_limit(int device, uint64_t bytes) {
    return set_limit(device, &(struct device_limit){.bytes = bytes});
}

int gpucache_write_report(int fd, int format) {
    if (fd < 0)
        return -EINVAL;
    /* also before cuInit(): a report without devices */
    return process_start() ? report_write_fd(fd, format, "request") : -ENODEV;
}

int gpucache_mark(const char *label) {
    if (!label)
        return -EINVAL;
    if (process_start()) { /* also before cuInit(): a mark may name the begin of a program */
        log_info("mark: %s", label);
        trace_mark(label);
    }
    return 0;
}

const char *gpucache_version(void) {
    return GPUCACHE_VERSION;
}
