/*
 * Reads a pool block by block: the sizes of live blocks and the map of the pool's memory for
 * reports, the list of segments and live blocks for memory snapshots.
 *
 *      survey_take()   no lock; pool_survey() calls it, also in signal handlers
 *      survey_list()   under the pool's lock
 *
 * A million blocks take a while, and no thread may wait for a report. survey_take() therefore takes
 * no lock. A block that changes during the survey may be counted twice or not at all. Reading a
 * recycled descriptor gives wrong values, never a fault. survey_take() ignores a block that does
 * not fit the memory around it. Invariant: it reads each page of the page map once.
 */
#include "heap/survey.h"

#include "heap/arena.h"
#include "heap/page_map.h"
#include "heap/slab.h"

#include <string.h>

struct survey {
    struct live_sizes *sizes;
    struct segment_map *map; /* NULL: not wanted */
    uint64_t base, end;      /* the current segment */
    uint64_t cursor;         /* end of the segment's part that is in the map */
    bool segment_begins;     /* nothing of the segment is in the map yet */
    uint64_t entered;        /* units in the map */
};

/* ---- live blocks by requested size: a hash table of sizes, then the largest groups ---- */

/* Adds blocks of one size to the row of that size. The caller has left a row empty. */
static void add_live(struct live_sizes *sizes, struct stats_live more) {
    uint64_t hash = more.bytes * 0x9e3779b97f4a7c15u >> 32;
    for (unsigned i = 0; i < LIVE_SIZES; i++) {
        struct stats_live *row = &sizes->rows[(hash + i) % LIVE_SIZES];
        if (row->count == 0 || row->bytes == more.bytes) {
            sizes->used += row->count == 0;
            row->bytes = more.bytes;
            row->count += more.count;
            return;
        }
    }
}

/*
 * Makes space when the table is full: drops sizes that hold less than the average, or half of the
 * sizes if all hold the same. A dropped size that appears again counts from 0. The largest holders
 * stay.
 */
static void drop_small_rows(struct live_sizes *sizes) {
    uint64_t sum = 0, average;
    memcpy(sizes->spare, sizes->rows, sizeof sizes->rows);
    memset(sizes->rows, 0, sizeof sizes->rows);
    for (unsigned i = 0; i < LIVE_SIZES; i++)
        sum += sizes->spare[i].bytes * sizes->spare[i].count;
    average = sum / sizes->used;
    sizes->used = 0;
    for (unsigned i = 0; i < LIVE_SIZES; i++) {
        const struct stats_live *row = &sizes->spare[i];
        if (row->count > 0 && row->bytes * row->count >= average && sizes->used < LIVE_SIZES / 2)
            add_live(sizes, *row);
    }
}

static void count_live(struct live_sizes *sizes, uint64_t bytes) {
    if (sizes->used >= LIVE_SIZES - 1)
        drop_small_rows(sizes);
    add_live(sizes, (struct stats_live){bytes, 1});
}

/* ---- the map ---- */

/* Appends the memory from the cursor to `until` to the map, with its live and cached bytes. */
static void enter(struct survey *survey, uint64_t until, uint64_t live, uint64_t cached) {
    uint64_t bytes = until - survey->cursor;
    live = live < bytes ? live : bytes;
    cached = cached < bytes - live ? cached : bytes - live;
    if (!survey->map || until <= survey->cursor)
        return;
    const struct segment_piece piece = {
        .address = survey->cursor,
        .units = (uint32_t)(bytes >> UNIT_SHIFT),
        .live = (uint32_t)(live >> UNIT_SHIFT),
        .cached = (uint32_t)(cached >> UNIT_SHIFT),
        .segments = survey->segment_begins,
    };
    segment_map_add(survey->map, &piece);
    survey->segment_begins = false;
    survey->entered += piece.units;
    survey->cursor = until;
}

/* Enters free memory up to `until`: between two blocks, or at the end of a segment. */
static void enter_free(struct survey *survey, uint64_t until) {
    enter(survey, until < survey->end ? until : survey->end, 0, 0);
}

