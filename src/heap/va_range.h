/*
 * VA ranges: reserved addresses at which the vmm backend maps an arena's segments.
 *
 *      VA range  |<------------- several times the device's memory -------------->|
 *      segments  | segment | segment |   gap    | segment |   gap, to the end
 *
 * Addresses cost nothing, so there are always gaps. The pool grows in a gap, next to a free range,
 * by only the bytes that the request lacks. Memory therefore stays in few large ranges. Idle
 * segments in other places can provide the handles: vmm/remap.c maps them into the gap, or
 * releases them. A remapped segment leaves a stale mapping (arena.h).
 *
 * The functions stale_...() keep an arena's table of stale mappings. Invariants: every segment lies
 * in one VA range; the table is sorted by address, and its entries do not overlap.
 *
 * The pool's lock protects everything. Changes need remap.lock too. Callers: vmm/remap.c and
 * vmm/handles.c; idle.c and debug/check.c only read the table.
 */
#ifndef GPUCACHE_HEAP_VA_RANGE_H
#define GPUCACHE_HEAP_VA_RANGE_H

#include "heap/arena.h"

struct va_range {
    uint64_t base, bytes;
    struct va_range *next; /* in no order */
};

/* A gap, or a part of one, in which an arena can grow for a request. */
struct gap {
    uint64_t base, bytes; /* of the memory to add, a multiple of 2 MiB */
    uint64_t longest;     /* largest value that `bytes` can take here */
    /* Adjacent free ranges that the request needs as well, or NULL. */
    struct range *left, *right;
};

/**
 * Finds the gap where a free range of `bytes` needs the least new memory, the lowest address
 * among equals. Returns false if the VA ranges have no gap that is long enough.
 */
bool va_range_find(const struct arena *arena, uint64_t bytes, struct gap *gap);

/** Changes how much memory is added at the gap, to at most gap->longest bytes. */
void gap_become(struct gap *gap, uint64_t bytes);

/** Adds a VA range. Requires a descriptor in arena.va_range_freelist (host_freelist_prepare()). */
void va_range_add(struct arena *arena, uint64_t base, uint64_t bytes);

/**
 * Removes the first VA range, in which no segment may lie, and stores its base and length. Returns
 * false if there is none.
 */
bool va_range_remove(struct arena *arena, uint64_t *base, uint64_t *bytes);

/** Returns whether the table has no space for another entry. */
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
