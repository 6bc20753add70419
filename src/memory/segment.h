/*
 * Segments, each what the backend gives and takes back whole, and the ranges that they are cut into.
 *
 * Changed under the pool's lock. Descriptors are used again and never unmapped (host.h), so whoever looks at one without
 * the lock at worst reads of something else, and has to notice.
 */
#ifndef GPUCACHE_MEMORY_SEGMENT_H
#define GPUCACHE_MEMORY_SEGMENT_H

#include "memory/block.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define ARENA_UNIT ((uint64_t)512)
/* A page of the host: what is handed to a device as a DMA-BUF has to begin with one. Sizes of large blocks, whose
 * segments begin with one, too. */
#define LARGE_UNIT ((uint64_t)4096)

struct slab;

struct segment {
    uint64_t base, bytes;
    uint64_t used;                   /* bytes of it that are not free: 0, and it may go back */
    struct range *first;             /* covers its first byte */
    struct segment *previous, *next; /* in a line by address */
    struct segment *previous_in_gap_list,
        *next_in_gap_list; /* among those with a hole behind them */
    /* When the epoch of this number has finished, so has all work that touched what is free here. */
    uint64_t stamp;
    uint64_t since; /* the tick when something of it was last freed (decay.c) */
    bool is_vmm, gap_follows;
    bool refused;    /* by the driver to be taken back: not tried again in this visit (remap.c) */
    uint64_t handle; /* in a line: the backend's page or pages */
    /* Exported or mapped elsewhere: contents change hands only when old work has finished. */
    atomic_bool externally_visible;
};

/* What a free reads and writes is one cache line, which it shares with no other range. */
struct range {
    _Alignas(64) struct block block; /* a large one, live or cached; else free, or a page */
    uint64_t bytes;
    _Atomic uint64_t requested;    /* of a live one: what the program asked for */
    struct segment *segment;       /* in which it begins */
    _Atomic uint64_t name;         /* of a live one: number and flag (find.c); 0: it has none yet */
    struct slab *slab;             /* of one that small blocks live in */
    struct range *previous, *next; /* neighbours by address, as far as there is memory */
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

/** The next segment that it lies in; NULL: there is none. Of a block that somebody has it does not change. */
static inline struct segment *range_next_segment(const struct range *range,
                                                 const struct segment *segment) {
    return segment->base + segment->bytes < range->block.address + range->bytes ? segment->next
                                                                                : NULL;
}

/** Whether something outside reaches any of it. */
static inline bool range_is_externally_visible(const struct range *range) {
    bool visible = false;
    for (const struct segment *s = range->segment; s && !visible;
         s = range_next_segment(range, s)) {
        visible = atomic_load_explicit(&s->externally_visible, memory_order_relaxed);
    }
    return visible;
}

/** The first range that begins in a segment, and whether one does; NULL does not. Those behind it are its next ones. */
static inline struct range *segment_first(const struct segment *segment) {
    struct range *first = segment->first;
    return first->block.address >= segment->base ? first : first->next;
}

static inline bool segment_has(const struct segment *segment, const struct range *range) {
    return range && range->block.address < segment->base + segment->bytes;
}

/** Whether it is wholly free, and all work that touched it had finished by then. */
static inline bool segment_is_releasable(const struct segment *segment, uint64_t finished) {
    return segment->used == 0 && segment->stamp <= finished && !segment->refused;
}

/** Whether it is wholly free, no longer than that, and nobody knows where its memory is: so that may be elsewhere, behind what it
 * stands behind here. */
static inline bool segment_is_movable(const struct segment *segment, uint64_t most) {
    return segment->used == 0 && segment->bytes <= most && !segment->refused &&
           !atomic_load_explicit(&segment->externally_visible, memory_order_relaxed);
}

/** Whether it begins where its segment does. */
static inline bool range_is_first(const struct range *range) {
    return range->block.address == range->segment->base;
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

#endif
