/*
 * The sorted table of an arena's stale mappings. stale.h says what they are, and has the lock.
 */
#include "heap/stale.h"

#include <stddef.h>
#include <string.h>

/* Returns the index of the first entry that ends after `address`. */
static unsigned first_behind(const struct stale_mappings *stale_mappings, uint64_t address) {
    unsigned low = 0, high = stale_mappings->count;
    while (low < high) {
        unsigned middle = low + (high - low) / 2;
        const struct stale_mapping *stale_mapping = &stale_mappings->at[middle];
        if (stale_mapping->base + stale_mapping->bytes <= address)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

void stale_add(struct stale_mappings *stale_mappings, const struct stale_mapping *stale_mapping) {
    unsigned i = first_behind(stale_mappings, stale_mapping->base);
    memmove(&stale_mappings->at[i + 1], &stale_mappings->at[i],
            (stale_mappings->count - i) * sizeof *stale_mapping);
    stale_mappings->at[i] = *stale_mapping;
    stale_mappings->count++;
}

const struct stale_mapping *stale_behind(const struct stale_mappings *stale_mappings,
                                         uint64_t address) {
    unsigned i = first_behind(stale_mappings, address);
    return i < stale_mappings->count ? &stale_mappings->at[i] : NULL;
}

void stale_remove(struct stale_mappings *stale_mappings, uint64_t base) {
    unsigned i = first_behind(stale_mappings, base);
    if (i < stale_mappings->count && stale_mappings->at[i].base == base) {
        stale_mappings->count--;
        memmove(&stale_mappings->at[i], &stale_mappings->at[i + 1],
                (stale_mappings->count - i) * sizeof stale_mappings->at[0]);
    }
}
