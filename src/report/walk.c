/*
 * Calls an emitter for each row of fields.def: metrics in bytes, gauges, unpooled memory, metrics
 * that are counts, counters. The library writes its own reports with these functions. The tool
 * writes the reports of live pages and files.
 */
#include "report/emitter.h"

#include <string.h>

/* ---- derived values ---- */

/** Adds a kind of unpooled memory to the sum. Its peak is exact if only one kind was ever used. */
static void add_unpooled(struct report_derived *derived, const struct stats_metric *metric) {
    struct stats_metric *sum = &derived->unpooled;
    derived->unpooled_peak_exact &= sum->peak == 0 || metric->peak == 0;
    sum->current += metric->current;
    sum->peak += metric->peak;
    sum->total += metric->total;
    sum->freed += metric->freed;
}

void report_derive(const struct stats_device *device, struct report_derived *derived) {
    memset(derived, 0, sizeof *derived);
    derived->unpooled_peak_exact = true;
#define METRIC(field, json, label)
#define UNPOOLED(field, json) add_unpooled(derived, &device->field);
#define ELSEWHERE(field, json)
#define GAUGE(field)
#define COUNTER(field)
#include "stats/fields.def"
    derived->idle = device->pending_bytes + device->ready_bytes;
    derived->largest_free = device->largest_free_bytes;
    derived->calls_avoided = minus_or_zero(device->allocations.total + device->allocations.freed,
                                           device->driver_allocs + device->driver_frees);
    if (device->allocated.current != 0)
        derived->internal_fragmentation =
            (double)minus_or_zero(device->allocated.current, device->requested.current) /
            (double)device->allocated.current;
    /* Excludes pending memory: it joins a free block only after the earlier work has ended. */
    if (device->ready_bytes != 0)
        derived->external_fragmentation =
            (double)minus_or_zero(device->ready_bytes, derived->largest_free) /
            (double)device->ready_bytes;
    derived->peak_ratio = device->requested.peak == 0
                              ? 1.0
                              : (double)device->reserved.peak / (double)device->requested.peak;
}

/* ---- the walk ---- */

static bool counts_bytes(const char *name) {
    size_t length = strlen(name), suffix = strlen("_bytes");
    return length > suffix && strcmp(name + length - suffix, "_bytes") == 0;
}

/** Returns the accuracy of a metric's peak. Thread caches change requested and allocated bytes
 * without the pool's lock, so these peaks may be lower bounds. */
static enum peak peak_of(const struct stats_device *device, const struct stats_metric *metric) {
    bool cached = metric == &device->requested || metric == &device->allocated;
    return cached && !device->peaks_exact ? PEAK_AT_LEAST : PEAK_EXACT;
}

/** Writes the metrics in bytes, or the metrics that are counts. */
static void walk_metrics(struct emitter *emitter, bool bytes) {
    const struct stats_device *device = emitter->device;
#define METRIC(field, json, label)                                                                 \
    if (counts_bytes(json) == bytes)                                                               \
        emitter->kind->metric(emitter, json, label, bytes, &device->field,                         \
                              peak_of(device, &device->field));
#define UNPOOLED(field, json)
#define GAUGE(field)
#define COUNTER(field)
#include "stats/fields.def"
}

static void walk_unpooled(struct emitter *emitter) {
    const struct stats_device *device = emitter->device;
    emitter->kind->unpooled_begin(emitter);
#define METRIC(field, json, label)
#define UNPOOLED(field, json)                                                                      \
    emitter->kind->metric(emitter, json, NULL, true, &device->field, PEAK_EXACT);
#define GAUGE(field)
#define COUNTER(field)
#include "stats/fields.def"
    emitter->kind->unpooled_end(emitter);
}

static void walk_gauges(struct emitter *emitter) {
#define METRIC(field, json, label)
#define UNPOOLED(field, json)
#define GAUGE(field) emitter->kind->gauge(emitter, #field, emitter->device->field);
#define COUNTER(field)
#include "stats/fields.def"
}

static void walk_counters(struct emitter *emitter) {
#define METRIC(field, json, label)
#define UNPOOLED(field, json)
#define GAUGE(field)
#define COUNTER(field) emitter->kind->counter(emitter, #field, emitter->device->field);
#include "stats/fields.def"
}

void walk_device(struct emitter *emitter, const struct stats_device *device,
                 const struct segment_map *map) {
    emitter->device = device;
    emitter->map = map;
    report_derive(device, &emitter->derived);
    emitter->kind->device_begin(emitter);
    walk_metrics(emitter, true);
    walk_gauges(emitter);
    walk_unpooled(emitter);
    walk_metrics(emitter, false);
    walk_counters(emitter);
    emitter->kind->device_end(emitter);
    emitter->devices++;
}

void walk_begin(struct emitter *emitter, enum report_format format, struct print *out,
                const struct report_head *head) {
    memset(emitter, 0, sizeof *emitter);
    emitter->kind = format == REPORT_JSON ? &json_emitter : &text_emitter;
    emitter->out = out;
    emitter->head = head;
    emitter->json = json_put_to(out);
    emitter->kind->begin(emitter);
}

void walk_end(struct emitter *emitter) {
    emitter->kind->end(emitter);
}
