#include "pool/layout.h"

#include "pool/extent.h"
#include "pool/frame.h"
#include "pool/tuning.h"
#include "pool/window.h"

#include <stddef.h>
#include <string.h>

void layouts_start(struct layouts *layouts, struct pool *pool) {
    *layouts = (struct layouts){.pool = pool};
    layouts->slots.object_bytes = sizeof(struct slot);
    layouts->frames.object_bytes = sizeof(struct frame);
    layouts->window_slab.object_bytes = sizeof(struct window);
    layouts->space_slab.object_bytes = sizeof(struct space);
    recall_start(&layouts->recall);
}

/* --- windows --- */

/* The window's block is that of the first so many slots. What is in use elsewhere leaves them. */
static uint32_t take_window(struct layouts *layouts, struct window *window, uint32_t slots) {
    uint32_t lacking = 0;
    window_remove(layouts, window);
    block_become(&window->range.block, BLOCK_CACHED | (uint64_t)BIN_NONE << HEADER_BIN_SHIFT);
    window->range.block.stamp = 0;
    window->range.bytes = (uint64_t)slots << PAGE_SHIFT;
    window->used = slots;
    if (window->kept > 0) {
        layouts->kept_bytes -= window->range.bytes;
        return 0;
    }
    if (window->extent_slots > 0) {
        extent_use(layouts, window);
    }
    for (uint32_t i = window->extent_slots; i < slots; i++) {
        struct slot *slot = window_slot(layouts, window, i);
        if (slot->frame && !layouts_frame(layouts, slot->frame)->in_use) {
            frame_use(layouts, slot->frame);
            continue;
        }
        if (slot->frame) {
            frame_leave(layouts, window, i);
        }
        slot->stale = true;
        lacking++;
    }
    return lacking;
}

/* All slots of its block have their frames: it may be handed out. */
static struct range *hand_over(struct window *window) {
    struct range *range = &window->range;
    block_become(&range->block, BLOCK_CACHED | (uint64_t)bin_of_large(range->bytes)
                                                   << HEADER_BIN_SHIFT);
    page_map_set_start(range->block.address, range);
    return range;
}

uint64_t layouts_expected_stamp(const struct layouts *layouts, uint32_t slots) {
    const struct window *window = window_expected(layouts, slots);
    return window && range_state(&window->range) == BLOCK_CACHED ? window->range.block.stamp : 0;
}

struct range *layouts_take(struct layouts *layouts, uint32_t slots) {
    struct window *window = window_best(layouts, slots, 1, true, 0);
    if (!window) {
        return NULL;
    }
    if (slots >= RECALL_SLOTS) {
        window->taken = recall_note(&layouts->recall, window, slots);
    }
    layouts->asked += slots;
    take_window(layouts, window, slots);
    return hand_over(window);
}

uint32_t layouts_lacking(const struct layouts *layouts, uint32_t slots, uint64_t finished) {
    const struct window *window = window_best(layouts, slots, slots + 1, false, finished);
    return window && window->kept == 0 ? window_conflicts(layouts, window, slots, slots)
           : window                    ? 0
                                       : slots;
}

struct window *layouts_choose(struct layouts *layouts, uint32_t slots, bool any, uint64_t finished,
                              uint32_t *lacking) {
    struct window *window =
        window_best(layouts, slots, any ? UINT32_MAX : slots + 1, any, finished);
    if (window) {
        bool known = recall_knows(&layouts->recall, window->taken);
        uint32_t empty = window_empty(layouts, window, slots);
        *lacking = take_window(layouts, window, slots);
        window->mapped_anew = (known ? window->mapped_anew : 0) + *lacking - empty;
    }
    return window;
}

bool layouts_add_space(struct layouts *layouts, uint64_t base, uint64_t bytes) {
    struct space *space = page_map_prepare(base, bytes) == 0 && recall_prepare(&layouts->recall)
                              ? host_slab_get(&layouts->space_slab)
                              : NULL;
    if (space) {
        *space = (struct space){.base = base, .bytes = bytes, .next = layouts->spaces};
        layouts->spaces = space;
    }
    return space != NULL;
}

/* The numbers of so many new slots; 0: no host memory. */
static uint32_t new_slots(struct layouts *layouts, uint32_t slots) {
    uint32_t first = layouts->slot_count + 1;
    for (uint32_t n = first; n < first + slots; n++) {
        if (!host_table_reach(&layouts->slots, n)) {
            return 0;
        }
    }
    layouts->slot_count += slots;
    return first;
}

