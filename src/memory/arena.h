/*
 * The arena: memory from the backend, cut into ranges.
 *
 *      segments  |<- one reserve() of the backend ->|          |<------ another ------>|
 *      ranges    |  live 37.5 MiB | free |   page   |          |  pending 60 MiB | free|
 *
 *      a line    |<-- segment -->|<- segment ->|<-- segment -->|   hole   |<- segment ->|
 *      ranges    |  live 37.5 MiB | free 90 MiB |  pending 60  |          | live | free |
 *                 ^ neighbours are linked; two free ones never touch, they are merged at once
 *
 * Where the backend maps memory at addresses of ours, segments lie side by side in a line (va_range.h), and ranges go on from
 * one into the next. Elsewhere each has its own.
 *
 * Ranges are packed to 4 KiB (LARGE_UNIT). A request gets the smallest free range that holds it, the lowest
 * address among equals (best fit by address), and the rest stays free; but the end of a line, where it grows, only if
 * there is no other. Free ranges stand in one
 * array sorted by (size, address): there are tens to thousands of them, so a binary search and a
 * short memmove beat any tree, and the largest one is the last.
 *
 * No block begins where a segment of its own does, unless it is the whole of it or memory is short. A plugin that
 * was bound past the library may free a block of the program at the driver. The driver knows only where
 * segments begin: there it would take everything else in the segment along, and anywhere else it
 * refuses. So what is free at the start of a segment is cut from its end. In a line the driver knows of no allocation at all.
 *
 * Everything here runs under the pool's lock.
 */
#ifndef GPUCACHE_MEMORY_ARENA_H
#define GPUCACHE_MEMORY_ARENA_H

#include "memory/host.h"
#include "memory/segment.h"
#include "memory/stale.h"
#include "memory/tuning.h"

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

struct arena {
    struct pool *pool;
    bool is_vmm;
    struct va_range *va_ranges;           /* the addresses (va_range.h) */
    struct segment *segments, *last;      /* in a line by address */
    struct segment *gap_list;             /* those with a hole behind them, in no order */
    struct stale_mappings stale_mappings; /* where others were; nothing else lies there */
    struct host_slab range_slab, segment_slab, va_range_slab;
    struct free_range *free;
    size_t free_count, free_capacity, range_count;
    uint64_t free_bytes;
    uint64_t idle_bytes; /* of segments that are wholly free */
    uint64_t reserved_bytes;
    uint64_t segment_count;
    /* Descriptors of ranges, ever: whoever reads one without the lock looks here before and after. */
    _Atomic uint64_t recycled;
};

void arena_start(struct arena *arena, struct pool *pool, bool is_vmm);

/** Makes sure that there are descriptors for so many more segments and for a range cut from them, as far as no
 * other thread takes them. False without host memory. */
bool arena_prepare(struct arena *arena, unsigned count);

/** Adds memory from the backend, which is free: as a range of its own or, in a line, behind the segment `after` (NULL: in
 * front of all), with what is free beside it. 0 or -ENOMEM, -ERANGE (then nothing was added). */
int arena_add(struct arena *arena, uint64_t base, uint64_t bytes, struct segment *after);

/** In a line: the last segment in front of an address, or NULL. */
struct segment *arena_before(const struct arena *arena, uint64_t address);

/** In a line: the free range that ends where `segment` does, or begins there; NULL: it is in use. */
struct range *arena_free_end(const struct segment *segment);
struct range *arena_free_start(const struct segment *segment);

/** Keeps a free range from being handed out, until arena_give(). */
void arena_hold(struct arena *arena, struct range *range);

/*
 * A range of ARENA_SPARED_BYTES is not cut for a request less than a fifth of it while the pool may grow: once a small block
 * sits in it, the next large request needs a segment of its own. On the recorded traces it takes reserved over requested of
 * gpt from 1.9 to about 1.3, leaves resnet, and costs gnn a tenth.
 */
enum arena_placement {
    PLACE_SPARING,  /* not out of a range that is better kept whole, nor */
    PLACE_CUTTING,  /* at the start of a segment, unless it is all of it */
    PLACE_ANYWHERE, /* whatever fits */
};

/**
 * The best free range for `bytes` (a multiple of ARENA_UNIT), cut to size. Its block is BLOCK_CACHED, usable already, of the bin
 * for its size. NULL: nothing fits. Pages need no alignment, as long as all that an arena is asked for is one.
 */
struct range *arena_take(struct arena *arena, uint64_t bytes, enum arena_placement placement);

/** In a line: a wholly free segment longer than VMM_HANDLE, of which a request would be put into a part. Its stamp is at most
 * `finished`. NULL: there is none. */
struct segment *arena_pinned_by(const struct arena *arena, uint64_t bytes, uint64_t finished);

/** Makes a range free and merges it with free neighbours. */
void arena_give(struct arena *arena, struct range *range);

/** What is free beside nothing but blocks that are cached or pending: it goes back with them. */
uint64_t arena_loose_bytes(const struct arena *arena);

/** Takes a wholly free segment out of the arena; what it covered is then unknown. False without host memory, for
 * what is free on both sides of it. */
bool arena_remove(struct arena *arena, struct segment *segment);

static inline uint64_t arena_largest_free(const struct arena *arena) {
    return arena->free_count ? arena->free[arena->free_count - 1].bytes : 0;
}

/** The range that covers `address`, or NULL (also when a small page does). */
struct range *arena_find(uint64_t address);

/** The context is gone, and its memory with it: nobody finds any of it from now on. */
void arena_leave_map(struct arena *arena);

/** After that: forgets everything, gives nothing back. */
void arena_forget(struct arena *arena);

#endif
