/*
 * The snapshot of a device's statistics (stats/stats.h): sums over all pools of the device and its
 * unpooled memory. Takes no lock, so a signal handler may call it; device_reset_peaks() takes the
 * lock of the device. Invariant: the metrics of a snapshot agree with each other, as in
 * `requested <= allocated <= active <= reserved`.
 */
#include "driver/observe/snapshot.h"

#include "driver/context/device_backend.h"
#include "driver/context/device_pool.h"
#include "driver/observe/block_stacks.h"
#include "driver/state/device.h"
#include "driver/state/stack_recording.h"
#include "driver/table/entries.h"
#include "heap/host.h"
#include "pool/pool.h"
#include "process/options.h"
#include "report/emitter.h"
#include "stacks/requester.h"
#include "stacks/stacks.h"

#include <string.h>

static void add_outside(struct stats_device *out, const struct counters *counters) {
#define ADD(to, from)                                                                              \
    to.current += counter_get(&from.current);                                                      \
    to.peak += counter_get(&from.peak);                                                            \
    to.total += counter_get(&from.total);                                                          \
    to.freed += counter_get(&from.freed);
#define METRIC(field, json, label) ADD(out->field, counters->field)
#define OUTSIDE(field, json) ADD(out->field, counters->field)
#define COUNTER(field) out->field += counter_get(&counters->field);
#include "stats/fields.def"
#undef ADD
}

static uint64_t most(uint64_t a, uint64_t b) {
    return a > b ? a : b;
}

static uint64_t least(uint64_t a, uint64_t b) {
    return a < b ? a : b;
}

/*
 * Makes the fields of a metric agree, and lowers `current` to `bound`, which it cannot have
 * exceeded at any moment. Fields and metrics are read one after another while other threads change
 * them, so they may contradict each other.
 */
static void agree(struct stats_metric *metric, uint64_t bound) {
    metric->current = least(metric->current, bound);
    metric->total = metric->total > metric->current ? metric->total : metric->current;
    metric->peak = metric->peak > metric->current ? metric->peak : metric->current;
    metric->freed = metric->total - metric->current;
}

/* Makes all metrics agree, and computes those that are differences of others. */
static void derive(struct stats_device *out) {
#define METRIC(field, json, label) agree(&out->field, UINT64_MAX);
#define OUTSIDE(field, json) agree(&out->field, UINT64_MAX);
#include "stats/fields.def"
    uint64_t reserved = out->reserved.current;
    agree(&out->allocated, reserved);
    agree(&out->requested, out->allocated.current);
    uint64_t idle = reserved - out->allocated.current;
    out->ready_bytes = least(out->ready_bytes, idle);
    out->pending_bytes = idle - out->ready_bytes;
    out->active.current = out->allocated.current + out->pending_bytes;
    agree(&out->active, reserved);
    /* Every byte becomes active when it is handed out. Thread caches do that many times between two
     * updates of the pool, so the pool knows the peak, but not the total. */
    out->active.total = most(out->allocated.total, out->active.current);
    out->active.freed = out->active.total - out->active.current;
    out->active.peak = most(out->active.peak, out->allocated.peak);
    out->releasable_bytes = least(out->releasable_bytes, out->ready_bytes);
    out->non_releasable_bytes = out->ready_bytes - out->releasable_bytes;
    out->cache_misses = least(out->cache_misses, out->allocations.total);
    out->cache_hits = out->allocations.total - out->cache_misses;
}

/*
 * Returns the name of the reuse rule in effect. The option "barrier" becomes "wait" if the driver
 * or a pool has no context events. With the library disabled there are no pools: "none".
 */
static const char *reuse_in_force(const struct device *device) {
    bool events = HAS(cuCtxRecordEvent) && HAS(cuCtxWaitEvent);
    for (struct device_pool *p = atomic_load(&device->pools); p; p = p->next) {
        events = events && p->backend->backend.has_events;
    }
    if (options()->disable) {
        return "none";
    }
    return reuse_names[options()->reuse == REUSE_BARRIER && !events ? REUSE_WAIT
                                                                    : options()->reuse];
}

static void read_backend(const struct device *device, struct stats_device *out) {
    const char *reason = atomic_load(&device->backend_reason);
    bool pages = atomic_load(&device->in_pages);
    out->backend = options()->disable || !reason ? "none" : pages ? "pages" : "segments";
    out->backend_reason = options()->disable ? options()->disable_reason
                          : reason           ? reason
                                             : "no pool yet";
}

/*
 * Adds up the metrics of all pools of a device. Pools reach their peaks at different moments. For
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
            highest[i] = most(highest[i], live[i]->peak - sums[i]);
            sums[i] = live[i]->peak;
        }
    }
    out->reserved.peak = atomic_load(&device->pooled_peak);
    out->active.peak = least(out->active.peak, out->reserved.peak);
    for (unsigned i = 0; i < 3; i++) {
        live[i]->peak = most(highest[i], live[i]->current);
    }
    uint64_t highest_possible = least(sums[0], out->reserved.peak), reported = out->requested.peak;
    if (sums[0] > reported) {
        out->peaks_exact = false;
        out->peak_error_bytes += highest_possible > reported ? highest_possible - reported : 0;
    }
}

/* --- memory by requester --- */

