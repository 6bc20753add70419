/* Counters of a replay (meter.h). Periods have numbers from 1; 0: no period has begun. */
#include "replay/meter.h"

#include <string.h>

#define MIB ((uint64_t)1 << 20)

void meter_start(struct meter *meter, const struct history *history, uint64_t *mapped_by_period) {
    *meter = (struct meter){.history = history, .mapped_by_period = mapped_by_period};
}

void meter_begin_event(struct meter *meter, size_t at) {
    const struct history *history = meter->history;
    meter->at = at;
    while (meter->period < history->period_count && history->periods[meter->period] <= at)
        meter->period++;
    if (at == history->count - history->count / 4)
        meter->mapped_until_last_quarter = meter->mapped;
}

void meter_end_event(struct meter *meter) {
    size_t part = meter->at * METER_PARTS / meter->history->count;
    if (meter->requested > meter->requested_peak)
        meter->requested_peak = meter->requested;
    meter->requested_sum[part] += (double)meter->requested;
    meter->reserved_sum[part] += (double)meter->reserved;
}

void meter_take(struct meter *meter, uint64_t bytes) {
    meter->reserved += bytes;
    if (meter->reserved > meter->reserved_peak)
        meter->reserved_peak = meter->reserved;
}

void meter_give(struct meter *meter, uint64_t bytes) {
    meter->reserved -= bytes;
}

void meter_map(struct meter *meter, uint64_t pages) {
    meter->mapped += pages;
    if (meter->period > 0)
        meter->mapped_by_period[meter->period - 1] += pages;
}

void meter_call(struct meter *meter, uint64_t calls, uint64_t each_ns) {
    meter->calls += calls;
    meter->calls_ns += calls * each_ns;
}

void meter_call_for(struct meter *meter, uint64_t bytes) {
    meter_call(meter, 1, COST_MALLOC_NS + bytes / MIB * COST_MALLOC_MIB_NS);
}

double meter_idle(const struct meter *meter, unsigned part) {
    double reserved = meter->reserved_sum[part];
    return reserved > meter->requested_sum[part] ? 1 - meter->requested_sum[part] / reserved : 0;
}

double meter_ratio(const struct meter *meter) {
    return meter->requested_peak > 0 ? (double)meter->reserved_peak / (double)meter->requested_peak
                                     : 0;
}

double meter_mapped_late(const struct meter *meter) {
    size_t periods = meter->history->period_count;
    if (periods < 4) {
        double quarter = periods > 0 ? (double)periods / 4 : 1;
        return (double)(meter->mapped - meter->mapped_until_last_quarter) / quarter;
    }
    size_t first = periods - periods / 4;
    uint64_t mapped = 0;
    for (size_t i = first; i < periods; i++)
        mapped += meter->mapped_by_period[i];
    return (double)mapped / (double)(periods - first);
}

size_t meter_last_mapped(const struct meter *meter) {
    size_t last = meter->history->period_count;
    while (last > 0 && meter->mapped_by_period[last - 1] == 0)
        last--;
    return last;
}
