#include "pool/window.h"

#include "pool/tuning.h"

#include <stddef.h>

static uint32_t step(uint32_t slots) {
    unsigned bits = 31 - (unsigned)__builtin_clz(slots);
    return bits > 3 ? 1u << (bits - 3) : 1;
}

uint32_t layouts_window_slots(uint32_t slots) {
    uint32_t by = step(slots);
    return (slots + by - 1) / by * by;
}

unsigned window_class(uint32_t length) {
    unsigned bits = 31 - (unsigned)__builtin_clz(length);
    return bits > 3 ? 16 + (bits - 4) * 8 + (length >> (bits - 3) & 7) : length;
}

/* The last free one that is older. It is looked for from both ends and on both sides at once: from somewhere it
 * is near, in whatever order thousands are freed. */
static struct window *free_before(const struct layouts *layouts, const struct window *window) {
    unsigned class = window_class(window->slots);
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
void window_insert(struct layouts *layouts, struct window *window) {
    unsigned class = window_class(window->slots);
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

void window_remove(struct layouts *layouts, struct window *window) {
    unsigned class = window_class(window->slots);
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

uint32_t window_conflicts(const struct layouts *layouts, const struct window *window,
                          uint32_t slots, uint32_t most) {
    uint32_t count = 0;
    if (slots < window->extent_slots) {
        return UINT32_MAX;
    }
    if (window->conflicts == 0) {
        return 0;
    }
    for (uint32_t i = window->extent_slots; i < slots && count < most; i++) {
        uint32_t number = window_slot(layouts, window, i)->frame;
        bool used = number != 0 && layouts_frame(layouts, number)->in_use;
        if (used && layouts->frozen) {
            return UINT32_MAX;
        }
        count += number == 0 || used;
    }
    return count;
}

/* No fewer than so many of the first slots are. */
static uint32_t least_conflicts(const struct window *window, uint32_t slots) {
    uint32_t beyond = window->slots - slots;
    return window->conflicts > beyond ? window->conflicts - beyond : 0;
}

uint32_t window_empty(const struct layouts *layouts, const struct window *window, uint32_t slots) {
    uint32_t count = 0;
    for (uint32_t i = window->extent_slots; i < slots; i++) {
        count += window_slot(layouts, window, i)->frame == 0;
    }
    return count;
}

/* Too many to take the window away from those who had it lately, or too often. */
static bool is_dear(const struct layouts *layouts, const struct window *window, uint32_t slots,
                    uint32_t conflicts) {
    uint32_t empty = window_empty(layouts, window, slots);
    conflicts -= empty < conflicts ? empty : conflicts;
    return recall_knows(&layouts->recall, window->taken) &&
           (conflicts > slots / WINDOW_CONFLICTS ||
            window->mapped_anew + conflicts > slots / WINDOW_MAPPED_ANEW) &&
           layouts->slot_count / WINDOWS_TIMES < layouts->frame_count;
}

/* What it costs, in slots that are mapped anew now, or will be for somebody else; does not count further than
 * `most`. */
static uint32_t price_of(const struct layouts *layouts, const struct window *window, uint32_t slots,
                         uint32_t most, bool any) {
    if (window->kept > 0) {
        return slots <= window->kept ? 0 : UINT32_MAX;
    }
    if (least_conflicts(window, slots) >= most) {
        return UINT32_MAX;
    }
    uint32_t conflicts = window_conflicts(layouts, window, slots, most);
    bool possible = conflicts != UINT32_MAX;
    bool dear = possible && conflicts > 0 && !any && is_dear(layouts, window, slots, conflicts);
    return dear ? conflicts + slots : conflicts;
}

struct window *window_expected(const struct layouts *layouts, uint32_t slots) {
    return slots >= RECALL_SLOTS ? recall_expects(&layouts->recall, slots) : NULL;
}

struct window *window_best(const struct layouts *layouts, uint32_t slots, uint32_t most, bool any,
                           uint64_t finished) {
    struct window *best = window_expected(layouts, slots);
    if (best && range_state(&best->range) == BLOCK_FREE && best->kept == 0 &&
        best->slots >= slots && window_conflicts(layouts, best, slots, 1) == 0) {
        return best;
    }
    best = NULL;
    uint32_t longest = slots == 1 ? 1 : layouts_window_slots(slots * WINDOW_TIMES + WINDOW_MORE);
    for (unsigned class = next_class(layouts, window_class(layouts_window_slots(slots)));
         class <= window_class(longest); class = next_class(layouts, class + 1)) {
        for (struct window *w = layouts->free[class]; w && most > 0; w = w->next) {
            uint32_t price = price_of(layouts, w, slots, most, any);
            if (price < most && (price == 0 || w->segment.stamp <= finished)) {
                best = w;
                most = price;
            }
        }
    }
    return best;
}
