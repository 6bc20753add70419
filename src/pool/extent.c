#include "pool/extent.h"

#include "pool/frame.h"
#include "pool/tuning.h"

#include <stddef.h>

static uint64_t bytes_of(const struct window *window) {
    return (uint64_t)window->extent_slots << PAGE_SHIFT;
}

bool extents_wanted(const struct layouts *layouts, uint32_t slots, uint64_t reserved_peak) {
    uint64_t then = layouts->reserved_bytes + ((uint64_t)slots << PAGE_SHIFT);
    return slots >= EXTENT_LEAST && (!layouts->dissolved || then > reserved_peak);
}

void extent_enter(struct layouts *layouts, struct window *window, uint64_t page, uint32_t slots) {
    window->extent = page;
    window->extent_slots = slots;
    window->conflicts -= slots;
    layouts->reserved_bytes += bytes_of(window);
}

void extent_use(struct layouts *layouts, struct window *window) {
    if (window->older_extent) {
        window->older_extent->newer_extent = window->newer_extent;
    } else {
        layouts->oldest_extent = window->newer_extent;
    }
    if (window->newer_extent) {
        window->newer_extent->older_extent = window->older_extent;
    } else {
        layouts->newest_extent = window->older_extent;
    }
    window->older_extent = window->newer_extent = NULL;
    layouts->free_bytes -= bytes_of(window);
}

void extent_stop_using(struct layouts *layouts, struct window *window) {
    window->extent_since = (uint16_t)layouts->tick;
    window->older_extent = layouts->newest_extent;
    if (window->older_extent) {
        window->older_extent->newer_extent = window;
    } else {
        layouts->oldest_extent = window;
    }
    layouts->newest_extent = window;
    layouts->free_bytes += bytes_of(window);
}

void extent_put_back(struct layouts *layouts, struct window *window, uint32_t kept) {
    window->kept = kept;
    window->segment.reached_from_outside = kept > 0;
    layouts->kept_bytes += (uint64_t)kept << PAGE_SHIFT;
    if (kept == 0) {
        extent_stop_using(layouts, window);
    }
}

uint64_t extent_remove(struct layouts *layouts, struct window *window) {
    uint64_t page = window->extent;
    if (window->used == 0 && window->kept > 0) {
        layouts->kept_bytes -= (uint64_t)window->kept << PAGE_SHIFT;
        window->kept = 0;
        window->segment.reached_from_outside = false;
    } else if (window->used == 0) {
        extent_use(layouts, window);
    }
    window->conflicts += window->extent_slots;
    layouts->reserved_bytes -= bytes_of(window);
    window->extent = 0;
    window->extent_slots = 0;
    return page;
}

struct window *extents_pick(const struct layouts *layouts, uint64_t finished) {
    struct window *window = layouts->oldest_extent;
    return window && window->segment.stamp <= finished ? window : NULL;
}

struct window *extents_pick_older(const struct layouts *layouts, uint64_t finished) {
    struct window *window = extents_pick(layouts, finished);
    uint32_t number = window ? frames_pick(layouts, false, finished) : 0;
    return number && layouts_frame(layouts, number)->stamp <= window->segment.stamp ? NULL : window;
}

struct window *extents_pick_aged(const struct layouts *layouts, uint64_t finished, bool *waits) {
    for (struct window *window = layouts->oldest_extent; window; window = window->newer_extent) {
        if ((uint16_t)(layouts->tick - window->extent_since) > DECAY_TICKS) {
            if (window->segment.stamp <= finished) {
                return window;
            }
            *waits = true;
        }
    }
    return NULL;
}

/* Its last frames have gone before it. */
struct window *extents_pick_kept(const struct layouts *layouts, uint64_t finished) {
    struct window *window = layouts->kept_bytes > 0 ? layouts->windows : NULL;
    while (window && (window->used > 0 || window->kept == 0 ||
                      window->kept != window->extent_slots || window->segment.stamp > finished)) {
        window = window->next_of_all;
    }
    return window;
}

uint32_t extents_count_finished(const struct layouts *layouts, uint64_t finished) {
    uint32_t count = 0;
    for (const struct window *w = layouts->oldest_extent; w; w = w->newer_extent) {
        count += w->segment.stamp <= finished ? w->extent_slots : 0;
    }
    return count;
}

uint64_t extents_stamp(const struct layouts *layouts, uint32_t count) {
    uint64_t stamp = 0;
    uint32_t seen = 0;
    for (const struct window *w = layouts->oldest_extent; w && seen < count; w = w->newer_extent) {
        stamp = w->segment.stamp > stamp ? w->segment.stamp : stamp;
        seen += w->extent_slots;
    }
    return stamp;
}
