/*
 * Passes calls of stats.h and holders.h on to the provider: functions of driver/observe. Without a
 * provider there is no device and there are no stacks. Takes no lock; safe in a signal handler.
 */
#include "stats/holders.h"
#include "stats/stats.h"

#include <stdatomic.h>

static _Atomic(const struct stats_provider *) provider;

void stats_set_provider(const struct stats_provider *functions) {
    atomic_store(&provider, functions);
}

int stats_device_count(void) {
    const struct stats_provider *functions = atomic_load(&provider);
    return functions ? functions->device_count() : 0;
}

uint64_t stats_host_bytes(void) {
    const struct stats_provider *functions = atomic_load(&provider);
    return functions ? functions->host_bytes() : 0;
}

bool stats_read(int ordinal, struct stats_device *out, struct segment_map *map) {
    const struct stats_provider *functions = atomic_load(&provider);
    return functions && functions->read(ordinal, out, map);
}

bool stats_read_counters(int ordinal, struct stats_device *out) {
    const struct stats_provider *functions = atomic_load(&provider);
    return functions && functions->read_counters(ordinal, out);
}

const struct stats_stacks *stats_stacks(void) {
    const struct stats_provider *functions = atomic_load(&provider);
    return functions ? functions->stacks() : NULL;
}
