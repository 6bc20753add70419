#include "pool/frame.h"

#include "pool/tuning.h"

#include <stddef.h>

static void unlist(struct layouts *layouts, const struct frame *frame) {
    if (frame->previous) {
        layouts_frame(layouts, frame->previous)->next = frame->next;
    } else {
        layouts->oldest_frame = frame->next;
    }
    if (frame->next) {
        layouts_frame(layouts, frame->next)->previous = frame->previous;
    } else {
        layouts->newest_frame = frame->previous;
    }
}

/* The last one whose stamp is not younger; 0: none. It is looked for from both ends: most stamps come in order, and
 * what has just been mapped is about the oldest. Where neither end is near, the younger one has to do; but not for
 * a new frame: whoever made it has to find it in front of all that work runs on, or makes more. */
static uint32_t listed_before(const struct layouts *layouts, uint64_t stamp) {
    if (stamp == 0) {
        return 0;
    }
    uint32_t old = layouts->oldest_frame, young = layouts->newest_frame;
    for (unsigned i = 0; old && i < FRAMES_PASSED; i++) {
        if (layouts_frame(layouts, young)->stamp <= stamp) {
            return young;
        }
        if (layouts_frame(layouts, old)->stamp > stamp) {
            return layouts_frame(layouts, old)->previous;
        }
        old = layouts_frame(layouts, old)->next;
        young = layouts_frame(layouts, young)->previous;
    }
    return layouts->newest_frame;
}

static void list(struct layouts *layouts, uint32_t number) {
    struct frame *frame = layouts_frame(layouts, number);
    frame->since = (uint16_t)layouts->tick;
    frame->previous = listed_before(layouts, frame->stamp);
    frame->next =
        frame->previous ? layouts_frame(layouts, frame->previous)->next : layouts->oldest_frame;
    if (frame->previous) {
        layouts_frame(layouts, frame->previous)->next = number;
    } else {
        layouts->oldest_frame = number;
    }
    if (frame->next) {
        layouts_frame(layouts, frame->next)->previous = number;
    } else {
        layouts->newest_frame = number;
    }
}

static void count_conflicts(const struct layouts *layouts, const struct frame *frame, bool more) {
    for (uint32_t s = frame->slots; s;) {
        const struct slot *slot = layouts_slot(layouts, s);
        slot->window->conflicts += more ? 1 : -1;
        s = slot->next;
    }
}

void frame_use(struct layouts *layouts, uint32_t number) {
    struct frame *frame = layouts_frame(layouts, number);
    unlist(layouts, frame);
    frame->in_use = true;
    layouts->free_bytes -= PAGE_BYTES;
    count_conflicts(layouts, frame, true);
}

void frame_stop_using(struct layouts *layouts, uint32_t number, uint64_t stamp) {
    struct frame *frame = layouts_frame(layouts, number);
    frame->stamp = stamp > frame->stamp ? stamp : frame->stamp;
    frame->in_use = false;
    layouts->free_bytes += PAGE_BYTES;
    list(layouts, number);
    count_conflicts(layouts, frame, false);
}

/* A frame in a slot that had none. It is in use, or does not stand in a list. */
void frame_enter(struct layouts *layouts, struct window *window, uint32_t i, uint32_t number) {
    struct frame *frame = layouts_frame(layouts, number);
    struct slot *slot = layouts_slot(layouts, window->first + i);
    slot->frame = number;
    slot->previous = 0;
    slot->next = frame->slots;
    if (slot->next) {
        layouts_slot(layouts, slot->next)->previous = window->first + i;
    }
    frame->slots = window->first + i;
    window->conflicts -= !frame->in_use;
}

void frame_leave(struct layouts *layouts, struct window *window, uint32_t i) {
    struct slot *slot = layouts_slot(layouts, window->first + i);
    struct frame *frame = layouts_frame(layouts, slot->frame);
    if (slot->previous) {
        layouts_slot(layouts, slot->previous)->next = slot->next;
    } else {
        frame->slots = slot->next;
    }
    if (slot->next) {
        layouts_slot(layouts, slot->next)->previous = slot->previous;
    }
    slot->frame = slot->next = slot->previous = 0;
    window->conflicts += !frame->in_use;
}

