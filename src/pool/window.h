/*
 * Windows: the free ones of layouts (layout.h) by length, and which of them a request gets. Under the pool's lock.
 */
#ifndef GPUCACHE_POOL_WINDOW_H
#define GPUCACHE_POOL_WINDOW_H

#include "pool/layout.h"

static inline struct slot *window_slot(const struct layouts *layouts, const struct window *window,
                                       uint32_t i) {
    return layouts_slot(layouts, window->first + i);
}

/** Windows of a length are exact up to 15 slots; beyond, there are eight lengths for every power of two. */
unsigned window_class(uint32_t length);

/** A window is free from now on, or not any more. */
void window_insert(struct layouts *layouts, struct window *window);
void window_remove(struct layouts *layouts, struct window *window);

/** How many of the first slots are in conflict; does not count further than `most`. UINT32_MAX: it cannot be had for so
 * few, since it has a longer extent; or frozen, one of them would have to be emptied. */
uint32_t window_conflicts(const struct layouts *layouts, const struct window *window,
                          uint32_t slots, uint32_t most);

/** How many of them have no frame, because it has gone back: whoever takes the window next maps them anew. */
uint32_t window_empty(const struct layouts *layouts, const struct window *window, uint32_t slots);

/** The one that such a request had the last time around, free or not; NULL: unknown. */
struct window *window_expected(const struct layouts *layouts, uint32_t slots);

/** The free one with the lowest price, less than `most`; of several a short one that was made early. The price is in
 * slots that are mapped anew now, or will be for somebody else, which is left out for `any`. What is to be mapped anew
 * must have finished. NULL: there is none. */
struct window *window_best(const struct layouts *layouts, uint32_t slots, uint32_t most, bool any,
                           uint64_t finished);

#endif
