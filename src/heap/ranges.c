/*
 * Keeps an arena's free ranges in a sorted array, and cuts and joins ranges. ranges.h has the lock
 * and the invariant. pool/lookup.c reads descriptors without the lock: see count_change().
 */
#include "heap/ranges.h"

#include "base/assert.h"
#include "heap/page_map.h"

#include <string.h>

/* --- the sorted array of free ranges --- */

/**
 * Binary search without branches on the data: the CPU would mispredict half of them. All bits of
 * `-(size_t)true` are set, so `half & -(size_t)(...)` is `half` or 0.
 */
size_t ranges_of_size(const struct arena *arena, uint64_t bytes) {
    const struct free_range *at = arena->free;
    size_t count = arena->free_count;
    for (size_t half; count > 1; count -= half) {
        half = count / 2;
        at += half & -(size_t)(at[half - 1].bytes < bytes);
    }
    return (size_t)(at - arena->free) + (count == 1 && at->bytes < bytes);
}

/**
 * Finds the first entry that is not less than (bytes, address). Mostly the entry is the only one of
 * its size, so the second search is rare.
 */
size_t ranges_index(const struct arena *arena, const struct range *range) {
    const struct free_range *free = arena->free;
    uint64_t bytes = range->bytes, address = range->block.address;
    size_t low = ranges_of_size(arena, bytes), high = low;
    if (low < arena->free_count && free[low].bytes == bytes &&
        free[low].range->block.address < address)
        high = ranges_of_size(arena, bytes + 1);
    while (low < high) {
        size_t middle = (low + high) / 2;
        bool lower = free[middle].range->block.address < address;
        low = lower ? middle + 1 : low;
        high = lower ? high : middle;
    }
    return low;
}

/* Writes the range into entry i, whose old content is moved or not needed, and marks it free. */
static void put(struct arena *arena, size_t i, struct range *range) {
    arena->free[i] = (struct free_range){.bytes = range->bytes, .range = range};
    arena->free_bytes += range->bytes;
    block_become(&range->block, BLOCK_FREE);
}

static void insert(struct arena *arena, struct range *range) {
    size_t i = ranges_index(arena, range);
    ASSERT(arena->free_count < arena->free_capacity); /* arena_prepare() */
    memmove(&arena->free[i + 1], &arena->free[i], (arena->free_count - i) * sizeof *arena->free);
    arena->free_count++;
    put(arena, i, range);
}

static void remove_at(struct arena *arena, size_t i) {
    arena->free_bytes -= arena->free[i].bytes;
    arena->free_count--;
    memmove(&arena->free[i], &arena->free[i + 1], (arena->free_count - i) * sizeof *arena->free);
}

/*
 * Replaces the range of entry i by one of another size. Moves only the entries between old and new
 * position. Entry i still has the old size, so ranges_index() does not read the address of its
 * range, which may have changed.
 */
static void replace(struct arena *arena, size_t i, struct range *range) {
    struct free_range *free = arena->free;
    size_t at = ranges_index(arena, range);
    arena->free_bytes -= free[i].bytes;
    if (at > i) {
        at--;
        memmove(&free[i], &free[i + 1], (at - i) * sizeof *free);
    } else {
        memmove(&free[at + 1], &free[at], (i - at) * sizeof *free);
    }
    put(arena, at, range);
}

/* --- cutting and merging --- */

void ranges_enter(const struct range *part, struct range *range) {
    page_map_set(part->block.address, part->bytes, (page_map_entry)range);
    for (struct segment *s = part->segment; s; s = range_next_segment(part, s))
        if (s->base >= part->block.address) /* an earlier segment keeps its first range */
            s->first = range;
}

/*
 * Must run before a descriptor changes its address or length, or is reused: a reader without the
 * lock (pool/lookup.c) that sees the change then sees the new count as well.
 */
static void count_change(struct arena *arena) {
    atomic_fetch_add(&arena->changes, 1);
    atomic_thread_fence(memory_order_release);
}

/*
 * Cuts a range in two after `bytes` bytes, and links both. The shorter part gets the new
 * descriptor: cutting a little from a long range then changes few page map entries.
 */
static void cut(struct arena *arena, struct range *range, uint64_t bytes, struct range **left,
                struct range **right) {
    struct range *other = host_freelist_get(&arena->range_freelist);
    ASSERT(other != NULL); /* arena_prepare() */
    uint64_t rest = range->bytes - bytes;
    bool left_is_new = bytes < rest;
    *left = left_is_new ? other : range;
    *right = left_is_new ? range : other;
    struct range *previous = range->previous, *next = range->next;
    uint64_t address = range->block.address;
    struct segment *segment = range->segment, *border = segment;
    while (border->base + border->bytes <= address + bytes)
        border = border->next; /* to the segment in which the right part begins */
    count_change(arena);
    (*left)->block.address = address;
    (*left)->bytes = bytes;
    (*left)->segment = segment;
    (*left)->previous = previous;
    (*left)->next = *right;
    (*right)->block.address = address + bytes;
    (*right)->bytes = rest;
    (*right)->segment = border;
    (*right)->previous = *left;
    (*right)->next = next;
    if (previous)
        previous->next = *left;
    if (next)
        next->previous = *right;
    arena->range_count++;
    ranges_enter(other, other);
}

struct range *ranges_cut_out(struct arena *arena, size_t i, uint64_t skip, uint64_t bytes) {
    struct range *range = arena->free[i].range, *front = NULL, *rest = NULL;
    if (skip > 0) {
        cut(arena, range, skip, &front, &range);
        replace(arena, i, front);
    }
    if (range->bytes > bytes) {
        cut(arena, range, bytes, &range, &rest);
        front ? insert(arena, rest) : replace(arena, i, rest);
    }
    if (!front && !rest)
        remove_at(arena, i);
    return range;
}

void ranges_recycle(struct arena *arena, struct range *range) {
    /* BLOCK_INSIDE needs no new count: a reader that sees it finds no live block. */
    block_become(&range->block, BLOCK_INSIDE);
    count_change(arena);
    host_freelist_put(&arena->range_freelist, range);
}

/* Joins two adjacent ranges and recycles the shorter one's descriptor. An entry of the array may
 * still name that descriptor: the caller replaces the entry. */
static struct range *join(struct arena *arena, struct range *left, struct range *right) {
    bool keep_right = right->bytes > left->bytes;
    struct range *kept = keep_right ? right : left, *other = keep_right ? left : right;
    count_change(arena);
    ranges_enter(other, kept);
    kept->bytes += other->bytes;
    kept->previous = left->previous;
    kept->next = right->next;
    kept->segment = left->segment;
    kept->block.address = left->block.address;
    if (kept->previous)
        kept->previous->next = kept;
    if (kept->next)
        kept->next->previous = kept;
    arena->range_count--;
    ranges_recycle(arena, other);
    return kept;
}

void ranges_merge(struct arena *arena, struct range *range) {
    struct range *next = range->next, *previous = range->previous;
    bool after = next && range_state(next) == BLOCK_FREE;
    bool before = previous && range_state(previous) == BLOCK_FREE;
    if (!after && !before) {
        insert(arena, range);
        return;
    }
    if (after && before)
        remove_at(arena, ranges_index(arena, previous));
    size_t i = ranges_index(arena, after ? next : previous);
    range = after ? join(arena, range, next) : range;
    range = before ? join(arena, previous, range) : range;
    replace(arena, i, range);
}
