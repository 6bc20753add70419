#include "pool/arena.h"

#include "pool/page_map.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#define RANGES_PER_GROWTH 3 /* the segment's one, and it is cut at most twice */

void arena_start(struct arena *arena, struct pool *pool) {
    *arena = (struct arena){.pool = pool};
    arena->range_slab.object_bytes = sizeof(struct range);
    arena->segment_slab.object_bytes = sizeof(struct segment);
}

/* --- the sorted array of free ranges --- */

/* Index of the first free range that is not smaller than (bytes, address). */
static size_t position(const struct arena *arena, uint64_t bytes, uint64_t address) {
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
static int make_room(struct arena *arena) {
    if (arena->range_count + RANGES_PER_GROWTH <= arena->free_room) {
        return 0;
    }
    size_t room = arena->free_room ? arena->free_room * 2 : 512;
    struct free_range *wider = host_map(room * sizeof *wider, 4096);
    if (!wider) {
        return -ENOMEM;
    }
    if (arena->free) {
        memcpy(wider, arena->free, arena->free_count * sizeof *wider);
        munmap(arena->free, arena->free_room * sizeof *wider);
    }
    arena->free = wider;
    arena->free_room = room;
    return 0;
}

static bool is_idle(const struct range *range) {
    return range->bytes == range->segment->bytes;
}

static void insert_free(struct arena *arena, struct range *range) {
    size_t i = position(arena, range->bytes, range->block.address);
    memmove(&arena->free[i + 1], &arena->free[i], (arena->free_count - i) * sizeof *arena->free);
    arena->free[i] = (struct free_range){.bytes = range->bytes, .range = range};
    arena->free_count++;
    arena->free_bytes += range->bytes;
    arena->idle_bytes += is_idle(range) ? range->bytes : 0;
    block_become(&range->block, BLOCK_FREE);
}

static void remove_free_at(struct arena *arena, size_t i) {
    arena->idle_bytes -= is_idle(arena->free[i].range) ? arena->free[i].bytes : 0;
    arena->free_bytes -= arena->free[i].bytes;
    arena->free_count--;
    memmove(&arena->free[i], &arena->free[i + 1], (arena->free_count - i) * sizeof *arena->free);
}

static void remove_free(struct arena *arena, struct range *range) {
    remove_free_at(arena, position(arena, range->bytes, range->block.address));
}

/* --- cutting and merging --- */

static void enter(struct range *range) {
    page_map_set(range->block.address, range->bytes, page_map_of_range(range));
}

/* Cuts `range` at `bytes`; the second part is returned, linked but in no list. NULL: no host
 * memory. */
static struct range *cut(struct arena *arena, struct range *range, uint64_t bytes) {
    struct range *rest = host_slab_get(&arena->range_slab);
    if (!rest) {
        return NULL;
    }
    rest->block.address = range->block.address + bytes;
    rest->bytes = range->bytes - bytes;
    rest->segment = range->segment;
    rest->previous = range;
    rest->next = range->next;
    if (rest->next) {
        rest->next->previous = rest;
    }
    range->next = rest;
    range->bytes = bytes;
    arena->range_count++;
    enter(rest);
    return rest;
}

/* Who sees anything of the descriptor's next life sees the count as well. Until then no block starts there. */
static void recycle(struct arena *arena, struct range *range) {
    block_become(&range->block, BLOCK_INSIDE);
    atomic_fetch_add(&arena->recycled, 1);
    atomic_thread_fence(memory_order_release);
    host_slab_put(&arena->range_slab, range);
}

/* Joins `next` to `range`, its left neighbour. */
static void join(struct arena *arena, struct range *range, struct range *next) {
    range->bytes += next->bytes;
    range->next = next->next;
    if (range->next) {
        range->next->previous = range;
    }
    page_map_set(next->block.address, next->bytes, page_map_of_range(range));
    arena->range_count--;
    recycle(arena, next);
}

static bool better_kept_whole(const struct range *range, uint64_t bytes) {
    return range->bytes >= ARENA_SPARED_BYTES && range->bytes / ARENA_SPARED_FACTOR > bytes;
}

/* What a large block has left of a segment of its own: a small one there would pin that when it has gone. */
static bool is_rest(const struct range *range) {
    return range_is_first(range) && range->next &&
           range->bytes <= range->next->bytes / ARENA_REST_SHARE;
}

struct range *arena_take(struct arena *arena, uint64_t bytes, uint64_t alignment,
                         enum arena_care care) {
    for (size_t i = position(arena, bytes, 0); i < arena->free_count; i++) {
        struct range *range = arena->free[i].range;
        bool from_end = care != ARENA_ALL && range_is_first(range) && bytes < range->segment->bytes;
        uint64_t skip = from_end ? range->bytes - bytes : -range->block.address & (alignment - 1);
        if (range->bytes < bytes + skip || (from_end && skip == 0) || is_rest(range)) {
            continue;
        }
        if ((care == ARENA_SPARING && better_kept_whole(range, bytes)) || make_room(arena) != 0) {
            return NULL;
        }
        remove_free_at(arena, i);
        if (skip > 0) {
            struct range *aligned = cut(arena, range, skip);
            insert_free(arena, range);
            if (!aligned) {
                return NULL;
            }
            range = aligned;
        }
        if (range->bytes > bytes) {
            struct range *rest = cut(arena, range, bytes);
            if (!rest) {
                arena_give(arena, range);
                return NULL;
            }
            insert_free(arena, rest);
        }
        range->block.stamp = 0;
        block_become(&range->block, BLOCK_CACHED | (uint64_t)bin_of_large(range->bytes)
                                                       << HEADER_BIN_SHIFT);
        return range;
    }
    return NULL;
}

static bool has_live(const struct segment *segment) {
    bool live = false;
    for (const struct range *range = segment->first; range && !live; range = range->next) {
        live = range_state(range) == BLOCK_LIVE || range_state(range) == BLOCK_PAGE;
    }
    return live;
}

uint64_t arena_loose_bytes(const struct arena *arena) {
    uint64_t bytes = 0;
    for (const struct segment *segment = arena->segments; segment; segment = segment->next) {
        if (!segment->first->next || has_live(segment)) {
            continue;
        }
        for (const struct range *range = segment->first; range; range = range->next) {
            bytes += range_state(range) == BLOCK_FREE ? range->bytes : 0;
        }
    }
    return bytes;
}

void arena_give(struct arena *arena, struct range *range) {
    struct range *next = range->next;
    if (next && range_state(next) == BLOCK_FREE) {
        remove_free(arena, next);
        join(arena, range, next);
    }
    struct range *previous = range->previous;
    if (previous && range_state(previous) == BLOCK_FREE) {
        remove_free(arena, previous);
        join(arena, previous, range);
        range = previous;
    }
    insert_free(arena, range);
}

/* --- segments --- */

bool arena_prepare(struct arena *arena) {
    return make_room(arena) == 0 && host_slab_prepare(&arena->segment_slab, 1) &&
           host_slab_prepare(&arena->range_slab, RANGES_PER_GROWTH);
}

int arena_add(struct arena *arena, uint64_t base, uint64_t bytes) {
    int r = make_room(arena);
    if (r == 0) {
        r = page_map_prepare(base, bytes);
    }
    if (r != 0) {
        return r;
    }
    struct segment *segment = host_slab_get(&arena->segment_slab);
    struct range *range = host_slab_get(&arena->range_slab);
    if (!segment || !range) {
        if (segment) {
            host_slab_put(&arena->segment_slab, segment);
        }
        return -ENOMEM;
    }
    segment->base = base;
    segment->bytes = bytes;
    segment->first = range;
    segment->next = arena->segments;
    if (segment->next) {
        segment->next->previous = segment;
    }
    arena->segments = segment;
    range->block.address = base;
    range->bytes = bytes;
    range->segment = segment;
    arena->range_count++;
    page_map_set_owner(base, bytes, arena->pool);
    enter(range);
    insert_free(arena, range);
    arena->reserved_bytes += bytes;
    arena->segment_count++;
    return 0;
}

static bool may_leave(const struct range *range, uint64_t finished) {
    return is_idle(range) && range->segment->stamp <= finished;
}

struct segment *arena_idle_segment(struct arena *arena, uint64_t bytes, uint64_t finished) {
    size_t enough = position(arena, bytes, 0);
    for (size_t i = enough; i < arena->free_count; i++) {
        if (may_leave(arena->free[i].range, finished)) {
            return arena->free[i].range->segment;
        }
    }
    for (size_t i = enough; i-- > 0;) {
        if (may_leave(arena->free[i].range, finished)) {
            return arena->free[i].range->segment;
        }
    }
    return NULL;
}

/* The largest first, which leave the array from its end. */
struct segment *arena_aged_segment(const struct arena *arena, uint64_t tick, uint64_t finished,
                                   bool *waits) {
    for (size_t i = arena->idle_bytes > 0 ? arena->free_count : 0; i-- > 0;) {
        struct segment *segment = arena->free[i].range->segment;
        if (is_idle(arena->free[i].range) && tick - segment->since > DECAY_TICKS) {
            if (segment->stamp <= finished) {
                return segment;
            }
            *waits = true;
        }
    }
    return NULL;
}

uint64_t arena_idle_stamp(const struct arena *arena, uint64_t finished) {
    uint64_t earliest = UINT64_MAX;
    for (size_t i = 0; i < arena->free_count && arena->idle_bytes > 0; i++) {
        const struct range *range = arena->free[i].range;
        uint64_t stamp = range->segment->stamp;
        if (is_idle(range) && stamp > finished && stamp < earliest) {
            earliest = stamp;
        }
    }
    return earliest;
}

void arena_remove(struct arena *arena, struct segment *segment) {
    struct range *range = segment->first;
    remove_free(arena, range);
    page_map_leave(segment->base, segment->bytes, arena->pool);
    if (segment->previous) {
        segment->previous->next = segment->next;
    } else {
        arena->segments = segment->next;
    }
    if (segment->next) {
        segment->next->previous = segment->previous;
    }
    arena->reserved_bytes -= segment->bytes;
    arena->segment_count--;
    arena->range_count--;
    recycle(arena, range);
    host_slab_put(&arena->segment_slab, segment);
}

struct range *arena_find(uint64_t address) {
    page_map_entry entry = page_map_get(address);
    if (entry == 0 || page_map_page(entry)) {
        return NULL;
    }
    struct range *range = (struct range *)entry;
    while (range && range->block.address + range->bytes <= address) {
        range = range->next;
    }
    return range;
}

void arena_leave_map(struct arena *arena) {
    for (const struct segment *segment = arena->segments; segment; segment = segment->next) {
        page_map_leave(segment->base, segment->bytes, arena->pool);
    }
}

void arena_forget(struct arena *arena) {
    for (struct segment *segment = arena->segments, *next; segment; segment = next) {
        next = segment->next;
        for (struct range *range = segment->first, *right; range; range = right) {
            right = range->next;
            recycle(arena, range);
        }
        host_slab_put(&arena->segment_slab, segment);
    }
    arena->segments = NULL;
    arena->free_count = arena->range_count = 0;
    arena->free_bytes = arena->idle_bytes = arena->reserved_bytes = arena->segment_count = 0;
}
