/*
 * Computes a snapshot of a device's statistics (stats/stats.h): the sums over all pools of the
 * device and its unpooled memory. Waits for no lock, so a signal handler may call it: pool_read()
 * only tries the pool's lock. device_reset_peaks() waits for locks. Invariant: the metrics of a
 * snapshot are consistent, for example `requested <= allocated <= active <= reserved`.
 */
#include "driver/observe/snapshot.h"

#include "driver/context/device_backend.h"
#include "driver/context/device_pool.h"
#include "driver/observe/block_stacks.h"
#include "driver/state/device.h"
#include "driver/state/stack_recording.h"
#include "driver/table/entries.h"
#include "heap/host.h"
#include "options/options.h"
#include "pool/pool.h"
#include "report/derived.h"
#include "stacks/requester.h"
#include "stacks/stacks.h"

#include <string.h>

static void add_unpooled(struct stats_device *out, const struct counters *counters) {
#define ADD(to, from)                                                                              \
    to.current += counter_get(&from.current);                                                      \
    to.peak += counter_get(&from.peak);                                                            \
    to.total += counter_get(&from.total);                                                          \
    to.freed += counter_get(&from.freed);
#define METRIC(field, json, label) ADD(out->field, counters->field)
#define UNPOOLED(field, json) ADD(out->field, counters->field)
#define COUNTER(field) out->field += counter_get(&counters->field);
#include "stats/fields.def"
#undef ADD
}

static uint64_t larger_of(uint64_t a, uint64_t b) {
    return a > b ? a : b;
}

static uint64_t smaller_of(uint64_t a, uint64_t b) {
    return a < b ? a : b;
}

/*
 * Makes the fields of a metric consistent. Lowers `current` to `bound`, which the true value never
 * exceeds. Other threads change fields and metrics while this thread reads one after another, so
 * the values may contradict each other.
 */
static void make_consistent(struct stats_metric *metric, uint64_t bound) {
    metric->current = smaller_of(metric->current, bound);
    metric->total = larger_of(metric->total, metric->current);
    metric->peak = larger_of(metric->peak, metric->current);
    metric->freed = metric->total - metric->current;
}

/* Makes all metrics consistent, and computes those that are differences of others. */
static void derive(struct stats_device *out) {
#define METRIC(field, json, label) make_consistent(&out->field, UINT64_MAX);
#define UNPOOLED(field, json) make_consistent(&out->field, UINT64_MAX);
#include "stats/fields.def"
    uint64_t reserved = out->reserved.current;
    make_consistent(&out->allocated, reserved);
    make_consistent(&out->requested, out->allocated.current);
    uint64_t idle = reserved - out->allocated.current;
    out->ready_bytes = smaller_of(out->ready_bytes, idle);
    /* The pool's pending bytes include free blocks in thread caches, which the program may never
     * have requested. Pending memory is never more than the program has freed. */
    out->pending_bytes = smaller_of(idle - out->ready_bytes, out->allocated.freed);
    out->ready_bytes = idle - out->pending_bytes;
    out->active.current = out->allocated.current + out->pending_bytes;
    make_consistent(&out->active, reserved);
    /* Bytes become active when they are handed out. Between two updates of the pool a thread cache
     * hands bytes out many times, so the pool knows the peak of active, but not the total. */
    out->active.total = larger_of(out->allocated.total, out->active.current);
    out->active.freed = out->active.total - out->active.current;
    /* The pool's peak includes free blocks in thread caches, too. */
    out->active.peak = smaller_of(out->active.peak, out->active.total);
    out->active.peak = larger_of(out->active.peak, out->allocated.peak);
    out->releasable_bytes = smaller_of(out->releasable_bytes, out->ready_bytes);
    out->non_releasable_bytes = out->ready_bytes - out->releasable_bytes;
    out->cache_misses = smaller_of(out->cache_misses, out->allocations.total);
    out->cache_hits = out->allocations.total - out->cache_misses;
}

