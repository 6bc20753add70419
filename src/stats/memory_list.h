/*
 * The memory of one device as a list: segments, and the live blocks in them. Memory snapshots are
 * written from it (report/memory_snapshot.h).
 *
 * The caller owns both arrays and the list, so there is no lock. The counts include items that did
 * not fit: a caller that finds a count above its capacity makes the array larger and fills the list
 * again.
 */
#ifndef GPUCACHE_STATS_MEMORY_LIST_H
#define GPUCACHE_STATS_MEMORY_LIST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/** A live block. Both structs begin with the address: base/sort.h sorts them by it. */
struct memory_block {
    uint64_t address, bytes, requested;
    uint32_t stack; /* number of the call stack that allocated it; 0: unknown */
};

struct memory_segment {
    uint64_t address, bytes;
    uint32_t stack; /* of the allocation that made the pool grow; 0: unknown */
    bool pages;     /* of the vmm backend: adjacent ones are shown as one segment */
};

struct memory_list {
    struct memory_block *blocks;
    struct memory_segment *segments;
    size_t block_count, block_capacity;
    size_t segment_count, segment_capacity;
};

static inline void memory_list_add_block(struct memory_list *to, struct memory_block block) {
    if (to->block_count < to->block_capacity)
        to->blocks[to->block_count] = block;
    to->block_count++;
}

static inline void memory_list_add_segment(struct memory_list *to, struct memory_segment segment) {
    if (to->segment_count < to->segment_capacity)
        to->segments[to->segment_count] = segment;
    to->segment_count++;
}

/** Returns whether everything that was added is in the arrays. */
static inline bool memory_list_is_complete(const struct memory_list *list) {
    return list->block_count <= list->block_capacity &&
           list->segment_count <= list->segment_capacity;
}

#endif