/*
 * Enters a block and the free memory before it. Ignores a block that is not in the rest of the
 * segment: its descriptor was recycled.
 */
static void enter_block(struct survey *survey, uint64_t address, uint64_t bytes, uint64_t live,
                        uint64_t cached) {
    if (address >= survey->cursor && bytes > 0 && bytes <= survey->end - survey->cursor &&
        address <= survey->end - bytes) {
        enter_free(survey, address);
        enter(survey, address + bytes, live, cached);
    }
}

/*
 * Begins a segment, unless it is the current one. With the vmm backend, callers pass each block or
 * slab as a segment of its own.
 */
static void begin_segment(struct survey *survey, uint64_t base, uint64_t bytes) {
    if (base != survey->base || survey->end == 0) {
        enter_free(survey, survey->end);
        survey->base = survey->cursor = base;
        survey->end = base + bytes;
        survey->segment_begins = true;
    }
}

/*
 * A copy of a range's fields, read without a lock. The data race is harmless, as in range_peek().
 */
struct peeked {
    enum block_state state;
    uint64_t address, bytes, requested;
    uint64_t base, segment_bytes;
    bool is_allocation;
};

__attribute__((no_sanitize("thread"))) static bool peek(const struct range *range,
                                                        struct peeked *seen) {
    const struct segment *segment = range ? *(struct segment *const volatile *)&range->segment : 0;
    if (!segment)
        return false;
    seen->state = header_state(*(const volatile uint64_t *)&range->block.header);
    atomic_thread_fence(memory_order_acquire);
    seen->address = *(const volatile uint64_t *)&range->block.address;
    seen->bytes = *(const volatile uint64_t *)&range->bytes;
    seen->requested = *(const volatile uint64_t *)&range->requested;
    seen->base = *(const volatile uint64_t *)&segment->base;
    seen->segment_bytes = *(const volatile uint64_t *)&segment->bytes;
    seen->is_allocation = *(const volatile bool *)&segment->is_allocation;
    return true;
}

/* ---- one page of the page map ---- */

__attribute__((no_sanitize("thread"))) static struct range *range_of_slab(const struct slab *slab) {
    return *(struct range *const volatile *)&slab->range;
}

/* Counts the blocks of a slab, and enters the slab as one block. */
static void survey_slab(struct survey *survey, uint64_t address, struct slab *slab) {
    uint64_t live = 0, cached = 0;
    struct peeked seen;
    for (unsigned unit = 0; slab_next_block(slab, &unit); unit++) {
        uint64_t header = block_header(slab_unit(slab, unit));
        if (header_state(header) == BLOCK_LIVE) {
            count_live(survey->sizes, header_requested(header));
            live += header_bytes(header);
        } else if (header_state(header) == BLOCK_CACHED) {
            cached += header_bytes(header);
        }
    }
    if (peek(range_of_slab(slab), &seen)) {
        begin_segment(survey, seen.is_allocation ? seen.base : address,
                      seen.is_allocation ? seen.segment_bytes : PAGE_BYTES);
        enter_block(survey, address, PAGE_BYTES, live, cached);
    }
}

/* Counts and enters the large block that begins in the half page at `start`, if there is one. */
static void survey_start(struct survey *survey, uint64_t start) {
    struct peeked seen;
    if (!peek(page_map_start(start), &seen) || seen.address - start >= PAGE_BYTES / 2)
        return;
    bool live = seen.state == BLOCK_LIVE;
    if (live)
        count_live(survey->sizes, seen.requested);
    if (live || seen.state == BLOCK_CACHED) {
        begin_segment(survey, seen.is_allocation ? seen.base : seen.address,
                      seen.is_allocation ? seen.segment_bytes : seen.bytes);
        enter_block(survey, seen.address, seen.bytes, live ? seen.bytes : 0, live ? 0 : seen.bytes);
    }
}

