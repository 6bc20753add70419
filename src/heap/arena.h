/*
 * The arena: segments of one pool, cut into ranges. Each pool has one arena for large blocks, one
 * for slabs.
 *
 * Arena of large blocks, segments backend: a range lies in one segment.
 *
 *      segments  |<--------- one cuMemAlloc ------->|          |<----- another ------->|
 *      ranges    |  live 37.5 MiB | free | pending  |          |  pending 60 MiB | free|
 *
 * The same with the vmm backend: a range may extend over adjacent segments.
 *
 *      segments  |<-- segment -->|<- segment ->|<-- segment -->|   gap    |<- segment ->|
 *      ranges    |  live 37.5 MiB | free 90 MiB |  pending 60  |          | live | free |
 *
 * Adjacent ranges are linked; two adjacent free ranges are merged at once.
 *
 * A large block is a multiple of 4 KiB (LARGE_UNIT). A request gets the smallest free range that
 * holds it, at the lowest address (best fit). vmm backend: the free range at the end, where the
 * arena grows, is used last.
 *
 * Segments backend: no block begins at the base of a larger segment, unless memory is short. A
 * plugin bound past the library may pass a block to the driver's cuMemFree. At a segment's base the
 * driver would free the whole segment; elsewhere it refuses. A request therefore gets the end of a
 * free range at the base. With the vmm backend, the driver has no allocation there that cuMemFree
 * could free.
 *
 * The pool's lock protects everything. Invariant: ranges cover all segments without overlap, and no
 * two adjacent ranges are free (debug/check.c).
 */
#ifndef GPUCACHE_HEAP_ARENA_H
#define GPUCACHE_HEAP_ARENA_H

#include "heap/host.h"
#include "heap/segment.h"
#include "tuning/tuning.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct pool;
struct va_range;

struct free_range {
    uint64_t bytes;
    struct range *range;
};

/*
 * A stale mapping: addresses at which a handle is still mapped after it was mapped elsewhere.
 *
 *      VA range  | segment |  stale  |    gap   | segment |  stale  |
 *                          ^ kernels submitted before the remap may still use these addresses
 *
 * An idle segment may be free because of a barrier, while the earlier work still runs. The
 * addresses must stay mapped until that work has completed. The handle can be mapped elsewhere at
 * once: its new user is behind the same barrier. Remapping therefore waits for nothing. Nothing
 * else is mapped at the old addresses before the earlier work has completed.
 */
struct stale_mapping {
    uint64_t base, bytes;
    uint64_t stamp; /* epoch whose event must complete before the mapping is removed */
};

/*
 * The stale mappings of an arena. vmm/handles.c adds an entry for a handle in transit. It removes
 * the entry if the handle stays there. Otherwise it unmaps the addresses and removes the entry when
 * the epoch has finished. Only a thread with remap.lock changes the table.
 */
struct stale_mappings {
    unsigned count;
    struct stale_mapping at[STALE_MOST]; /* sorted by address, without overlap (va_range.h) */
};

struct arena {
    struct pool *pool;
    bool in_address_order;                /* see arena_start() */
    struct va_range *va_ranges;           /* reserved addresses, for the vmm backend (va_range.h) */
    struct segment *segments, *last;      /* vmm backend: in order of addresses */
    struct segment *gap_list;             /* segments with a gap behind them, in no order */
    struct stale_mappings stale_mappings; /* where moved handles are still mapped */
    struct host_freelist range_freelist, segment_freelist, va_range_freelist;
    struct free_range *free;          /* all free ranges, sorted (ranges.h) */
    size_t free_count, free_capacity; /* entries of `free`: used, allocated */
    size_t range_count;               /* ranges in any state */
    uint64_t free_bytes;
    uint64_t idle_bytes; /* bytes of idle segments */
    uint64_t reserved_bytes;
    uint64_t segment_count;
    /*
     * Number of cuts, joins and recyclings of ranges. A reader without the lock compares the number
     * before and after a look-up, and retries if it changed (pool/lookup.c).
     */
    _Atomic uint64_t changes;
};

/**
 * Makes an empty arena. `in_address_order`: the pool chooses the addresses, keeps segments in order
 * of addresses, and adjacent segments share free ranges. Otherwise each segment is an allocation of
 * the driver, at an address that the driver chooses.
 */
