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
#ifndef GPUCACHE_MEMORY_ALIAS_H
#define GPUCACHE_MEMORY_ALIAS_H

#include "memory/tuning.h"

#include <stdbool.h>
#include <stdint.h>

struct alias {
    uint64_t base, bytes;
    uint64_t stamp; /* when the epoch of this number has finished it can be unmapped */
};

struct aliases {
    unsigned count;
    struct alias at[ALIASES_MOST]; /* by address */
};

static inline bool aliases_are_full(const struct aliases *aliases) {
    return aliases->count == ALIASES_MOST;
}

/** There is room for one more, and none lies there. */
void aliases_add(struct aliases *aliases, const struct alias *alias);

/** The first that ends behind `address`, or NULL. */
const struct alias *aliases_behind(const struct aliases *aliases, uint64_t address);

/** Forgets the one that begins there. */
void aliases_remove(struct aliases *aliases, uint64_t base);

#endif