static void survey_page(uint64_t address, page_map_entry entry, void *argument) {
    struct survey *survey = argument;
    struct peeked seen;
    if (page_map_slab(entry)) {
        survey_slab(survey, address, page_map_slab(entry));
        return;
    }
    if (peek((const struct range *)entry, &seen) && seen.is_allocation)
        begin_segment(survey, seen.base, seen.segment_bytes);
    survey_start(survey, address);
    survey_start(survey, address + PAGE_BYTES / 2);
}

/* Enters the vmm backend's memory that is in no block, as one piece without an address. */
static void enter_vmm_rest(struct survey *survey, const stat_counter *vmm_bytes) {
    uint64_t units = vmm_bytes ? counter_get(vmm_bytes) >> UNIT_SHIFT : 0;
    struct segment_piece piece = {
        .units = (uint32_t)(units > survey->entered ? units - survey->entered : 0)};
    if (survey->map && vmm_bytes)
        segment_map_add(survey->map, &piece);
}

/* Merges the largest groups into stats->live, which is sorted by total bytes, largest first. */
static void report_largest(struct stats_device *stats, const struct live_sizes *sizes) {
    for (unsigned i = 0; i < LIVE_SIZES; i++) {
        struct stats_live row = sizes->rows[i];
        size_t at = stats->live_groups;
        while (at > 0 &&
               row.bytes * row.count > stats->live[at - 1].bytes * stats->live[at - 1].count)
            at--;
        if (row.count == 0 || at >= STATS_LIVE_SIZES)
            continue;
        size_t kept =
            stats->live_groups < STATS_LIVE_SIZES ? stats->live_groups : STATS_LIVE_SIZES - 1;
        memmove(&stats->live[at + 1], &stats->live[at], (kept - at) * sizeof row);
        stats->live[at] = row;
        stats->live_groups = kept + 1;
    }
}

void survey_take(const struct pool *pool, struct live_sizes *sizes, const stat_counter *vmm_bytes,
                 struct stats_device *stats, struct segment_map *map) {
    struct survey survey = {.sizes = sizes, .map = map};
    if (!atomic_exchange(&sizes->busy, true)) {
        memset(sizes->rows, 0, sizeof sizes->rows);
        sizes->used = 0;
        page_map_each(pool, survey_page, &survey);
        enter_free(&survey, survey.end);
        enter_vmm_rest(&survey, vmm_bytes);
        report_largest(stats, sizes);
        atomic_store(&sizes->busy, false);
    }
}

/* ---- the list of segments and blocks, under the pool's lock ---- */

static void add_slab(struct slab *slab, uint64_t address, struct memory_list *to) {
    for (unsigned unit = 0; slab_next_block(slab, &unit); unit++) {
        uint64_t header = block_header(slab_unit(slab, unit));
        if (header_state(header) == BLOCK_LIVE) {
            memory_list_add_block(
                to, (struct memory_block){.address = address + ((uint64_t)unit << UNIT_SHIFT),
                                          .bytes = header_bytes(header),
                                          .requested = header_requested(header)});
        }
    }
}

static void add_range(const struct range *range, struct memory_list *to) {
    if (range_state(range) == BLOCK_SLAB) {
        add_slab(range->slab, range->block.address, to);
    } else if (range_state(range) == BLOCK_LIVE) {
        memory_list_add_block(to,
                              (struct memory_block){.address = range->block.address,
                                                    .bytes = range->bytes,
                                                    .requested = atomic_load(&range->requested)});
    }
}

void survey_list(const struct arena *arena, struct memory_list *to) {
    for (const struct segment *segment = arena->segments; segment; segment = segment->next) {
        memory_list_add_segment(to, (struct memory_segment){.address = segment->base,
                                                            .bytes = segment->bytes,
                                                            .pages = !segment->is_allocation});
        for (const struct range *range = segment_first(segment); segment_has(segment, range);
             range = range->next)
            add_range(range, to);
    }
}
