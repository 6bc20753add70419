/*
 * Layouts: large blocks in windows of their own, over frames that are taken from anywhere.
 *
 *      windows (addresses)     [ a0 a1 a2 a3 ]   [ b0 b1 b2 ]   [ c0 ]        slots of 2 MiB
 *                                 |  |  |  |        |  |  |        |
 *      frames (memory)            f0 f1 f2 f3       f4 f1 f5       f3         a frame may lie in many slots
 *
 * A window is never cut and never merged, and keeps its mappings when its block is freed. Its first slots may have an
 * extent (extent.h) instead of frames. A frame is in use by one block at most, whatever slots it is mapped in. Conflicts of
 * a free window are slots whose frame is in use elsewhere, or that have none. A request takes
 *
 *      the window that it had the last time around (recall.h), if that has no conflicts
 *      else the first one that has none; both are served at once
 *      else that with the fewest: those slots, and only those, are mapped anew. But what other requests had lately
 *      is theirs: it is left to them where much would be mapped anew, and the request gets a new window
 *
 * Programs repeat themselves: after a few periods each request has a window without conflicts. The frame that has
 * been free for the longest is put into a slot: who had it before comes back the latest, as with a stack.
 *
 * When may what be touched?
 *
 *      a frame, in the slot where it lies        when what freed it is usable (epoch.h), as everywhere
 *      a frame, mapped in another slot           when that has finished: nothing orders the mapping
 *      a slot, mapped anew                       when all work of its window has finished, which may still
 *                                                reach the old frame through it
 *      a frame that lies idle, unmapped          when what freed it has finished: whoever had it before in
 *                                                any slot has finished then, too
 *
 * Frozen, no frame that is mapped gets another slot, and no slot another frame: requests get windows that are whole,
 * or new ones, over frames that lie nowhere.
 *
 * This file keeps the books; mapper.c, mapping.c and release.c make the calls. Under the pool's lock; what is mapped where
 * changes only by the one thread that holds the mapper's lock as well.
 */
#ifndef GPUCACHE_POOL_LAYOUT_H
#define GPUCACHE_POOL_LAYOUT_H

#include "pool/arena.h"
#include "pool/host.h"
#include "pool/page_map.h"
#include "pool/recall.h"

#include <stdbool.h>
#include <stdint.h>

#define WINDOW_CLASSES 256

struct window {
    struct range range;     /* first; its bytes are those of the block, in whole slots */
    struct segment segment; /* of that range alone: all of the window */
    uint32_t first, slots;  /* the number of its first slot, and how many */
    uint32_t used;          /* in use by its block: the first so many */
    uint32_t kept; /* so many frames stay its own when it is free: something outside reaches them */
    uint32_t conflicts;    /* slots without a frame, or whose frame is in use */
    uint32_t mapped_anew;  /* slots that had a frame, since it is recalled */
    uint32_t extent_slots; /* the first so many have an extent (extent.h); 0: none */
    uint64_t extent;       /* the backend's page for it */
    uint16_t extent_since; /* free: the tick then, modulo 2^16 */
    struct window *older_extent, *newer_extent; /* free: in their list */
    uint64_t taken;                             /* last: its number in recall.h; 0: not there */
    struct window *next, *previous;             /* free ones of its class */
    struct window *older, *newer;               /* of its class, free or not */
    struct window *next_of_all;
};

struct slot {
    struct window *window;
    uint32_t frame;          /* 0: none */
    uint32_t next, previous; /* of the same frame; 0: none */
    bool mapped;             /* something lies there, as the driver knows it: */
    bool stale;              /* what was there before `frame`, and has to go */
};

struct frame {
    uint64_t page;  /* the backend's */
    uint64_t stamp; /* free: when this epoch has finished, so has all work that touched it */
    uint32_t slots; /* the first that it lies in; 0: none */
    uint32_t next, previous; /* free: in their list */
    uint16_t since;          /* free: the tick then, modulo 2^16 */
    bool in_use, exists;
};

/* What is in no block: free, free for all of the decay time, or kept, because something outside the pool reaches it. */
enum idle { IDLE_FREE, IDLE_AGED, IDLE_KEPT };

/* Addresses from the driver, given to windows from the lowest on. */
struct space {
    uint64_t base, bytes, used;
    struct space *next;
};

