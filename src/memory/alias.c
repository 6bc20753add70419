#include "memory/alias.h"

#include <stddef.h>
#include <string.h>

/* The index of the first that ends behind `address`. */
static unsigned first_behind(const struct aliases *aliases, uint64_t address) {
    unsigned low = 0, high = aliases->count;
    while (low < high) {
        unsigned middle = low + (high - low) / 2;
        const struct alias *alias = &aliases->at[middle];
        if (alias->base + alias->bytes <= address) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

void aliases_add(struct aliases *aliases, const struct alias *alias) {
    unsigned i = first_behind(aliases, alias->base);
    memmove(&aliases->at[i + 1], &aliases->at[i], (aliases->count - i) * sizeof *alias);
    aliases->at[i] = *alias;
    aliases->count++;
}

const struct alias *aliases_behind(const struct aliases *aliases, uint64_t address) {
    unsigned i = first_behind(aliases, address);
    return i < aliases->count ? &aliases->at[i] : NULL;
}

void aliases_remove(struct aliases *aliases, uint64_t base) {
    unsigned i = first_behind(aliases, base);
    if (i < aliases->count && aliases->at[i].base == base) {
        aliases->count--;
        memmove(&aliases->at[i], &aliases->at[i + 1], (aliases->count - i) * sizeof aliases->at[0]);
    }
}
