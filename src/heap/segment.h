/*
 * Segments and the ranges they are cut into.
 *
 * A segment is memory of one reservation from the driver, which goes back as a whole: one
 * cuMemAlloc (segments backend) or one VMM handle (vmm backend). A range is a large block, a slab
 * or free memory inside segments. Ranges cover a segment without gaps. With the vmm backend a range
 * may extend over adjacent segments.
 *
 * The pool's lock protects all fields except the atomic ones. Invariant: `used` is the sum of the
 * bytes in the segment that are not free. Descriptors are recycled and never unmapped (host.h). A
 * reader without the lock may see another object's data, and must check what it read.
 */
#ifndef GPUCACHE_HEAP_SEGMENT_H
#define GPUCACHE_HEAP_SEGMENT_H

#include "heap/block.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define ARENA_UNIT ((uint64_t)512) /* every range is a multiple of it */
/*
 * The host page size, and the unit of large blocks' sizes. Segments begin at a host page; large
 * blocks therefore do, too. A DMA-BUF (cuMemGetHandleForAddressRange) must begin at a host page.
 */
#define LARGE_UNIT ((uint64_t)4096)

struct slab;

struct segment {
    uint64_t base, bytes;
    uint64_t used;                   /* bytes that are not free; 0: the segment is idle */
    struct range *first;             /* the range that covers the segment's first byte */
    struct segment *previous, *next; /* vmm backend: in order of addresses */
    /* vmm backend: neighbours in arena.gap_list; meaningful while gap_follows */
    struct segment *previous_in_gap_list, *next_in_gap_list;
    /*
     * Newest epoch in which memory that is free here was freed. When its event has completed, no
     * earlier work uses the free memory.
     */
    uint64_t stamp;
    /* Decay tick of the last free in the segment, or at which it was made (pool/decay.c). */
    uint64_t since;
    bool is_allocation; /* segments backend: the segment is an allocation of the driver */
    bool gap_follows;   /* vmm backend: nothing is mapped between this segment and `next` */
    /*
     * Releasing or moving the segment failed. No thread tries again before the remap lock is
     * released (vmm/remap.c).
     */
    bool refused;
    uint64_t handle; /* vmm backend: the driver's handle */
    /*
     * Another process, a network card or the CPU can reach the memory. The pool reuses it only
     * after the event of its epoch has completed; a barrier on the device does not suffice.
     */
    atomic_bool externally_visible;
};

/*
 * One cache line holds all that a free of a large block reads and writes. No other range shares the
 * line.
 */
struct range {
    /* Large block: its descriptor. Free range or slab: only `address` and the header are used. */
    _Alignas(64) struct block block;
    uint64_t bytes;
    _Atomic uint64_t requested; /* live block: bytes that the program asked for */
    struct segment *segment;    /* the segment in which the range begins */
    /* Live block: its BUFFER_ID with a flag (pool/lookup.c); 0: none was asked for. */
    _Atomic uint64_t name;
    struct slab *slab;             /* the slab, if the range is one */
    struct range *previous, *next; /* adjacent ranges by address; NULL: a gap, or the end */
};

static inline struct range *range_of(struct block *large) {
    return (struct range *)large;
}

/** Returns the bytes of a small or large block, live or cached. */
static inline uint64_t block_bytes(const struct block *block) {
    uint64_t header = block_header(block);
    return header_is_large(header) ? ((const struct range *)block)->bytes : header_bytes(header);
}

static inline enum block_state range_state(const struct range *range) {
    return block_state(&range->block);
}

/**
 * Returns the segment after `segment` that the range extends into, or NULL. The result is stable
 * while the caller holds the range's block or the pool's lock.
 */
static inline struct segment *range_next_segment(const struct range *range,
                                                 const struct segment *segment) {
    return segment->base + segment->bytes < range->block.address + range->bytes ? segment->next
                                                                                : NULL;
}

/** Returns whether any segment of the range is externally visible. */
static inline bool range_is_externally_visible(const struct range *range) {
    bool visible = false;
    for (const struct segment *s = range->segment; s && !visible; s = range_next_segment(range, s))
        visible = atomic_load_explicit(&s->externally_visible, memory_order_relaxed);
    return visible;
}

/**
 * Returns the first range that begins at or after the segment's base, or NULL. The result may begin
 * behind the segment: segment_has() tells. The other ranges of the segment follow by `next`.
 */
static inline struct range *segment_first(const struct segment *segment) {
    struct range *first = segment->first;
    return first->block.address >= segment->base ? first : first->next;
}

/** Returns the range that covers the segment's last byte. It may extend into the next segment. */
static inline struct range *segment_last(const struct segment *segment) {
    struct range *range = segment->first;
    while (range->block.address + range->bytes < segment->base + segment->bytes)
        range = range->next;
    return range;
}

static inline bool segment_has(const struct segment *segment, const struct range *range) {
    return range && range->block.address < segment->base + segment->bytes;
}

/**
 * Returns whether the segment may be released: it is idle, and the event of its stamp has
 * completed. `finished` is the newest epoch whose event has completed.
 */
static inline bool segment_is_releasable(const struct segment *segment, uint64_t finished) {
    return segment->used == 0 && segment->stamp <= finished && !segment->refused;
}

/**
 * Reads address and requested bytes of a live large block without a lock. Returns false if the
 * range is NULL or not live. A caller that does not hold the block must check afterwards that it
 * was not freed in between, for example by arena.changes. The data race is harmless: the check
 * discards what was read of a recycled descriptor.
 */
__attribute__((no_sanitize("thread"))) static inline bool
range_peek(struct range *range, uint64_t *address, uint64_t *requested) {
    if (!range || header_state(*(const volatile uint64_t *)&range->block.header) != BLOCK_LIVE)
        return false;
    atomic_thread_fence(memory_order_acquire);
    *address = *(const volatile uint64_t *)&range->block.address;
    *requested = *(const volatile uint64_t *)&range->requested;
    return true;
}

#endif
