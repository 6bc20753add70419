/*
 * Extents: memory under a window (layout.h) in one piece of the backend's, for as many of its first slots.
 *
 * What a growing program takes is made so: one call for each step, where pages would take one for every 2 MiB. An
 * extent cannot be taken apart. It is of use to blocks that need all of it, in its own window; when memory is
 * wanted elsewhere and nothing has been idle for longer, it is dissolved: it goes back to the backend, and pages come
 * for as much of it as is needed. So a program that repeats its sizes keeps its extents, and one that does not soon
 * has pages instead. From then on extents are made only where the reserve grows beyond its peak.
 *
 * Free ones stand in a list, the one first that has been free for the longest. Their slots have no frame and are in
 * no conflict. Under the pool's lock, as frames are.
 */
#ifndef GPUCACHE_POOL_EXTENT_H
#define GPUCACHE_POOL_EXTENT_H

#include "pool/layout.h"

/** Whether a block of so many slots, none of which has anything, is to have an extent. */
bool extents_wanted(const struct layouts *layouts, uint32_t slots, uint64_t reserved_peak);

/** The window has one, of the backend's page, for so many slots: it is in use, and to be mapped there. */
void extent_enter(struct layouts *layouts, struct window *window, uint64_t page, uint32_t slots);

/** It is in use from now on; or free. */
void extent_use(struct layouts *layouts, struct window *window);
void extent_stop_using(struct layouts *layouts, struct window *window);

/** Out of the books, be it in use, free or all that is kept of its window: the page. */
uint64_t extent_remove(struct layouts *layouts, struct window *window);

/** Entered again, it is free as it was before; or kept, as all of `kept` slots. */
void extent_put_back(struct layouts *layouts, struct window *window, uint32_t kept);

/** The window of the free one that has been so for the longest; NULL: there is none, or its work has not finished. Then
 * hardly any other's has. */
struct window *extents_pick(const struct layouts *layouts, uint64_t finished);

/** The same, if it has been free for longer than any free frame whose work has finished. */
struct window *extents_pick_older(const struct layouts *layouts, uint64_t finished);

/** The same, of those that have been free for all of the decay time. *waits: one has, but for its work. */
struct window *extents_pick_aged(const struct layouts *layouts, uint64_t finished, bool *waits);

/** One that something outside the pool reaches, whose block was freed; NULL: there is none. */
struct window *extents_pick_kept(const struct layouts *layouts, uint64_t finished);

/** How many slots the free ones have whose work has finished; and the epoch that has to finish for so many to have. */
uint32_t extents_count_finished(const struct layouts *layouts, uint64_t finished);
uint64_t extents_stamp(const struct layouts *layouts, uint32_t count);

#endif