/* Returns whether row `a` comes before row `b`: it has more bytes now, or had at its peak. */
static bool is_more(const struct stats_requester *a, const struct stats_requester *b) {
    return a->current != b->current ? a->current > b->current : a->peak > b->peak;
}

/* Adds a row in its place. Returns the current bytes of the row that has no place any more. */
static uint64_t add_requester(struct stats_device *out, const struct requester_row *row,
                              const char *name) {
    size_t at = out->requester_count;
    struct stats_requester added = {.current = atomic_load(&row->current),
                                    .peak = atomic_load(&row->peak)};
    strncpy(added.name, name, STATS_NAME - 1);
    for (; at > 0 && is_more(&added, &out->requesters[at - 1]); at--) {
        out->requesters[at] = out->requesters[at - 1];
    }
    out->requesters[at] = added;
    if (out->requester_count < STATS_REQUESTERS_NAMED) {
        out->requester_count++;
        return 0;
    }
    return out->requesters[STATS_REQUESTERS_NAMED].current;
}

/* Adds a row that is not of one requester. */
static void add_rest(struct stats_device *out, const char *name, uint64_t bytes) {
    if (bytes > 0) {
        struct stats_requester *row = &out->requesters[out->requester_count++];
        *row = (struct stats_requester){.current = bytes, .peak = STATS_NO_PEAK};
        strncpy(row->name, name, STATS_NAME - 1);
    }
}

/*
 * Lists memory by requester. Requested memory that no requester has is small blocks. Unpooled
 * memory that no requester has is reserve of the driver's own pools. Rows change while the metrics
 * are read; an excess is taken off the first rows, so that all rows add up to the metrics.
 */
static __attribute__((noinline)) void read_requesters(const struct device *device,
                                                      struct stats_device *out) {
    struct report_derived derived;
    uint64_t others = 0, attributed = 0;
    const char *name;
    for (unsigned i = 0; (name = requester_name(i)) != NULL; i++) {
        if (atomic_load(&device->requesters[i].peak) > 0) {
            others += add_requester(out, &device->requesters[i], name);
        }
    }
    add_rest(out, "other libraries", others);
    for (size_t i = 0; i < out->requester_count; i++) {
        attributed += out->requesters[i].current;
    }
    report_derive(out, &derived);
    uint64_t all = out->requested.current + derived.outside.current;
    for (size_t i = 0; i < out->requester_count && attributed > all; i++) {
        uint64_t excess = least(attributed - all, out->requesters[i].current);
        out->requesters[i].current -= excess;
        attributed -= excess;
    }
    uint64_t outside = atomic_load(&device->requested_outside), rest = all - attributed;
    uint64_t reserve =
        least(derived.outside.current > outside ? derived.outside.current - outside : 0, rest);
    add_rest(out, "small blocks, of any library", rest - reserve);
    add_rest(out, "reserve of the driver's pools", reserve);
}

static bool read_counters(int ordinal, struct stats_device *out) {
    struct device *device = device_used(ordinal);
    if (!device) {
        return false;
    }
    memset(out, 0, sizeof *out);
    out->ordinal = ordinal;
    memcpy(out->name, device->name, sizeof out->name);
    memcpy(out->uuid, device->uuid, sizeof out->uuid);
    out->total_bytes = device->total;
    out->limit_bytes = atomic_load(&device->limit);
    out->limit_source = out->limit_bytes != 0 ? atomic_load(&device->limit_source) : NULL;
    out->reuse = reuse_in_force(device);
    read_backend(device, out);
    out->peaks_exact = true;
    read_pools(device, out);
    add_outside(out, &device->outside);
    derive(out);
    read_requesters(device, out);
    return true;
}

static bool read_all(int ordinal, struct stats_device *out, struct segment_map *map) {
    bool known = read_counters(ordinal, out);
    if (map) {
        map->grain = map->count = 0;
    }
    for (struct device_pool *p = known ? atomic_load(&device_used(ordinal)->pools) : NULL; p;
         p = p->next) {
        if (!p->idle) {
            pool_survey(p->pool, out, map);
        }
    }
    return known && block_stacks_read_live(ordinal, out);
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
    for (struct device_pool *p = atomic_load(&device->pools); p; p = p->next) {
        pool_reset_peaks(p->pool);
    }
    atomic_store(&device->pooled_peak, atomic_load(&device->pooled));
    for (unsigned i = 0; i < REQUESTERS; i++) {
        requester_reset_peak(&device->requesters[i]);
    }
    lock_acquire(&device->lock);
    counters_reset_peaks(&device->outside);
    lock_release(&device->lock);
    block_stacks_reset_peak(device->ordinal);
}
