/*
 * Stale mappings: addresses at which a handle is still mapped after it was mapped elsewhere.
 *
 *      VA range  | segment |  stale  |    gap   | segment |  stale  |
 *                          ^ kernels submitted before the remap may still use these addresses
 *
 * An idle segment may be free because of a barrier, while the earlier work still runs. The
 * addresses must stay mapped until that work has completed. The handle can be mapped elsewhere at
 * once: its new user is behind the same barrier. Remapping therefore waits for nothing. Nothing
 * else is mapped at the old addresses before the earlier work has completed.
 *
 * The pool's lock protects the table. Invariant: entries are sorted by address and do not overlap.
 * vmm/handles.c adds entries, and unmaps and removes them when their epoch has completed.
 */
#ifndef GPUCACHE_HEAP_STALE_H
#define GPUCACHE_HEAP_STALE_H

#include "tuning/tuning.h"

#include <stdbool.h>
#include <stdint.h>

struct stale_mapping {
    uint64_t base, bytes;
    uint64_t stamp; /* epoch whose event must complete before the mapping is removed */
};

struct stale_mappings {
    unsigned count;
    struct stale_mapping at[STALE_MOST]; /* sorted by address */
};

static inline bool stale_is_full(const struct stale_mappings *stale_mappings) {
    return stale_mappings->count == STALE_MOST;
}

/** Adds an entry. The caller checks stale_is_full(), and that no entry overlaps. */
void stale_add(struct stale_mappings *stale_mappings, const struct stale_mapping *stale_mapping);

/** Returns the first entry that ends after `address`, or NULL. */
const struct stale_mapping *stale_behind(const struct stale_mappings *stale_mappings,
                                         uint64_t address);

/** Removes the entry that begins at `base`, if there is one. */
void stale_remove(struct stale_mappings *stale_mappings, uint64_t base);

#endif
