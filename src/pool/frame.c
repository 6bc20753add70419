#include "pool/frame.h"

#include "pool/tuning.h"

static struct frame_list *list_of(struct layouts *layouts, const struct frame *frame) {
    return &layouts->lists[frame->mappings < FRAME_LISTS ? frame->mappings : FRAME_LISTS - 1];
}

static void unlist(struct layouts *layouts, const struct frame *frame) {
    struct frame_list *list = list_of(layouts, frame);
    if (frame->previous) {
        layouts_frame(layouts, frame->previous)->next = frame->next;
    } else {
        list->first = frame->next;
    }
    if (frame->next) {
        layouts_frame(layouts, frame->next)->previous = frame->previous;
    } else {
        list->last = frame->previous;
    }
}

/* At the end that its stamp is nearer to. */
static void list(struct layouts *layouts, uint32_t number) {
    struct frame *frame = layouts_frame(layouts, number);
    struct frame_list *list = list_of(layouts, frame);
    bool oldest = list->first && frame->stamp < layouts_frame(layouts, list->first)->stamp;
    frame->previous = oldest ? 0 : list->last;
    frame->next = oldest ? list->first : 0;
    if (frame->previous) {
        layouts_frame(layouts, frame->previous)->next = number;
    } else {
        list->first = number;
    }
    if (frame->next) {
        layouts_frame(layouts, frame->next)->previous = number;
    } else {
        list->last = number;
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
    frame->mappings++;
    window->conflicts -= !frame->in_use;
}

void frame_leave(struct layouts *layouts, struct window *window, uint32_t i) {
    struct slot *slot = layouts_slot(layouts, window->first + i);
    uint32_t number = slot->frame;
    struct frame *frame = layouts_frame(layouts, number);
    if (!frame->in_use) {
        unlist(layouts, frame);
    }
    if (slot->previous) {
        layouts_slot(layouts, slot->previous)->next = slot->next;
    } else {
        frame->slots = slot->next;
    }
    if (slot->next) {
        layouts_slot(layouts, slot->next)->previous = slot->previous;
    }
    slot->frame = slot->next = slot->previous = 0;
    frame->mappings--;
    window->conflicts += !frame->in_use;
    if (!frame->in_use) {
        list(layouts, number);
    }
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

/* The first of a list that has finished, or 0. They stand about in order. */
static uint32_t finished_of(const struct layouts *layouts, const struct frame_list *list,
                            uint64_t finished) {
    uint32_t number = list->first;
    for (unsigned i = 0; number && i < FRAMES_TRIED; i++) {
        const struct frame *frame = layouts_frame(layouts, number);
        if (frame->stamp <= finished) {
            return number;
        }
        number = frame->next;
    }
    return 0;
}

uint32_t frames_pick(const struct layouts *layouts, uint64_t finished) {
    uint32_t number = 0;
    for (unsigned i = 0; i < FRAME_LISTS && !number; i++) {
        number = finished_of(layouts, &layouts->lists[i], finished);
    }
    return number;
}

uint32_t frames_count_finished(const struct layouts *layouts, uint64_t finished, uint32_t most) {
    uint32_t count = 0;
    for (unsigned i = 0; i < FRAME_LISTS && count < most; i++) {
        for (uint32_t n = layouts->lists[i].first; n && count < most;) {
            const struct frame *frame = layouts_frame(layouts, n);
            count += frame->stamp <= finished;
            n = frame->next;
        }
    }
    return count;
}

uint64_t frames_stamp(const struct layouts *layouts, uint32_t count) {
    uint64_t stamp = 0;
    for (unsigned i = 0; i < FRAME_LISTS && count > 0; i++) {
        for (uint32_t n = layouts->lists[i].first; n && count > 0; count--) {
            const struct frame *frame = layouts_frame(layouts, n);
            stamp = frame->stamp > stamp ? frame->stamp : stamp;
            n = frame->next;
        }
    }
    return stamp;
}
