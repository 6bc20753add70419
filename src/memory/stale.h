/*
 * Aliases: where segments were that have moved, and what they are made of is mapped still.
 *
 *      line      | segment |  alias  |   hole   | segment |  alias  |
 *                          ^ kernels that were submitted before may still use these addresses
 *
 * What is idle has been freed, but what stands behind a barrier need not have finished. The addresses have to stay until then.
 * The memory can be mapped elsewhere at once: whoever is given it there is behind the same barrier. So nothing is waited for.
 *
 * Under the pool's lock.
 */
#ifndef GPUCACHE_MEMORY_STALE_H
#define GPUCACHE_MEMORY_STALE_H

#include "memory/tuning.h"

#include <stdbool.h>
#include <stdint.h>

struct stale_mapping {
    uint64_t base, bytes;
    uint64_t stamp; /* when the epoch of this number has finished it can be unmapped */
};

struct stale_mappings {
    unsigned count;
    struct stale_mapping at[STALE_MOST]; /* by address */
};

static inline bool stale_is_full(const struct stale_mappings *stale_mappings) {
    return stale_mappings->count == STALE_MOST;
}

/** There is room for one more, and none lies there. */
void stale_add(struct stale_mappings *stale_mappings, const struct stale_mapping *stale_mapping);

/** The first that ends behind `address`, or NULL. */
const struct stale_mapping *stale_behind(const struct stale_mappings *stale_mappings,
                                         uint64_t address);

/** Forgets the one that begins there. */
void stale_remove(struct stale_mappings *stale_mappings, uint64_t base);

#endif
