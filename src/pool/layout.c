#include "pool/layout.h"

#include "pool/frame.h"
#include "pool/tuning.h"

#include <stddef.h>
#include <string.h>

void layouts_start(struct layouts *layouts, struct pool *pool) {
    *layouts = (struct layouts){.pool = pool};
    layouts->slots.object_bytes = sizeof(struct slot);
    layouts->frames.object_bytes = sizeof(struct frame);
    layouts->window_slab.object_bytes = sizeof(struct window);
    layouts->space_slab.object_bytes = sizeof(struct space);
}

static struct slot *slot_at(const struct layouts *layouts, const struct window *window,
                            uint32_t i) {
    return layouts_slot(layouts, window->first + i);
}

/* --- free windows, by length --- */

/* Lengths are exact up to 15 slots; beyond, eight for every power of two. */
static uint32_t step(uint32_t slots) {
    unsigned bits = 31 - (unsigned)__builtin_clz(slots);
    return bits > 3 ? 1u << (bits - 3) : 1;
}

uint32_t layouts_window_slots(uint32_t slots) {
    uint32_t by = step(slots);
    return (slots + by - 1) / by * by;
}

static unsigned class_of(uint32_t length) {
    unsigned bits = 31 - (unsigned)__builtin_clz(length);
    return bits > 3 ? 16 + (bits - 4) * 8 + (length >> (bits - 3) & 7) : length;
}

/* The last free one that is older. It is looked for from both ends and on both sides at once: from somewhere it
 * is near, in whatever order thousands are freed. */
static struct window *free_before(const struct layouts *layouts, const struct window *window) {
    unsigned class = class_of(window->slots);
    struct window *low = layouts->free[class], *high = layouts->last_free[class];
    struct window *older = window->older, *newer = window->newer;
    while (low && low->first < window->first) {
        if (high->first < window->first) {
            return high;
        }
        if (older && range_state(&older->range) == BLOCK_FREE) {
            return older;
        }
        if (newer && range_state(&newer->range) == BLOCK_FREE) {
            return newer->previous;
        }
        low = low->next;
        high = high->previous;
        older = older ? older->older : NULL;
        newer = newer ? newer->newer : NULL;
    }
    return low ? low->previous : layouts->last_free[class];
}

/* In the order of their making: so a program that repeats itself meets the same one again. */
static void insert_window(struct layouts *layouts, struct window *window) {
    unsigned class = class_of(window->slots);
    struct window *previous = free_before(layouts, window);
    struct window *next = previous ? previous->next : layouts->free[class];
    window->previous = previous;
    window->next = next;
    if (previous) {
        previous->next = window;
    } else {
        layouts->free[class] = window;
    }
    if (next) {
        next->previous = window;
    } else {
        layouts->last_free[class] = window;
    }
    layouts->classes[class / 64] |= (uint64_t)1 << class % 64;
    block_become(&window->range.block, BLOCK_FREE);
}

static void remove_window(struct layouts *layouts, struct window *window) {
    unsigned class = class_of(window->slots);
    if (window->previous) {
        window->previous->next = window->next;
    } else {
        layouts->free[class] = window->next;
    }
    if (window->next) {
        window->next->previous = window->previous;
    } else {
        layouts->last_free[class] = window->previous;
    }
    if (!layouts->free[class]) {
        layouts->classes[class / 64] &= ~((uint64_t)1 << class % 64);
    }
}

/* The first class from this one on that has any; WINDOW_CLASSES: none. */
static unsigned next_class(const struct layouts *layouts, unsigned class) {
    while (class < WINDOW_CLASSES) {
        uint64_t bits = layouts->classes[class / 64] & ~(uint64_t)0 << class % 64;
        if (bits) {
            return class / 64 * 64 + (unsigned)__builtin_ctzll(bits);
        }
        class = (class / 64 + 1) * 64;
    }
    return WINDOW_CLASSES;
}

/* --- windows --- */

/* How many of the first slots are in conflict; does not count further than `most`. */
static uint32_t conflicts_of(const struct layouts *layouts, const struct window *window,
                             uint32_t slots, uint32_t most) {
    uint32_t count = 0;
    if (window->conflicts == 0) {
        return 0;
    }
    for (uint32_t i = 0; i < slots && count < most; i++) {
        uint32_t number = slot_at(layouts, window, i)->frame;
        count += number == 0 || layouts_frame(layouts, number)->in_use;
    }
    return count;
}

/* No fewer than so many of the first slots are. */
static uint32_t least_conflicts(const struct window *window, uint32_t slots) {
    uint32_t beyond = window->slots - slots;
    return window->conflicts > beyond ? window->conflicts - beyond : 0;
}

/* The free one with the fewest conflicts, fewer than `most`; of several a short one that was made early. What
 * is to be mapped anew must have finished. */
static struct window *best_window(const struct layouts *layouts, uint32_t slots, uint32_t most,
                                  uint64_t finished) {
    struct window *best = NULL;
    uint32_t longest = slots == 1 ? 1 : layouts_window_slots(slots * WINDOW_TIMES + WINDOW_MORE);
    for (unsigned class = next_class(layouts, class_of(layouts_window_slots(slots)));
         class <= class_of(longest); class = next_class(layouts, class + 1)) {
        for (struct window *w = layouts->free[class]; w && most > 0; w = w->next) {
            uint32_t conflicts;
            if (w->kept > 0) {
                conflicts = slots <= w->kept ? 0 : UINT32_MAX;
            } else if (least_conflicts(w, slots) >= most) {
                continue;
            } else {
                conflicts = conflicts_of(layouts, w, slots, most);
            }
            if (conflicts < most && (conflicts == 0 || w->segment.stamp <= finished)) {
                best = w;
                most = conflicts;
            }
        }
    }
    return best;
}

