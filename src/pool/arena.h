/*
 * The arena: segments of device memory taken from the backend, cut into ranges.
 *
 *      segment   |<----------------------- one reserve() of the backend ----------------------->|
 *      ranges    |   live 37.5 MiB   |  free 2.1 MiB  |  page  |      pending 60 MiB      | free |
 *                 ^ neighbours are linked; two free ones never touch, they are merged at once
 *
 * Ranges are packed to 512 bytes. A request gets the smallest free range that holds it, the lowest
 * address among equals (best fit by address), and the rest stays free. Free ranges stand in one
 * array sorted by (size, address): there are tens to thousands of them, so a binary search and a
 * short memmove beat any tree, and the largest one is the last.
 *
 * No block begins where a segment does, unless it is the whole of it or memory is short. A plugin that
 * was bound past the library may free a block of the program at the driver. The driver knows only where
 * segments begin: there it would take everything else in the segment along, and anywhere else it
 * refuses. So what is free at the start of a segment is cut from its end.
 *
 * Everything here runs under the pool's lock.
 */
#ifndef GPUCACHE_POOL_ARENA_H
#define GPUCACHE_POOL_ARENA_H

#include "pool/block.h"
#include "pool/host.h"
#include "pool/tuning.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define ARENA_UNIT ((uint64_t)512)
/* A page of the host: what is handed to a device as a DMA-BUF has to begin with one. Sizes of large blocks, whose
 * segments begin with one, too. */
#define LARGE_UNIT ((uint64_t)4096)

struct pool;
struct page;

struct segment {
    uint64_t base, bytes;
    struct range *first;
    struct segment *previous, *next;
    uint64_t
        stamp; /* when the epoch of this number has finished, so has all work that touched what is
                       free here */
    uint64_t since;                   /* the tick when something of it was last freed (decay.c) */
    bool is_window;                   /* of a layout (layout.h), which no arena knows */
    atomic_bool reached_from_outside; /* exported or mapped elsewhere: contents change hands only
                                         when old work has finished */
};

/* What a free reads and writes is one cache line, which it shares with no other range. */
struct range {
    _Alignas(64) struct block block; /* a large one, live or cached; else free, or a page */
    uint64_t bytes;
    _Atomic uint64_t requested; /* of a live one: what the program asked for */
    struct segment *segment;
    _Atomic uint64_t id; /* of a live one: CU_POINTER_ATTRIBUTE_BUFFER_ID, 0 until somebody asks */
    struct page *page;   /* of one that small blocks live in */
    struct range *previous, *next; /* neighbours by address, within the segment */
};

static inline struct range *range_of(struct block *large) {
    return (struct range *)large;
}

/** Of any block, live or cached. */
static inline uint64_t block_bytes(const struct block *block) {
    uint64_t header = block_header(block);
    return header_is_large(header) ? ((const struct range *)block)->bytes : header_bytes(header);
}

static inline enum block_state range_state(const struct range *range) {
    return block_state(&range->block);
}

/** Whether it begins where its segment does. */
static inline bool range_is_first(const struct range *range) {
    return range->block.address == range->segment->base;
}

struct free_range {
    uint64_t bytes;
    struct range *range;
};

struct arena {
    struct pool *pool;
    struct segment *segments;
    struct host_slab range_slab, segment_slab;
    struct free_range *free;
    size_t free_count, free_room, range_count;
    uint64_t free_bytes;
    uint64_t idle_bytes; /* of segments that are wholly free */
    uint64_t reserved_bytes;
    uint64_t segment_count;
    _Atomic uint64_t
        recycled; /* descriptors of ranges: whoever reads one without the lock looks here
                                  before and after */
};

void arena_start(struct arena *arena, struct pool *pool);

/** Makes sure that there are descriptors for one more segment and for a range cut from it, as far as no
 * other thread takes them. False without host memory. */
bool arena_prepare(struct arena *arena);

/** Adds memory from the backend as one free range. 0 or -ENOMEM, -ERANGE (then nothing was added).
 */
int arena_add(struct arena *arena, uint64_t base, uint64_t bytes);

/*
 * A range of ARENA_SPARED_BYTES is not cut for a request less than a fifth of it while the pool may grow: once a small block
 * sits in it, the next large request needs a segment of its own. On the recorded traces it takes reserved over requested of
 * gpt from 1.9 to about 1.3, leaves resnet, and costs gnn a tenth.
 */
enum arena_care {
    ARENA_SPARING, /* not out of a range that is better kept whole, nor */
    ARENA_CUTTING, /* at the start of a segment, unless it is all of it */
    ARENA_ALL,     /* whatever fits */
};

/**
 * The best free range for `bytes` (a multiple of 512), cut to size, at a multiple of `alignment`
 * (512 or 2 MiB; the latter for pages, which keep the first unit of a segment back themselves). Its
 * block is BLOCK_CACHED, usable already, of the bin for its size. NULL: nothing fits.
 */
struct range *arena_take(struct arena *arena, uint64_t bytes, uint64_t alignment,
                         enum arena_care care);

/** Makes a range free and merges it with free neighbours. */
void arena_give(struct arena *arena, struct range *range);

/** What is free beside nothing but blocks that are cached or pending: it goes back with them. */
uint64_t arena_loose_bytes(const struct arena *arena);

/** A segment that is wholly free and whose stamp is at most `finished`, the smallest one of at least
 * `bytes`, else the largest; NULL if there is none. */
struct segment *arena_idle_segment(struct arena *arena, uint64_t bytes, uint64_t finished);

/** One that has been wholly free for all of the decay time at this tick, and whose stamp is at most `finished`; NULL:
 * there is none. *waits: there is, but for its stamp. */
struct segment *arena_aged_segment(const struct arena *arena, uint64_t tick, uint64_t finished,
                                   bool *waits);

/** The earliest stamp later than `finished` of a segment that is wholly free; UINT64_MAX: none has one. */
uint64_t arena_idle_stamp(const struct arena *arena, uint64_t finished);

/** Takes a wholly free segment out of the arena; what it covered is then unknown. */
void arena_remove(struct arena *arena, struct segment *segment);

static inline uint64_t arena_largest_free(const struct arena *arena) {
    return arena->free_count ? arena->free[arena->free_count - 1].bytes : 0;
}

/** What a live block says of itself, without a lock: to be looked at again if it may have been freed
 * meanwhile. False: there is none, or it is not live. No data race that matters: what is read of a
 * descriptor in other use is not used. */
__attribute__((no_sanitize("thread"))) static inline bool
range_peek(struct range *range, uint64_t *address, uint64_t *requested) {
    if (!range || header_state(*(const volatile uint64_t *)&range->block.header) != BLOCK_LIVE) {
        return false;
    }
    atomic_thread_fence(memory_order_acquire);
    *address = *(const volatile uint64_t *)&range->block.address;
    *requested = *(const volatile uint64_t *)&range->requested;
    return true;
}

/** The range that covers `address`, or NULL (also when a small page does). */
struct range *arena_find(uint64_t address);

/** The context is gone, and its memory with it: nobody finds any of it from now on. */
void arena_leave_map(struct arena *arena);

/** After that: forgets everything, gives nothing back. */
void arena_forget(struct arena *arena);

#endif
