/*
 * Counts memory, pages and driver calls of a replay, with the pool or with a model. One thread at a
 * time counts, so there is no lock.
 */
#ifndef GPUCACHE_REPLAY_ACCOUNT_H
#define GPUCACHE_REPLAY_ACCOUNT_H

#include "replay/history.h"

#define ACCOUNT_PARTS 10

/*
 * Durations of driver calls on one H200 with driver 580 (docs/measurements.md). The time of a
 * handle does not depend on its length. The time of a segment grows with its size.
 */
enum {
    COST_CREATE_NS = 15000,
    COST_MAP_NS = 40000, /* to map and to set access */
    COST_UNMAP_NS = 30000,
    COST_RELEASE_NS = 22000,
    COST_MALLOC_NS = 24500,   /* of cudaMalloc or cudaFree */
    COST_MALLOC_MIB_NS = 170, /* in addition for each MiB */
};

struct account {
    const struct history *history;
    size_t at; /* index of the current event */
    size_t period;
    uint64_t requested, requested_peak, reserved, reserved_peak;
    uint64_t mapped;                    /* pages mapped, for the first time or again */
    uint64_t mapped_until_last_quarter; /* `mapped` when the last quarter of the events begins */
    uint64_t *mapped_by_period;         /* one for each period of the history */
    uint64_t calls, calls_ns;           /* driver calls, and their estimated time */
    uint64_t barriers, waits, waited_us;
    bool out_of_memory; /* the replay ended at event `at` for lack of memory */
    int error; /* another error that ended the replay: a negative errno; -EUCLEAN: pool_check() */
    /* Sums over the events of each tenth. */
    double requested_sum[ACCOUNT_PARTS], reserved_sum[ACCOUNT_PARTS];
};

void account_start(struct account *account, const struct history *history,
                   uint64_t *mapped_by_period);
void account_begin_event(struct account *account, size_t at);
/** Counts the requested bytes of an event that has succeeded. */
void account_end_event(struct account *account);

/* Count bytes reserved from the driver and returned to it, mapped pages, and driver calls. */
void account_take(struct account *account, uint64_t bytes);
void account_give(struct account *account, uint64_t bytes);
void account_map(struct account *account, uint64_t pages);
void account_call(struct account *account, uint64_t calls, uint64_t each_ns);
/** Counts a cudaMalloc or a cudaFree of so many bytes. */
void account_call_for(struct account *account, uint64_t bytes);

/** Returns the mean idle part of reserved memory in a tenth of the history, from 0 to 1. */
double account_idle(const struct account *account, unsigned part);
/** Returns peak reserved over peak requested, or 0 if nothing was requested. */
double account_ratio(const struct account *account);
/** Returns the pages mapped per period in the last quarter of the history. */
double account_mapped_late(const struct account *account);
/** Returns the last period in which a page was mapped, from 1; 0: none, or no periods. */
size_t account_last_mapped(const struct account *account);

#endif
