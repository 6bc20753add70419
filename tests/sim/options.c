/*
 * The environment of the simulated driver: one table, read at once.
 *
 * An invalid value is ignored. sim.h documents the variables.
 */
#include "driver.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint64_t number(const char *name, uint64_t otherwise) {
    const char *text = getenv(name);

    if (!text || !*text)
        return otherwise;
    char *end;
    uint64_t value = strtoull(text, &end, 0);
    if (end == text)
        return otherwise;
    switch (*end) {
    case 'K':
    case 'k':
        return value << 10;
    case 'M':
    case 'm':
        return value << 20;
    case 'G':
    case 'g':
        return value << 30;
    case 'T':
    case 't':
        return value << 40;
    default:
        return value;
    }
}

static void text(const char *name, char *value, size_t size) {
    const char *found = getenv(name);

    snprintf(value, size, "%s", found ? found : "");
}

void options_read(struct options *options) {
    uint64_t devices = number("GPUCACHE_SIM_DEVICES", 1);

    options->devices = (int)(devices < MAX_DEVICES ? devices : MAX_DEVICES);
    options->memory = round_up(number("GPUCACHE_SIM_MEMORY", (uint64_t)16 << 30), GRANULE);
    options->hard_limit = number("GPUCACHE_SIM_HARD_LIMIT", 0);
    options->driver_version = (int)number("GPUCACHE_SIM_DRIVER_VERSION", SIM_MAX_VERSION);
    if (options->driver_version / 1000 > SIM_MAX_VERSION / 1000)
        options->driver_version = SIM_MAX_VERSION;
    options->seed = number("GPUCACHE_SIM_SEED", 1);
    options->eager = (unsigned)number("GPUCACHE_SIM_EAGER", 50);
    options->peer = number("GPUCACHE_SIM_PEER", 1) != 0;
    options->vmm = number("GPUCACHE_SIM_VMM", 1) != 0;
    options->pools = number("GPUCACHE_SIM_POOLS", 1) != 0;
    options->idle_ms = (unsigned)number("GPUCACHE_SIM_IDLE_MS", 100);
    options->hang_ms = (unsigned)number("GPUCACHE_SIM_HANG_MS", 20000);
    options->switching = (unsigned)number("GPUCACHE_SIM_SWITCH", 0);
    options->switch_us = (unsigned)number("GPUCACHE_SIM_SWITCH_US", 200);
    options->context_bytes = number("GPUCACHE_SIM_CONTEXT_BYTES", 0);
    options->module_bytes = number("GPUCACHE_SIM_MODULE_BYTES", 0);
    options->local_bytes = number("GPUCACHE_SIM_LOCAL_BYTES", 0);
    options->events_go = number("GPUCACHE_SIM_EVENTS_GO", 0) != 0;
    options->misalign = number("GPUCACHE_SIM_MISALIGN", 0) / 512 * 512 % GRANULE;
    text("GPUCACHE_SIM_COUNTS", options->counts, sizeof(options->counts));
    text("GPUCACHE_SIM_FAIL", options->fail, sizeof(options->fail));
    text("GPUCACHE_SIM_SHARED", options->shared, sizeof(options->shared));
}
