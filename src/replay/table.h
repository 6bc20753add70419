/*
 * Hash tables of 64-bit values by a 64-bit key. The value 0 means that a key has no entry.
 *
 * Keys come from files. Each process hashes them with another seed, so nobody can write a file
 * whose keys all have the same hash. One thread uses a table, without a lock.
 */
#ifndef GPUCACHE_REPLAY_TABLE_H
#define GPUCACHE_REPLAY_TABLE_H

#include <stddef.h>
#include <stdint.h>

struct table {
    struct table_slot {
        uint64_t key, value; /* value 0: a free slot */
    } * slots;
    size_t capacity, count;
};

/** Returns the value of a key, or 0. */
uint64_t table_find(const struct table *table, uint64_t key);

/** Sets the value of a key. The value is not 0; the key may be. */
void table_set(struct table *table, uint64_t key, uint64_t value);

/** Removes a key, if the table has it. */
void table_remove(struct table *table, uint64_t key);

#endif