void arena_start(struct arena *arena, struct pool *pool, bool in_address_order);

/**
 * Prepares descriptors and array entries for `count` more segments and for two cuts, so that later
 * calls cannot fail. Another thread may use them up while the lock is released. Returns false
 * without host memory.
 */
bool arena_prepare(struct arena *arena, unsigned count);

/**
 * Adds a segment of free memory from the backend, and merges it with adjacent free ranges (vmm
 * backend). The segment is linked behind `after`, or first if `after` is NULL. Returns 0; or
 * -ENOMEM without host memory, or -ERANGE for addresses beyond the page map, and then changes
 * nothing.
 */
int arena_add(struct arena *arena, uint64_t base, uint64_t bytes, struct segment *after);

/** Returns the last segment whose base is at most `address`, or NULL. For the vmm backend only. */
struct segment *arena_before(const struct arena *arena, uint64_t address);

/** Marks a free range as used until arena_give(), so that no other request gets its memory. */
void arena_hold(struct arena *arena, struct range *range);

/*
 * Which free ranges a request may use. Each step allows more, and costs more fragmentation. The
 * slow path goes to the next step when the pool cannot or should not grow (docs/policy.md).
 *
 * PLACEMENT_KEEP_LONG keeps long free ranges for large requests: after a small block is placed in
 * such a range, the next large request needs a segment of its own (tests/bench/replay.py, gpt).
 */
enum arena_placement {
    /*
     * Segments backend: excludes what PLACEMENT_CUT_LONG excludes, and a free range of at least
     * ARENA_KEEP_LONG_BYTES for a request of less than 1 / ARENA_KEEP_LONG_FACTOR of the range.
     */
    PLACEMENT_KEEP_LONG,
    /*
     * Allows a part of a long free range. Segments backend: excludes a segment's base, unless the
     * block takes the whole segment.
     */
    PLACEMENT_CUT_LONG,
    PLACEMENT_ANYWHERE, /* any free range that is large enough */
};

/**
 * Takes the best free range for `bytes`, a multiple of ARENA_UNIT, and cuts it to size. Returns it
 * as a BLOCK_CACHED block with stamp 0 in the bin for its size. Returns NULL if nothing fits, or
 * without host memory. Slabs are aligned to 2 MiB because their arena hands out nothing but 2 MiB
 * ranges.
 */
struct range *arena_take(struct arena *arena, uint64_t bytes, enum arena_placement placement);

/**
 * Returns an idle segment longer than VMM_HANDLE that the request would occupy only in part, or
 * NULL. The part would keep the whole segment from being released, so the caller splits the segment
 * first (remap_split()). The segment's stamp is at most `finished`, the newest epoch whose event
 * has completed. For the vmm backend only.
 */
struct segment *arena_to_split(const struct arena *arena, uint64_t bytes, uint64_t finished);

/** Makes a taken or held range free, and merges it with free neighbours. Cannot fail. */
void arena_give(struct arena *arena, struct range *range);

/**
 * Returns the free bytes in segments that have no live block or slab, but cached or pending blocks.
 * The free bytes can go back to the driver when these blocks do.
 */
uint64_t arena_free_bytes_without_live(const struct arena *arena);

/**
 * Takes an idle segment out of the arena and the page map. The caller then releases its memory.
 * Returns false without host memory for the free ranges on both sides of it; nothing changes then.
 */
bool arena_remove(struct arena *arena, struct segment *segment);

static inline uint64_t arena_largest_free(const struct arena *arena) {
    return arena->free_count ? arena->free[arena->free_count - 1].bytes : 0;
}

/**
 * Returns the range that covers `address`; NULL if none does, or if a slab does. Only checks and
 * tests call this function.
 */
struct range *arena_find(uint64_t address);

/**
 * Takes all addresses of the arena out of the page map, when the context and its memory are gone.
 * Every look-up fails from then on. Addresses that belong to another pool by now stay.
 */
void arena_leave_map(struct arena *arena);

/**
 * Recycles all descriptors of segments and ranges, and empties the table of stale mappings, after
 * arena_leave_map(). Gives nothing back to the driver. Does not change the VA ranges.
 */
void arena_forget(struct arena *arena);

#endif
