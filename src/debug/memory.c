#include "debug/memory.h"

#include "heap/arena.h"
#include "heap/slab.h"

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

void memory_of_arena(const struct arena *arena, struct memory_list *to) {
    for (const struct segment *segment = arena->segments; segment; segment = segment->next) {
        memory_list_add_segment(to, (struct memory_segment){.address = segment->base,
                                                            .bytes = segment->bytes,
                                                            .pages = !segment->is_allocation});
        for (const struct range *range = segment_first(segment); segment_has(segment, range);
             range = range->next) {
            add_range(range, to);
        }
    }
}