/* The window's block is that of the first so many slots. What is in use elsewhere leaves them. */
static uint32_t take_window(struct layouts *layouts, struct window *window, uint32_t slots) {
    uint32_t lacking = 0;
    remove_window(layouts, window);
    block_become(&window->range.block, BLOCK_CACHED | (uint64_t)BIN_NONE << LIFE_BIN_SHIFT);
    window->range.block.stamp = 0;
    window->range.bytes = (uint64_t)slots << PAGE_SHIFT;
    window->used = slots;
    if (window->kept > 0) {
        layouts->kept_bytes -= window->range.bytes;
        return 0;
    }
    for (uint32_t i = 0; i < slots; i++) {
        struct slot *slot = slot_at(layouts, window, i);
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
                                                   << LIFE_BIN_SHIFT);
    page_map_set_start(range->block.address, range);
    return range;
}

struct range *layouts_take(struct layouts *layouts, uint32_t slots) {
    struct window *window = best_window(layouts, slots, 1, 0);
    if (!window) {
        return NULL;
    }
    take_window(layouts, window, slots);
    return hand_over(window);
}

uint32_t layouts_lacking(const struct layouts *layouts, uint32_t slots, uint64_t finished) {
    const struct window *window = best_window(layouts, slots, UINT32_MAX, finished);
    return window && window->kept == 0 ? conflicts_of(layouts, window, slots, slots)
           : window                    ? 0
                                       : slots;
}

struct window *layouts_choose(struct layouts *layouts, uint32_t slots, uint64_t finished,
                              uint32_t *lacking) {
    struct window *window = best_window(layouts, slots, UINT32_MAX, finished);
    if (window) {
        *lacking = take_window(layouts, window, slots);
    }
    return window;
}

bool layouts_add_space(struct layouts *layouts, uint64_t base, uint64_t bytes) {
    struct space *space =
        page_map_prepare(base, bytes) == 0 ? host_slab_get(&layouts->space_slab) : NULL;
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
    struct window **newest = &layouts->newest[class_of(length)];
    window->older = *newest;
    if (window->older) {
        window->older->newer = window;
    }
    *newest = window;
    space->used += bytes;
    for (uint32_t i = 0; i < length; i++) {
        *slot_at(layouts, window, i) = (struct slot){.window = window};
    }
    page_map_set_owner(window->segment.base, bytes, layouts->pool);
    page_map_set(window->segment.base, bytes, page_map_of_range(&window->range));
    insert_window(layouts, window);
    take_window(layouts, window, slots);
    return window;
}

uint32_t layouts_next_lacking(const struct layouts *layouts, const struct window *window,
                              uint32_t from) {
    for (uint32_t i = from; i < window->used; i++) {
        if (slot_at(layouts, window, i)->frame == 0) {
            return i;
        }
    }
    return UINT32_MAX;
}

bool layouts_fill(struct layouts *layouts, struct window *window, uint32_t i, uint64_t finished) {
    uint32_t number = frames_pick(layouts, finished);
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
        for (uint32_t i = 0; i < window->used; i++) {
            frame_stop_using(layouts, slot_at(layouts, window, i)->frame, stamp);
        }
    }
    window->used = 0;
    insert_window(layouts, window);
}

void layouts_put_back(struct layouts *layouts, struct window *window) {
    for (uint32_t i = 0; i < window->used; i++) {
        struct slot *slot = slot_at(layouts, window, i);
        uint32_t number = slot->frame;
        if (number) {
            frame_stop_using(layouts, number, 0);
        }
        if (number && !slot->mapped) {
            frame_leave(layouts, window, i);
        }
    }
    window->used = 0;
    insert_window(layouts, window);
}

/* A kept one goes to the driver, never to another block: who reaches it may do so for longer. */
static uint32_t kept_frame(struct layouts *layouts, uint64_t finished) {
    struct window *window = layouts->kept_bytes > 0 ? layouts->windows : NULL;
    while (window && (window->used > 0 || window->kept == 0 || window->segment.stamp > finished)) {
        window = window->next_of_all;
    }
    if (!window) {
        return 0;
    }
    window->kept--;
    window->segment.reached_from_outside = window->kept > 0;
    layouts->kept_bytes -= PAGE_BYTES;
    return slot_at(layouts, window, window->kept)->frame;
}

bool layouts_remove_frame(struct layouts *layouts, bool kept, uint64_t finished, uint64_t *page,
                          uint32_t *slots) {
    uint32_t number = kept ? kept_frame(layouts, finished) : frames_pick(layouts, finished);
    if (number == 0) {
        return false;
    }
    struct frame *frame = layouts_frame(layouts, number);
    if (!kept) {
        frame_use(layouts, number);
    }
    while (frame->slots) {
        uint32_t s = frame->slots;
        struct slot *slot = layouts_slot(layouts, s);
        frame_leave(layouts, slot->window, s - slot->window->first);
        slot->stale = true;
        slot->next = *slots;
        *slots = s;
    }
    *page = frame->page;
    *frame = (struct frame){.next = layouts->absent};
    layouts->absent = number;
    layouts->reserved_bytes -= PAGE_BYTES;
    return true;
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
    struct layouts fresh = {
        .pool = layouts->pool, .slots = layouts->slots, .frames = layouts->frames};
    fresh.window_slab = layouts->window_slab;
    fresh.space_slab = layouts->space_slab;
    *layouts = fresh;
}
