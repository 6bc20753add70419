/* Hash tables with linear probing, at most half full (table.h). */
#include "replay/table.h"

#include "replay/memory.h"

#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>

/** Returns a hash of 64 bits, each of which depends on all bits of the key. The seed is the 16
 * random bytes that the kernel gives each process. */
static uint64_t hash_of(uint64_t key) {
    static uint64_t seed[2]; /* the first is odd; 0: not read yet */
    if (seed[0] == 0) {
        memcpy(seed, (const void *)getauxval(AT_RANDOM), sizeof seed);
        seed[0] |= 1;
    }
    unsigned __int128 product = (unsigned __int128)(key ^ seed[1]) * seed[0];
    return (uint64_t)product ^ (uint64_t)(product >> 64);
}

static size_t home_of(const struct table *table, uint64_t key) {
    return (size_t)hash_of(key) & (table->capacity - 1);
}

/** Returns the slot that has the key, or the free slot for it. */
static size_t slot_of(const struct table *table, uint64_t key) {
    size_t at = home_of(table, key);
    while (table->slots[at].value != 0 && table->slots[at].key != key)
        at = (at + 1) & (table->capacity - 1);
    return at;
}

static void enlarge(struct table *table) {
    struct table old = *table;
    table->capacity = old.capacity ? 2 * old.capacity : 64;
    table->slots = checked(calloc(table->capacity, sizeof *table->slots));
    for (size_t i = 0; i < old.capacity; i++)
        if (old.slots[i].value != 0)
            table->slots[slot_of(table, old.slots[i].key)] = old.slots[i];
    free(old.slots);
}

uint64_t table_find(const struct table *table, uint64_t key) {
    return table->count > 0 ? table->slots[slot_of(table, key)].value : 0;
}

void table_set(struct table *table, uint64_t key, uint64_t value) {
    if (2 * (table->count + 1) > table->capacity)
        enlarge(table);
    struct table_slot *slot = &table->slots[slot_of(table, key)];
    table->count += slot->value == 0;
    *slot = (struct table_slot){key, value};
}

void table_remove(struct table *table, uint64_t key) {
    if (table_find(table, key) == 0)
        return;
    size_t at = slot_of(table, key), next = at;
    table->count--;
    /* Moves later entries of the probe sequence up, so that no gap hides them. */
    for (;;) {
        next = (next + 1) & (table->capacity - 1);
        if (table->slots[next].value == 0)
            break;
        size_t home = home_of(table, table->slots[next].key);
        if (((next - home) & (table->capacity - 1)) >= ((next - at) & (table->capacity - 1))) {
            table->slots[at] = table->slots[next];
            at = next;
        }
    }
    table->slots[at].value = 0;
}
