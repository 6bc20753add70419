#include "pool/ranges.h"

#include "pool/page_map.h"

#include <string.h>
#include <sys/mman.h>

/* --- the sorted array of free ranges --- */

size_t ranges_position(const struct arena *arena, uint64_t bytes, uint64_t address) {
    size_t low = 0, high = arena->free_count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        const struct free_range *f = &arena->free[middle];
        if (f->bytes < bytes || (f->bytes == bytes && f->range->block.address < address)) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

/*
 * Room for every range there can be after one more request, asked for before anything is changed:
 * giving memory back then never needs any.
 */
static bool make_room(struct arena *arena, unsigned more) {
    size_t least = arena->range_count + more;
    if (least <= arena->free_room) {
        return true;
    }
    size_t room = arena->free_room ? arena->free_room : 512;
    while (room < least) {
        room *= 2;
    }
    struct free_range *wider = host_map(room * sizeof *wider, 4096);
    if (!wider) {
        return false;
    }
    if (arena->free) {
        memcpy(wider, arena->free, arena->free_count * sizeof *wider);
        munmap(arena->free, arena->free_room * sizeof *wider);
    }
    arena->free = wider;
    arena->free_room = room;
    return true;
}

bool ranges_prepare(struct arena *arena, unsigned segments) {
    unsigned more = segments + 2;
    return make_room(arena, more) && host_slab_prepare(&arena->range_slab, more);
}

void ranges_insert(struct arena *arena, struct range *range) {
    size_t i = ranges_position(arena, range->bytes, range->block.address);
    memmove(&arena->free[i + 1], &arena->free[i], (arena->free_count - i) * sizeof *arena->free);
    arena->free[i] = (struct free_range){.bytes = range->bytes, .range = range};
    arena->free_count++;
    arena->free_bytes += range->bytes;
    block_become(&range->block, BLOCK_FREE);
}

void ranges_remove_at(struct arena *arena, size_t i) {
    arena->free_bytes -= arena->free[i].bytes;
    arena->free_count--;
    memmove(&arena->free[i], &arena->free[i + 1], (arena->free_count - i) * sizeof *arena->free);
}

void ranges_remove(struct arena *arena, struct range *range) {
    ranges_remove_at(arena, ranges_position(arena, range->bytes, range->block.address));
}

/* --- cutting and merging --- */

void ranges_enter(const struct range *part, struct range *range) {
    page_map_set(part->block.address, part->bytes, page_map_of_range(range));
    for (struct segment *s = part->segment; s; s = range_next_segment(part, s)) {
        s->first = s->base >= part->block.address ? range : s->first;
    }
}

static struct segment *segment_around(struct segment *from, uint64_t address) {
    while (from->base + from->bytes <= address) {
        from = from->next;
    }
    return from;
}

/* Before a descriptor says something else: who sees that sees the count as well. */
static void disturb(struct arena *arena) {
    atomic_fetch_add(&arena->recycled, 1);
    atomic_thread_fence(memory_order_release);
}

void ranges_cut(struct arena *arena, struct range *range, uint64_t bytes, struct range **left,
                struct range **right) {
    struct range *other = host_slab_get(&arena->range_slab);
    uint64_t rest = range->bytes - bytes;
    bool flip = bytes < rest;
    *left = flip ? other : range;
    *right = flip ? range : other;
    struct range *previous = range->previous, *next = range->next;
    uint64_t address = range->block.address;
    struct segment *segment = range->segment;
    disturb(arena);
    (*left)->block.address = address;
    (*left)->bytes = bytes;
    (*left)->segment = segment;
    (*left)->previous = previous;
    (*left)->next = *right;
    (*right)->block.address = address + bytes;
    (*right)->bytes = rest;
    (*right)->segment = segment_around(segment, address + bytes);
    (*right)->previous = *left;
    (*right)->next = next;
    if (previous) {
        previous->next = *left;
    }
    if (next) {
        next->previous = *right;
    }
    arena->range_count++;
    ranges_enter(other, other);
}

void ranges_recycle(struct arena *arena, struct range *range) {
    block_become(&range->block, BLOCK_INSIDE);
    disturb(arena);
    host_slab_put(&arena->range_slab, range);
}

/* Two neighbours, in no list, become one, with the descriptor of the longer one. */
static struct range *join(struct arena *arena, struct range *left, struct range *right) {
    bool flip = right->bytes > left->bytes;
    struct range *one = flip ? right : left, *other = flip ? left : right;
    disturb(arena);
    ranges_enter(other, one);
    one->bytes += other->bytes;
    one->previous = left->previous;
    one->next = right->next;
    one->segment = left->segment;
    one->block.address = left->block.address;
    if (one->previous) {
        one->previous->next = one;
    }
    if (one->next) {
        one->next->previous = one;
    }
    arena->range_count--;
    ranges_recycle(arena, other);
    return one;
}

void ranges_merge(struct arena *arena, struct range *range) {
    struct range *next = range->next, *previous = range->previous;
    if (next && range_state(next) == BLOCK_FREE) {
        ranges_remove(arena, next);
        range = join(arena, range, next);
    }
    if (previous && range_state(previous) == BLOCK_FREE) {
        ranges_remove(arena, previous);
        range = join(arena, previous, range);
    }
    ranges_insert(arena, range);
}
