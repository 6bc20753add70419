/* Counters of a replay (account.h). Periods have numbers from 1; 0: no period has begun. */
#include "replay/account.h"

#include <string.h>

#define MIB ((uint64_t)1 << 20)

void account_start(struct account *account, const struct history *history,
                   uint64_t *mapped_by_period) {
    *account = (struct account){.history = history, .mapped_by_period = mapped_by_period};
}

void account_begin_event(struct account *account, size_t at) {
    const struct history *history = account->history;
    account->at = at;
    while (account->period < history->period_count && history->periods[account->period] <= at)
        account->period++;
    if (at == history->count - history->count / 4)
        account->mapped_until_last_quarter = account->mapped;
}

void account_end_event(struct account *account) {
    const struct history_event *event = &account->history->events[account->at];
    size_t part = account->at * ACCOUNT_PARTS / account->history->count;
    account->requested += event->frees ? -event->bytes : event->bytes;
    if (account->requested > account->requested_peak)
        account->requested_peak = account->requested;
    account->requested_sum[part] += (double)account->requested;
    account->reserved_sum[part] += (double)account->reserved;
}

void account_take(struct account *account, uint64_t bytes) {
    account->reserved += bytes;
    if (account->reserved > account->reserved_peak)
        account->reserved_peak = account->reserved;
}

void account_give(struct account *account, uint64_t bytes) {
    account->reserved -= bytes;
}

void account_map(struct account *account, uint64_t pages) {
    account->mapped += pages;
    if (account->period > 0)
        account->mapped_by_period[account->period - 1] += pages;
}

void account_call(struct account *account, uint64_t calls, uint64_t each_ns) {
    account->calls += calls;
    account->calls_ns += calls * each_ns;
}

void account_call_for(struct account *account, uint64_t bytes) {
    account_call(account, 1, COST_MALLOC_NS + bytes / MIB * COST_MALLOC_MIB_NS);
}

double account_idle(const struct account *account, unsigned part) {
    double reserved = account->reserved_sum[part];
    return reserved > account->requested_sum[part] ? 1 - account->requested_sum[part] / reserved
                                                   : 0;
}

double account_ratio(const struct account *account) {
    return account->requested_peak > 0
               ? (double)account->reserved_peak / (double)account->requested_peak
               : 0;
}

double account_mapped_late(const struct account *account) {
    size_t periods = account->history->period_count;
    if (periods < 4) {
        double quarter = periods > 0 ? (double)periods / 4 : 1;
        return (double)(account->mapped - account->mapped_until_last_quarter) / quarter;
    }
    size_t first = periods - periods / 4;
    uint64_t mapped = 0;
    for (size_t i = first; i < periods; i++)
        mapped += account->mapped_by_period[i];
    return (double)mapped / (double)(periods - first);
}

size_t account_last_mapped(const struct account *account) {
    size_t last = account->history->period_count;
    while (last > 0 && account->mapped_by_period[last - 1] == 0)
        last--;
    return last;
}