struct layouts {
    struct pool *pool;
    struct host_table slots, frames;
    uint32_t slot_count, frame_count; /* numbers given so far, from 1 on */
    struct host_slab window_slab, space_slab;
    struct window *windows; /* all */
    struct window *newest[WINDOW_CLASSES];
    struct window *free[WINDOW_CLASSES], *last_free[WINDOW_CLASSES];
    uint64_t classes[WINDOW_CLASSES / 64];        /* which of them have any */
    uint32_t oldest_frame, newest_frame;          /* of the free ones, about by stamp */
    struct window *oldest_extent, *newest_extent; /* of those that are free, in this order */
    bool dissolved;                               /* one was, for memory elsewhere */
    bool frozen;                                  /* somebody outside may know what lies where */
    uint64_t tick;   /* of the clock that tells how long something has been free (decay.c) */
    uint32_t absent; /* numbers of frames that do not exist any more, linked by `next` */
    struct space *spaces;
    struct recall recall; /* of blocks of two slots and more: smaller ones are cached by threads */
    uint64_t reserved_bytes, free_bytes; /* of all frames and extents; of the free ones; */
    uint64_t kept_bytes;                 /* and of those that are kept, and in no block */
    uint64_t asked;                      /* slots handed out since the budget has looked at this; */
    uint64_t mapped_anew;                /* and how many have got a frame that was there before */
};

void layouts_start(struct layouts *layouts, struct pool *pool);

static inline struct window *window_of(struct range *range) {
    return (struct window *)range;
}

/** Whether the range is all of a window. */
static inline bool range_is_window(const struct range *range) {
    return range->segment->is_window;
}

static inline uint32_t layouts_slots(uint64_t bytes) {
    return (uint32_t)((bytes + PAGE_BYTES - 1) >> PAGE_SHIFT);
}

static inline struct slot *layouts_slot(const struct layouts *layouts, uint32_t number) {
    return host_table_at(&layouts->slots, number);
}

static inline struct frame *layouts_frame(const struct layouts *layouts, uint32_t number) {
    return host_table_at(&layouts->frames, number);
}

static inline uint64_t slot_address(const struct window *window, uint32_t i) {
    return window->segment.base + ((uint64_t)i << PAGE_SHIFT);
}

/** A free window without a conflict for so many slots: its block is BLOCK_CACHED, usable. NULL: there is none. */
struct range *layouts_take(struct layouts *layouts, uint32_t slots);

/** The epoch that makes the window usable which the recall expects for such a request; 0: no block in one waits
 * for any. */
uint64_t layouts_expected_stamp(const struct layouts *layouts, uint32_t slots);

/** Takes the free window with the fewest conflicts all of whose work has finished; its conflicting slots are
 * stale and have no frame. NULL: there is none, not even a shorter one; or none that is better than a new one, unless
 * it is to be `any`. Their number in *lacking. */
struct window *layouts_choose(struct layouts *layouts, uint32_t slots, bool any, uint64_t finished,
                              uint32_t *lacking);

/** The same with a new window at the end of the newest space. NULL: it does not fit there, or no host memory. */
struct window *layouts_open(struct layouts *layouts, uint32_t slots);

/** How long a window for so many slots is. */
uint32_t layouts_window_slots(uint32_t slots);

/** New addresses for windows. False: no host memory. */
bool layouts_add_space(struct layouts *layouts, uint64_t base, uint64_t bytes);

/** The next stale slot from `from` on of a window that is taken, without a frame; UINT32_MAX: none. */
uint32_t layouts_next_lacking(const struct layouts *layouts, const struct window *window,
                              uint32_t from);

/** Puts a free frame whose work has finished into a slot, the one that is free for the longest. Others of the
 * window that had it become stale. False: there is none. */
bool layouts_fill(struct layouts *layouts, struct window *window, uint32_t i, uint64_t finished);

/** The window is free again, with those of its frames that are mapped. Nothing else of it is, but for what the driver
 * has kept: that stays stale, without a frame. */
void layouts_put_back(struct layouts *layouts, struct window *window);

/** A window that is free again; its frames are, too. `stamp` as in struct frame. */
void layouts_give(struct layouts *layouts, struct range *range, uint64_t stamp);

/** How many frames layouts_choose() would find lacking. */
uint32_t layouts_lacking(const struct layouts *layouts, uint32_t slots, uint64_t finished);

/** The context is gone: nobody finds any of it from now on. */
void layouts_leave_map(struct layouts *layouts);

/** After that, and after everything was unmapped and given back: forgets everything. */
void layouts_forget(struct layouts *layouts);

#endif