struct window *layouts_open(struct layouts *layouts, uint32_t slots) {
    struct space *space = layouts->spaces;
    uint32_t length = layouts_window_slots(slots);
    uint64_t bytes = (uint64_t)length << PAGE_SHIFT;
    if (!space || space->bytes - space->used < bytes ||
        !host_slab_prepare(&layouts->window_slab, 1)) {
        return NULL;
    }
    uint32_t first = new_slots(layouts, length);
    struct window *window = first ? host_slab_get(&layouts->window_slab) : NULL;
    if (!window) {
        return NULL;
    }
    window->first = first;
    window->slots = window->conflicts = length;
    window->segment.base = window->range.block.address = space->base + space->used;
    window->segment.bytes = bytes;
    window->segment.first = &window->range;
    window->segment.is_window = true;
    window->range.segment = &window->segment;
    window->next_of_all = layouts->windows;
    layouts->windows = window;
    struct window **newest = &layouts->newest[window_class(length)];
    window->older = *newest;
    if (window->older) {
        window->older->newer = window;
    }
    *newest = window;
    space->used += bytes;
    for (uint32_t i = 0; i < length; i++) {
        *window_slot(layouts, window, i) = (struct slot){.window = window};
    }
    page_map_set_owner(window->segment.base, bytes, layouts->pool);
    page_map_set(window->segment.base, bytes, page_map_of_range(&window->range));
    window_insert(layouts, window);
    take_window(layouts, window, slots);
    return window;
}

uint32_t layouts_next_lacking(const struct layouts *layouts, const struct window *window,
                              uint32_t from) {
    from = from > window->extent_slots ? from : window->extent_slots;
    for (uint32_t i = from; i < window->used; i++) {
        if (window_slot(layouts, window, i)->frame == 0) {
            return i;
        }
    }
    return UINT32_MAX;
}

bool layouts_fill(struct layouts *layouts, struct window *window, uint32_t i, uint64_t finished) {
    uint32_t number = frames_pick(layouts, layouts->frozen, finished);
    if (!number) {
        return false;
    }
    /* No frame lies in a window twice: its block would have it for two of its slots. */
    for (uint32_t s = layouts_frame(layouts, number)->slots, next; s; s = next) {
        struct slot *slot = layouts_slot(layouts, s);
        next = slot->next;
        if (slot->window == window) {
            frame_leave(layouts, window, s - window->first);
            slot->stale = true;
        }
    }
    frame_use(layouts, number);
    frame_enter(layouts, window, i, number);
    return true;
}

void layouts_give(struct layouts *layouts, struct range *range, uint64_t stamp) {
    struct window *window = window_of(range);
    window->segment.stamp = stamp > window->segment.stamp ? stamp : window->segment.stamp;
    if (window->segment.reached_from_outside) {
        window->kept = window->kept > window->used ? window->kept : window->used;
        layouts->kept_bytes += (uint64_t)window->used << PAGE_SHIFT;
    } else {
        if (window->extent_slots > 0) {
            extent_stop_using(layouts, window);
        }
        for (uint32_t i = window->extent_slots; i < window->used; i++) {
            frame_stop_using(layouts, window_slot(layouts, window, i)->frame, stamp);
        }
    }
    window->used = 0;
    window_insert(layouts, window);
}

void layouts_put_back(struct layouts *layouts, struct window *window) {
    if (window->kept > 0) { /* it was freed meanwhile, and keeps what it has */
        layouts->kept_bytes += window->range.bytes;
        window->used = 0;
    }
    if (window->used > 0 && window->extent_slots > 0) {
        extent_stop_using(layouts, window);
    }
    for (uint32_t i = window->extent_slots; i < window->used; i++) {
        struct slot *slot = window_slot(layouts, window, i);
        uint32_t number = slot->frame;
        if (number) {
            frame_stop_using(layouts, number, 0);
        }
        if (number && (!slot->mapped || slot->stale)) {
            frame_leave(layouts, window, i);
        }
    }
    window->used = 0;
    window_insert(layouts, window);
}

/* --- the end --- */

void layouts_leave_map(struct layouts *layouts) {
    for (const struct space *space = layouts->spaces; space; space = space->next) {
        page_map_leave(space->base, space->used, layouts->pool);
    }
}

void layouts_forget(struct layouts *layouts) {
    for (struct window *window = layouts->windows, *next; window; window = next) {
        next = window->next_of_all;
        block_become(&window->range.block, BLOCK_FREE); /* no stale start leads to a live one */
        host_slab_put(&layouts->window_slab, window);
    }
    for (struct space *space = layouts->spaces, *next; space; space = next) {
        next = space->next;
        host_slab_put(&layouts->space_slab, space);
    }
    recall_forget(&layouts->recall);
    struct layouts fresh = {.pool = layouts->pool,
                            .slots = layouts->slots,
                            .frames = layouts->frames,
                            .recall = layouts->recall,
                            .frozen = layouts->frozen,
                            .tick = layouts->tick};
    fresh.window_slab = layouts->window_slab;
    fresh.space_slab = layouts->space_slab;
    *layouts = fresh;
}