/*
 * Returns the name of the reuse rule in effect: the option's value, but "wait" instead of "barrier"
 * if the driver or a pool has no context events. "none": the library is disabled.
 */
static const char *reuse_in_effect(const struct device *device) {
    bool events = HAS(cuCtxRecordEvent) && HAS(cuCtxWaitEvent);
    for (struct device_pool *p = atomic_load(&device->pools); p; p = p->next)
        events = events && p->backend->backend.has_events;
    if (options()->disable)
        return "none";
    return reuse_names[options()->reuse == REUSE_BARRIER && !events ? REUSE_WAIT
                                                                    : options()->reuse];
}

static void read_backend(const struct device *device, struct stats_device *out) {
    const char *reason = atomic_load(&device->backend_reason);
    bool pages = atomic_load(&device->uses_vmm);
    out->backend = options()->disable || !reason ? "none" : pages ? "pages" : "segments";
    out->backend_reason = options()->disable ? options()->disable_reason
                          : reason           ? reason
                                             : "no pool yet";
}

/*
 * Adds up the metrics of all pools of a device. Pools reach their peaks at different times. For
 * requested, allocated and allocations, the peak of the device lies between two bounds:
 *
 *   at least   the highest peak of one pool, or the current sum: the reported value
 *   at most    the sum of all peaks, and for bytes no more than the peak of reserved bytes
 *
 * The difference for requested bytes is added to peak_error_bytes.
 */
static void read_pools(struct device *device, struct stats_device *out) {
    struct stats_metric *const live[] = {&out->requested, &out->allocated, &out->allocations};
    uint64_t highest[3] = {0}, sums[3] = {0};
    for (struct device_pool *p = atomic_load(&device->pools); p; p = p->next) {
        pool_read(p->pool, out);
        for (unsigned i = 0; i < 3; i++) {
            highest[i] = larger_of(highest[i], live[i]->peak - sums[i]);
            sums[i] = live[i]->peak;
        }
    }
    out->reserved.peak = atomic_load(&device->pooled_peak);
    out->active.peak = smaller_of(out->active.peak, out->reserved.peak);
    for (unsigned i = 0; i < 3; i++)
        live[i]->peak = larger_of(highest[i], live[i]->current);
    uint64_t upper_bound = smaller_of(sums[0], out->reserved.peak), reported = out->requested.peak;
    if (sums[0] > reported) {
        out->peaks_exact = false;
        out->peak_error_bytes += upper_bound > reported ? upper_bound - reported : 0;
    }
}

/* --- memory by requester --- */

/* Returns whether row `a` precedes row `b`: more current bytes, or as many and a higher peak. */
static bool is_more(const struct stats_requester *a, const struct stats_requester *b) {
    return a->current != b->current ? a->current > b->current : a->peak > b->peak;
}

/* Inserts a row in order. Returns the current bytes of the row that does not fit any more, or 0. */
static uint64_t add_requester(struct stats_device *out, const struct requester_row *row,
                              const char *name) {
    size_t at = out->requester_count;
    struct stats_requester added = {.current = atomic_load(&row->current),
                                    .peak = atomic_load(&row->peak)};
    strncpy(added.name, name, STATS_NAME - 1);
    for (; at > 0 && is_more(&added, &out->requesters[at - 1]); at--)
        out->requesters[at] = out->requesters[at - 1];
    out->requesters[at] = added;
    if (out->requester_count < STATS_REQUESTERS_NAMED) {
        out->requester_count++;
        return 0;
    }
    return out->requesters[STATS_REQUESTERS_NAMED].current;
}

/* Appends a row for memory of no single requester, unless `bytes` is 0. */
static void add_rest(struct stats_device *out, const char *name, uint64_t bytes) {
    if (bytes > 0) {
        struct stats_requester *row = &out->requesters[out->requester_count++];
        *row = (struct stats_requester){.current = bytes, .peak = STATS_NO_PEAK};
        strncpy(row->name, name, STATS_NAME - 1);
    }
}

