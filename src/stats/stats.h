/*
 * The snapshot of one device's statistics, from which every report is written.
 *
 * A snapshot is a plain copy with one writer. Taking it needs no lock, no CUDA call and no
 * allocation, so it works at exit, in a signal handler and in a crashing process. Sizes are in
 * bytes unless a name says otherwise.
 */
#ifndef GPUCACHE_STATS_STATS_H
#define GPUCACHE_STATS_STATS_H

#include "stats/requesters.h"
#include "stats/segment_map.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define STATS_MAX_DEVICES 64
#define STATS_SIZE_CLASSES 22 /* upper bounds 512 B << i; the last class has no bound */
#define STATS_NAME 32         /* bytes of a requester's name */
#define STATS_LIVE_SIZES 16   /* groups of live allocations in a snapshot, largest total first */

/** A quantity over time: current value, highest value, and the sums of increases and decreases. */
struct stats_metric {
    uint64_t current, peak, total, freed;
};

/** Live allocations of one requested size, and of one call stack if stacks are recorded. */
struct stats_live {
    uint64_t bytes; /* requested size of each */
    uint64_t count;
};

/** Memory by requester; or memory without a requester, in the last rows of a snapshot. */
struct stats_requester {
    char name[STATS_NAME]; /* file name of the module, or what the memory is */
    uint64_t current;
    uint64_t peak; /* STATS_NO_PEAK: memory without a requester, whose peak nobody counts */
};
#define STATS_NO_PEAK UINT64_MAX
/* Rows: those with most current bytes, all others together, and two without a requester. */
#define STATS_REQUESTERS_NAMED 6
#define STATS_REQUESTERS (STATS_REQUESTERS_NAMED + 3)

/** Allocations by requested size; class i holds sizes up to 512 << i. */
struct stats_size_class {
    uint64_t live, total;
};

/** Returns the class of a size of at least 1. Size 0 gets the last class. */
static inline unsigned stats_size_class(uint64_t bytes) {
    unsigned size_class = 63u - (unsigned)__builtin_clzll((bytes - 1) >> 8 | 1);
    return size_class < STATS_SIZE_CLASSES ? size_class : STATS_SIZE_CLASSES - 1;
}

/** Everything known of one device. */
struct stats_device {
    int ordinal;
    char name[64];            /* as cuDeviceGetName gives it */
    char uuid[48];            /* "GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx" */
    uint64_t total_bytes;     /* the device's memory */
    uint64_t limit_bytes;     /* 0: no limit */
    const char *limit_source; /* variable or call that set the limit; NULL: no limit */
    const char *backend;      /* "segments", "pages", or "none" while disabled or without a pool */
    const char *backend_reason; /* why the device has this backend, in words */
    const char *reuse; /* rule in force: "barrier", "wait", "sync", or "none" while disabled */
    /*
     * false: several thread caches counted in parallel. The peaks of requested and allocated bytes
     * are then lower bounds, too small by at most peak_error_bytes.
     */
    bool peaks_exact;
    uint64_t peak_error_bytes;
#define METRIC(field, json, label) struct stats_metric field;
#define UNPOOLED(field, json) struct stats_metric field;
#define GAUGE(field) uint64_t field;
#define COUNTER(field) uint64_t field;
#include "stats/fields.def"
    struct stats_size_class size_classes[STATS_SIZE_CLASSES];
    struct stats_live live[STATS_LIVE_SIZES];
    uint32_t live_stacks[STATS_LIVE_SIZES]; /* call stacks of live[] (holders.h); 0: unknown */
    size_t live_groups;                     /* filled entries of live[] */
    /*
     * Requested memory and unpooled device memory by requester, most first; memory without a
     * requester last. The current bytes of all rows add up to both metrics.
     */
    struct stats_requester requesters[STATS_REQUESTERS];
    size_t requester_count;
};

struct stats_stacks;

/**
 * Functions that answer the calls below. A higher layer sets them, because includes go down only.
 */
struct stats_provider {
    int (*device_count)(void);
    uint64_t (*host_bytes)(void);
    bool (*read)(int ordinal, struct stats_device *out, struct segment_map *map);
    bool (*read_counters)(int ordinal, struct stats_device *out);
    const struct stats_stacks *(*stacks)(void);
};

/**
 * Sets the provider, once, at the start of the process. Before that the process has no device and
 * no stacks.
 */
void stats_set_provider(const struct stats_provider *provider);

/**
 * Returns the highest ordinal of a device that the process has used, plus one; 0 before CUDA is
 * used.
 */
int stats_device_count(void);

/**
 * Returns the bytes of host memory that the library has mapped for its descriptors, for all devices
 * together. Takes no lock.
 */
uint64_t stats_host_bytes(void);

/**
 * Fills *out for a device, and *map unless it is NULL. Returns false if the process has not used
 * that device. Takes no lock; safe in a signal handler. Takes time in proportion to the number of
 * blocks.
 */
bool stats_read(int ordinal, struct stats_device *out, struct segment_map *map);

/**
 * Fills *out as stats_read() does, except live[], in a time that does not depend on the number of
 * blocks.
 */
bool stats_read_counters(int ordinal, struct stats_device *out);

#endif
