/*
 * Limits in the variables of HAMi-core: CUDA_DEVICE_MEMORY_LIMIT for every device, and
 * CUDA_DEVICE_MEMORY_LIMIT_<n> for device n as CUDA numbers the devices of the process. KAI
 * Scheduler sets the first one, HAMi the second one.
 *
 * A value is a number of bytes, or a number with k, m or g in any case (powers of 1024). A value
 * for one device wins over the value for all. An invalid value counts as unset. No lock: only
 * options_load() calls it, once.
 */
#ifndef GPUCACHE_OPTIONS_HAMI_H
#define GPUCACHE_OPTIONS_HAMI_H

#include "options/value.h"

#include <stdint.h>

struct hami_limit {
    uint64_t bytes;   /* 0: none */
    const char *name; /* of the variable that sets `bytes`; a constant, or NULL */
};

/**
 * Reads the limits of all devices from an environment, NULL at its end. Reports each invalid value
 * as an error, and warns of a limit that is too small for any program.
 */
void hami_load(char *const *environment, struct hami_limit limits[VALUE_DEVICES]);

#endif
