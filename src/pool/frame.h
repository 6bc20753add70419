/*
 * Frames: the memory under layouts (layout.h), page by page, and the slots that each lies in.
 *
 * Free frames stand in a list, about the oldest stamp first. Whoever begins or stops to use one, or changes where
 * it lies, counts the conflicts of the windows that it touches. Under the pool's lock.
 */
#ifndef GPUCACHE_POOL_FRAME_H
#define GPUCACHE_POOL_FRAME_H

#include "pool/layout.h"

/** Host memory for so many frames more. False: there is none. */
bool frames_prepare(struct layouts *layouts, uint32_t count);

/** Enters a page of the backend as a free frame that nothing has touched. Prepared before. */
void frames_add(struct layouts *layouts, uint64_t page);

/** How many free frames have finished; does not count further than `most`. */
uint32_t frames_count_finished(const struct layouts *layouts, uint64_t finished, uint32_t most);

/** The epoch that has to finish for so many free frames to have, or for all if there are fewer. */
uint64_t frames_stamp(const struct layouts *layouts, uint32_t count);

/** The free frame that has been so for the longest, or that of those that lie in no slot. 0: its work has not finished, as then hardly
 * any other's has; or there is none. */
uint32_t frames_pick(const struct layouts *layouts, bool in_no_slot, uint64_t finished);

/* On the way through the free frames: the next one, how many more are looked at, and whether one was met that was
 * passed by only because its work had not finished. */
struct frame_walk {
    uint32_t at;
    unsigned left;
    bool waits;
};

/** From the oldest on. */
struct frame_walk frames_walk(const struct layouts *layouts);

/** The next one that has been free for all of the decay time, and whose work has finished; 0: none was found. */
uint32_t frames_pick_aged(const struct layouts *layouts, struct frame_walk *walk,
                          uint64_t finished);

/* Out of all slots, which are stale and linked by `next` from the first on. */
struct removed_frame {
    uint64_t page;
    uint32_t slots;
};

/** Takes an idle frame whose work has finished out of its slots, and out of the books. Of those that have aged the next
 * one of the walk. False: there is none. */
bool frames_remove(struct layouts *layouts, enum idle which, struct frame_walk *walk,
                   uint64_t finished, struct removed_frame *removed);

/** A free frame is in use from now on; or free, where `stamp` is of its last work. */
void frame_use(struct layouts *layouts, uint32_t number);
void frame_stop_using(struct layouts *layouts, uint32_t number, uint64_t stamp);

/** Puts a frame that is in use into a slot that has none. */
void frame_enter(struct layouts *layouts, struct window *window, uint32_t i, uint32_t number);

/** The slot has no frame any more. */
void frame_leave(struct layouts *layouts, struct window *window, uint32_t i);

#endif
