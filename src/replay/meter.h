/*
 * Counters of a replay, of the pool or of a model: memory, pages, calls, over the time of a
 * history.
 */
#ifndef GPUCACHE_REPLAY_METER_H
#define GPUCACHE_REPLAY_METER_H

#include "replay/history.h"

#define METER_PARTS 10
#define METER_PAGE ((uint64_t)2 << 20)

/* Durations of driver calls: one H200, driver 580 (docs/measurements.md). Of a handle, whatever
 * its length, and of segments, whose time goes with their size as well. */
enum {
    COST_CREATE_NS = 15000,
    COST_MAP_NS = 40000, /* and set access */
    COST_UNMAP_NS = 30000,
    COST_RELEASE_NS = 22000,
    COST_MALLOC_NS = 24500,   /* or free */
    COST_MALLOC_MIB_NS = 170, /* more for each MiB */
};

struct meter {
    const struct history *history;
    size_t at; /* the event under way */
    size_t period;
    uint64_t requested, requested_peak, reserved, reserved_peak;
    uint64_t mapped; /* pages, at first and anew */
    uint64_t mapped_until_last_quarter;
    uint64_t *mapped_by_period; /* as many as the history has */
    uint64_t calls, calls_ns;   /* of the driver; their time is an estimate */
    uint64_t barriers, waits, waited_us;
    bool out_of_memory; /* at that event */
    int error;          /* what else ended it, a negative errno or the pool's own check */
    /* Sums over the events of each tenth. */
    double requested_sum[METER_PARTS], reserved_sum[METER_PARTS];
};

void meter_start(struct meter *meter, const struct history *history, uint64_t *mapped_by_period);
void meter_begin_event(struct meter *meter, size_t at);
void meter_end_event(struct meter *meter);

void meter_take(struct meter *meter, uint64_t bytes);
void meter_give(struct meter *meter, uint64_t bytes);
void meter_map(struct meter *meter, uint64_t pages);
void meter_call(struct meter *meter, uint64_t calls, uint64_t each_ns);
/** cudaMalloc, or cudaFree. */
void meter_call_for(struct meter *meter, uint64_t bytes);

/** What lay idle of what was reserved in a tenth, on the average; 0 to 1. */
double meter_idle(const struct meter *meter, unsigned part);
double meter_ratio(const struct meter *meter);
/** Pages mapped per period in the last quarter of the history. */
double meter_mapped_late(const struct meter *meter);
/** The last period, from 1, that a page was mapped in; 0: none, or there are no periods. */
size_t meter_last_mapped(const struct meter *meter);

#endif