bool frames_prepare(struct layouts *layouts, uint32_t count) {
    for (uint32_t n = 1; n <= count; n++) {
        if (!host_table_reach(&layouts->frames, layouts->frame_count + n)) {
            return false;
        }
    }
    return true;
}

void frames_add(struct layouts *layouts, uint64_t page) {
    uint32_t number = layouts->absent;
    if (number) {
        layouts->absent = layouts_frame(layouts, number)->next;
    } else {
        number = ++layouts->frame_count;
    }
    struct frame *frame = layouts_frame(layouts, number);
    *frame = (struct frame){.page = page, .exists = true};
    list(layouts, number);
    layouts->reserved_bytes += PAGE_BYTES;
    layouts->free_bytes += PAGE_BYTES;
}

uint32_t frames_pick(const struct layouts *layouts, bool in_no_slot, uint64_t finished) {
    uint32_t number = layouts->oldest_frame;
    while (number && in_no_slot && layouts_frame(layouts, number)->slots) {
        number = layouts_frame(layouts, number)->next;
    }
    return number && layouts_frame(layouts, number)->stamp <= finished ? number : 0;
}

struct frame_walk frames_walk(const struct layouts *layouts) {
    return (struct frame_walk){.at = layouts->oldest_frame, .left = DECAY_FRAMES};
}

uint32_t frames_pick_aged(const struct layouts *layouts, struct frame_walk *walk,
                          uint64_t finished) {
    for (uint32_t number = walk->at; number && walk->left > 0; number = walk->at, walk->left--) {
        const struct frame *frame = layouts_frame(layouts, number);
        walk->at = frame->next;
        if ((uint16_t)(layouts->tick - frame->since) > DECAY_TICKS) {
            if (frame->stamp <= finished) {
                return number;
            }
            walk->waits = true;
        }
    }
    return 0;
}

/* A kept one goes to the driver, never to another block: who reaches it may do so for longer. */
static uint32_t kept_frame(struct layouts *layouts, uint64_t finished) {
    struct window *window = layouts->kept_bytes > 0 ? layouts->windows : NULL;
    while (window && (window->used > 0 || window->kept <= window->extent_slots ||
                      window->segment.stamp > finished)) {
        window = window->next_of_all;
    }
    if (!window) {
        return 0;
    }
    window->kept--;
    window->segment.reached_from_outside = window->kept > 0;
    layouts->kept_bytes -= PAGE_BYTES;
    return layouts_slot(layouts, window->first + window->kept)->frame;
}

bool frames_remove(struct layouts *layouts, enum idle which, struct frame_walk *walk,
                   uint64_t finished, struct removed_frame *removed) {
    uint32_t number = which == IDLE_KEPT   ? kept_frame(layouts, finished)
                      : which == IDLE_AGED ? frames_pick_aged(layouts, walk, finished)
                                           : frames_pick(layouts, false, finished);
    if (number == 0) {
        return false;
    }
    if (which != IDLE_KEPT) { /* those stand in no list */
        frame_use(layouts, number);
    }
    struct frame *frame = layouts_frame(layouts, number);
    *removed = (struct removed_frame){.page = frame->page};
    while (frame->slots) {
        uint32_t s = frame->slots;
        struct slot *slot = layouts_slot(layouts, s);
        frame_leave(layouts, slot->window, s - slot->window->first);
        slot->stale = true;
        slot->next = removed->slots;
        removed->slots = s;
    }
    *frame = (struct frame){.next = layouts->absent};
    layouts->absent = number;
    layouts->reserved_bytes -= PAGE_BYTES;
    return true;
}

uint32_t frames_count_finished(const struct layouts *layouts, uint64_t finished, uint32_t most) {
    uint32_t count = 0;
    for (uint32_t n = layouts->oldest_frame; n && count < most;) {
        const struct frame *frame = layouts_frame(layouts, n);
        count += frame->stamp <= finished;
        n = frame->next;
    }
    return count;
}

uint64_t frames_stamp(const struct layouts *layouts, uint32_t count) {
    uint64_t stamp = 0;
    for (uint32_t n = layouts->oldest_frame; n && count > 0; count--) {
        const struct frame *frame = layouts_frame(layouts, n);
        stamp = frame->stamp > stamp ? frame->stamp : stamp;
        n = frame->next;
    }
    return stamp;
}
