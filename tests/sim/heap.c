/*
 * Blocks of device memory: small ones 512 bytes apart, large ones in granules of their own.
 *
 * A small block (less than a granule) lies in a chunk, one granule that a bitmap divides into units
 * of 512 bytes. An empty chunk is freed at once; until then it counts in full, as with the real
 * driver. A freed small block is overwritten with a pattern that shows a use after free. Large
 * blocks lose their access rights instead; a small one's page must stay accessible for its
 * neighbours.
 */
#include "driver.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define UNIT ((size_t)512)
#define UNITS (GRANULE / UNIT)
#define WORDS (UNITS / 64)
#define POISON 0xEE
#define CHUNKS_TRIED 8

struct chunk {
    struct chunk *previous, *next; /* in the heap's list; the chunk with the latest free is first */
    uintptr_t base;
    size_t used;        /* units */
    size_t upper_bound; /* upper bound of the length of free runs */
    size_t latest;      /* first unit of the block freed last */
    uint64_t taken[WORDS];
};

static size_t next_bit(const struct chunk *chunk, size_t from, bool taken) {
    while (from < UNITS) {
        uint64_t word = chunk->taken[from / 64];
        uint64_t here = (taken ? word : ~word) >> (from % 64);
        if (here)
            return from + (size_t)__builtin_ctzll(here);
        from = (from / 64 + 1) * 64;
    }
    return UNITS;
}

static void mark(struct chunk *chunk, size_t first, size_t count, bool taken) {
    for (size_t i = first; i < first + count; i++) {
        uint64_t bit = (uint64_t)1 << (i % 64);
        if (taken)
            chunk->taken[i / 64] |= bit;
        else
            chunk->taken[i / 64] &= ~bit;
    }
}

/* Returns the unit of the latest free if the block fits there, else the first fit, else UNITS. */
static size_t find_units(struct chunk *chunk, size_t count) {
    size_t longest = 0, latest = chunk->latest;

    if (next_bit(chunk, latest, false) == latest && next_bit(chunk, latest, true) - latest >= count)
        return latest;

    for (size_t at = next_bit(chunk, 0, false); at < UNITS;) {
        size_t end = next_bit(chunk, at, true);
        if (end - at >= count)
            return at;
        if (end - at > longest)
            longest = end - at;
        at = next_bit(chunk, end, false);
    }
    chunk->upper_bound = longest;
    return UNITS;
}

static void link_first(struct heap *heap, struct chunk *chunk) {
    chunk->previous = NULL;
    chunk->next = heap->chunks;
    if (chunk->next)
        chunk->next->previous = chunk;
    heap->chunks = chunk;
}

static void unlink_chunk(struct heap *heap, struct chunk *chunk) {
    if (chunk->next)
        chunk->next->previous = chunk->previous;
    if (chunk->previous)
        chunk->previous->next = chunk->next;
    else
        heap->chunks = chunk->next;
}

static uintptr_t take_granules(struct heap *heap, size_t granules) {
    if (heap->charged && !device_charge(heap->device, granules * GRANULE))
        return 0;
    uintptr_t base = arena_take(granules);
    if (base)
        arena_open(base, granules);
    else if (heap->charged)
        device_discharge(heap->device, granules * GRANULE);
    return base;
}

static void give_granules(struct heap *heap, uintptr_t base, size_t granules, bool exported) {
    if (exported)
        arena_retire(base, granules);
    else
        arena_give(base, granules);
    if (heap->charged)
        device_discharge(heap->device, granules * GRANULE);
}

static struct chunk *new_chunk(struct heap *heap) {
    struct chunk *chunk = calloc(1, sizeof(*chunk));

    if (!chunk)
        return NULL;
    chunk->base = take_granules(heap, 1);
    if (!chunk->base) {
        free(chunk);
        return NULL;
    }
    chunk->upper_bound = UNITS;
    link_first(heap, chunk);
    return chunk;
}

static struct chunk *search(struct heap *heap, size_t units, int tries, size_t *first) {
    for (struct chunk *chunk = heap->chunks; chunk && tries; chunk = chunk->next, tries--) {
        if (chunk->upper_bound < units)
            continue;
        *first = find_units(chunk, units);
        if (*first < UNITS)
            return chunk;
    }
    return NULL;
}

static struct chunk *take_units(struct heap *heap, size_t units, size_t *first) {
    struct chunk *chunk = search(heap, units, CHUNKS_TRIED, first);

    *first = chunk ? *first : 0;
    if (!chunk)
        chunk = new_chunk(heap);
    if (!chunk)
        chunk = search(heap, units, -1, first);
    if (chunk) {
        mark(chunk, *first, units, true);
        chunk->used += units;
    }
    return chunk;
}

struct range *heap_take(struct heap *heap, size_t size, enum range_kind kind,
                        struct context *context) {
    struct chunk *chunk = NULL;
    uintptr_t base;

    if (size > heap->device->total)
        return NULL;
    if (size < GRANULE) {
        size_t first;
        chunk = take_units(heap, round_up(size, UNIT) / UNIT, &first);
        base = chunk ? chunk->base + first * UNIT : 0;
    } else {
        size_t aside = sim.options.misalign;
        base = take_granules(heap, round_up(aside + size, GRANULE) / GRANULE);
        base += base ? aside : 0;
    }
    if (!base)
        return NULL;
    struct range *range = range_add(base, size, kind, context, heap->device->ordinal);
    range->heap = heap;
    range->chunk = chunk;
    return range;
}

/* Overwrites freed memory. Leaves out untouched host pages, which a write would allocate. */
static void poison(uintptr_t base, size_t bytes) {
    enum { PAGE = 4096, MOST = GRANULE / PAGE };
    unsigned char there[MOST];
    uintptr_t first = round_up(base, PAGE), last = (base + bytes) / PAGE * PAGE;
    if (last < first + 8 * PAGE || mincore((void *)first, last - first, there) != 0) {
        memset((void *)base, POISON, bytes);
        return;
    }
    memset((void *)base, POISON, first - base);
    memset((void *)last, POISON, base + bytes - last);
    for (uintptr_t page = first; page < last; page += PAGE)
        if (there[(page - first) / PAGE] & 1)
            memset((void *)page, POISON, PAGE);
}

void heap_give(struct range *range) {
    struct heap *heap = range->heap;
    struct chunk *chunk = range->chunk;

    if (!chunk) {
        size_t aside = range->base % GRANULE;
        give_granules(heap, range->base - aside, round_up(aside + range->size, GRANULE) / GRANULE,
                      range->exported);
    } else {
        size_t units = round_up(range->size, UNIT) / UNIT;
        poison(range->base, units * UNIT);
        chunk->latest = (range->base - chunk->base) / UNIT;
        mark(chunk, chunk->latest, units, false);
        chunk->used -= units;
        chunk->upper_bound = UNITS;
        unlink_chunk(heap, chunk);
        if (chunk->used) {
            link_first(heap, chunk);
        } else {
            give_granules(heap, chunk->base, 1, false);
            free(chunk);
        }
    }
    range_remove(range);
}