/*
 * Lists memory by requester. Requested memory without a requester is small blocks. Unpooled memory
 * without a requester is reserve of the driver's own pools. Other threads change the rows
 * meanwhile. Subtracts an excess from the first rows, so that all rows add up to the metrics.
 */
static __attribute__((noinline)) void read_requesters(const struct device *device,
                                                      struct stats_device *out) {
    struct report_derived derived;
    uint64_t others = 0, attributed = 0;
    const char *name;
    for (unsigned i = 0; (name = requester_name(i)) != NULL; i++)
        if (atomic_load(&device->requesters[i].peak) > 0)
            others += add_requester(out, &device->requesters[i], name);
    add_rest(out, "other libraries", others);
    for (size_t i = 0; i < out->requester_count; i++)
        attributed += out->requesters[i].current;
    report_derive(out, &derived);
    uint64_t all = out->requested.current + derived.unpooled.current;
    for (size_t i = 0; i < out->requester_count && attributed > all; i++) {
        uint64_t excess = smaller_of(attributed - all, out->requesters[i].current);
        out->requesters[i].current -= excess;
        attributed -= excess;
    }
    uint64_t outside = atomic_load(&device->requested_unpooled), rest = all - attributed;
    uint64_t reserve = smaller_of(
        derived.unpooled.current > outside ? derived.unpooled.current - outside : 0, rest);
    add_rest(out, "small blocks, of any library", rest - reserve);
    add_rest(out, "reserve of the driver's pools", reserve);
}

/* Reads all but live sizes and the map. Returns false if the process has not used the device. */
static bool read_counters(int ordinal, struct stats_device *out) {
    struct device *device = device_used(ordinal);
    if (!device)
        return false;
    memset(out, 0, sizeof *out);
    out->ordinal = ordinal;
    memcpy(out->name, device->name, sizeof out->name);
    memcpy(out->uuid, device->uuid, sizeof out->uuid);
    out->total_bytes = device->total;
    out->limit_bytes = atomic_load(&device->limit);
    out->limit_source = out->limit_bytes != 0 ? atomic_load(&device->limit_source) : NULL;
    out->reuse = reuse_in_effect(device);
    read_backend(device, out);
    out->peaks_exact = true;
    read_pools(device, out);
    add_unpooled(out, &device->unpooled);
    derive(out);
    read_requesters(device, out);
    return true;
}

/* Reads everything; `map` NULL: no segment map. Returns as read_counters(). */
static bool read_all(int ordinal, struct stats_device *out, struct segment_map *map) {
    bool known = read_counters(ordinal, out);
    if (map)
        map->grain = map->count = 0;
    for (struct device_pool *p = known ? atomic_load(&device_used(ordinal)->pools) : NULL; p;
         p = p->next)
        if (!p->unused)
            pool_survey(p->pool, out, map);
    if (known)
        block_stacks_read_live(ordinal, out);
    return known;
}

/* Returns the recorded stacks, or NULL if none are recorded. */
static const struct stats_stacks *read_stacks(void) {
    return stack_recording_is_on() ? stacks_view() : NULL;
}

const struct stats_provider snapshot_provider = {
    .device_count = device_used_count,
    .host_bytes = host_bytes,
    .read = read_all,
    .read_counters = read_counters,
    .stacks = read_stacks,
};

void device_reset_peaks(struct device *device) {
    for (struct device_pool *p = atomic_load(&device->pools); p; p = p->next)
        pool_reset_peaks(p->pool);
    atomic_store(&device->pooled_peak, atomic_load(&device->pooled));
    for (unsigned i = 0; i < REQUESTERS; i++)
        requester_reset_peak(&device->requesters[i]);
    lock_acquire(&device->lock);
    counters_reset_peaks(&device->unpooled);
    lock_release(&device->lock);
    block_stacks_reset_peak(device->ordinal);
}
