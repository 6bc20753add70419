/*
 * The mapper: whoever asks the driver to map, unmap, make or take back pages, one thread at a time.
 *
 * Its lock is taken before the pool's, and that is dropped around every call of the driver. What the calls are
 * about has been booked before: nobody else takes a window that is being mapped, or a frame that is to lie in it,
 * and slots that are being emptied have no frame, so that whoever wants one there has to be the mapper first.
 */
#include "pool/internal.h"

#include "pool/extent.h"
#include "pool/frame.h"
#include "pool/mapping.h"
#include "pool/release.h"
#include "pool/window.h"

#include <errno.h>

/* Without the pool's lock, which a look at the open files is too long for. So between this answer and the first page
 * that is picked another thread could open a device, register a block through it, and free that: but the former takes
 * the other one milliseconds, and this one at most the wait for the lock. */
static bool is_frozen(struct pool *pool) {
    const struct backend_ops *ops = pool->backend->ops;
    return ops->frozen && ops->frozen(pool->backend);
}

static void enter(struct pool *pool) {
    lock_release(&pool->lock);
    lock_acquire(&pool->mapper);
    bool frozen = is_frozen(pool); /* as it is now, not before a wait for the lock */
    lock_acquire(&pool->lock);
    pool->layouts.frozen = frozen;
}

static void leave(struct pool *pool) {
    lock_release(&pool->mapper);
}

/* --- new pages --- */

static int look_for_pages(struct pool *pool, uint32_t count) {
    struct backend *backend = pool->backend;
    int r = 0;
    if (count > 1 && backend->ops->look_for_pages) {
        lock_release(&pool->lock);
        r = backend->ops->look_for_pages(backend, count);
        lock_acquire(&pool->lock);
    }
    return r;
}

static int take_pages(struct pool *pool, uint32_t count, uint32_t length, uint64_t *pages) {
    uint64_t bytes = (uint64_t)count * length * PAGE_BYTES;
    pool->growing += bytes;
    lock_release(&pool->lock);
    int r = pool->backend->ops->take_pages(pool->backend, count, length, pages);
    bool frozen = is_frozen(pool); /* that may have taken long */
    lock_acquire(&pool->lock);
    pool->layouts.frozen |= frozen;
    pool->growing -= bytes;
    books_add(&pool->books.driver_allocs, r == 0 ? count : 0);
    return r;
}

/* Takes so many pages from the driver, as free frames. */
static int make_frames(struct pool *pool, uint32_t count) {
    int r = look_for_pages(pool, count);
    for (uint32_t batch; count > 0 && r == 0; count -= batch) {
        uint64_t pages[MAP_BATCH];
        batch = count < MAP_BATCH ? count : MAP_BATCH;
        if (!frames_prepare(&pool->layouts, batch)) {
            return -ERANGE;
        }
        r = take_pages(pool, batch, 1, pages);
        for (uint32_t i = 0; i < batch && r == 0; i++) {
            frames_add(&pool->layouts, pages[i]);
        }
    }
    return r;
}

/* True: the window has all that it lacked, in one piece. Where the driver has none so large it may have pages. */
static bool make_extent(struct pool *pool, struct window *window, uint32_t slots) {
    uint64_t page, peak = books_get(&pool->books.reserved.peak);
    bool made = slots == window->used && extents_wanted(&pool->layouts, slots, peak) &&
                take_pages(pool, 1, slots, &page) == 0;
    if (made) {
        extent_enter(&pool->layouts, window, page, slots);
    }
    return made;
}

/* So many new frames may be made before idle ones are taken. */
static uint32_t frames_allowed(const struct pool *pool) {
    uint64_t budget = atomic_load_explicit(&pool->budget, memory_order_relaxed);
    uint64_t expected = budget_expected(pool);
    return budget > expected ? (uint32_t)((budget - expected) >> PAGE_SHIFT) : 0;
}

/* Frozen, what lies idle elsewhere is of use only to the driver. */
static void make_room(struct pool *pool, uint32_t frames) {
    uint64_t bytes = (uint64_t)frames << PAGE_SHIFT, some = bytes;
    while (pool->layouts.frozen && bytes > 0 && some > 0) {
        some = release_some(pool, IDLE_FREE, bytes);
        bytes -= some < bytes ? some : bytes;
    }
}

/* What an extent has goes to the driver, for pages that take its place under the budget. -ENOENT: there is none that
 * has been free for longer than any frame. */
static int dissolve_older(struct pool *pool, uint32_t lacking) {
    struct window *window = extents_pick_older(&pool->layouts, pool->epochs.finished);
    if (!window || release_extent(pool, window) == 0) {
        return -ENOENT;
    }
    pool->layouts.dissolved = true;
    uint32_t more = frames_allowed(pool);
    return make_frames(pool, more < lacking ? more : lacking) == -ERANGE ? -ERANGE : 0;
}

/* Whether hardly anything of what a block lacks could come from what lies idle. */
static bool is_growth(struct pool *pool, uint32_t lacking, uint32_t allowed) {
    uint32_t idle = frames_count_finished(&pool->layouts, pool->epochs.finished, lacking);
    idle += extents_count_finished(&pool->layouts, pool->epochs.finished);
    return allowed >= lacking || idle <= (lacking - allowed) / EXTENT_IDLE_SHARE;
}

/* Under the budget every slot gets a new frame, or a window that has nothing an extent. Over it, or where the driver has
 * fewer than that, one that lies idle and has finished; a new one only where there is none. */
static int fill(struct pool *pool, struct window *window, uint32_t lacking) {
    struct layouts *layouts = &pool->layouts;
    uint32_t more = frames_allowed(pool);
    if (is_growth(pool, lacking, more) && make_extent(pool, window, lacking)) {
        return 0;
    }
    more = more < lacking ? more : lacking;
    make_frames(pool, more);
    int r = 0;
    for (uint32_t i = 0; r == 0 && (i = layouts_next_lacking(layouts, window, i)) != UINT32_MAX;) {
        int dissolved = dissolve_older(pool, lacking);
        if (dissolved != -ENOENT) {
            r = dissolved;
        } else if (layouts_fill(layouts, window, i, pool->epochs.finished)) {
            lacking--;
            layouts->mapped_anew += more == 0;
            more -= more > 0;
        } else {
            make_room(pool, lacking);
            r = make_frames(pool, lacking);
        }
    }
    return r;
}

/* --- windows --- */

/* Addresses for windows: several times what the device has, if there are as many. */
static bool take_space(struct pool *pool, uint32_t slots) {
    struct backend *backend = pool->backend;
    uint64_t least = (uint64_t)layouts_window_slots(slots) << PAGE_SHIFT, base;
    uint64_t bytes = (backend->capacity & ~(PAGE_BYTES - 1)) * SPACE_TIMES;
    int r;
    lock_release(&pool->lock);
    bytes = bytes > least ? bytes : least;
    while ((r = backend->ops->take_addresses(backend, bytes, &base)) != 0 && bytes > least) {
        bytes = bytes / 2 & ~(PAGE_BYTES - 1);
        bytes = bytes > least ? bytes : least;
    }
    lock_acquire(&pool->lock);
    if (r == 0 && !layouts_add_space(&pool->layouts, base, bytes)) {
        backend->ops->give_addresses(backend, base, bytes);
        r = -ENOMEM;
    }
    return r == 0;
}

static struct window *choose(struct pool *pool, uint32_t slots, uint32_t *lacking) {
    struct layouts *layouts = &pool->layouts;
    struct window *window = layouts_choose(layouts, slots, false, pool->epochs.finished, lacking);
    if (!window) {
        *lacking = slots;
        window = layouts_open(layouts, slots);
    }
    if (!window && take_space(pool, slots)) {
        window = layouts_open(layouts, slots);
    }
    return window ? window : layouts_choose(layouts, slots, true, pool->epochs.finished, lacking);
}

static int map_window(struct pool *pool, uint32_t slots) {
    uint32_t lacking;
    struct window *window = choose(pool, slots, &lacking);
    if (!window) {
        return -ERANGE;
    }
    uint64_t before = pool->layouts.reserved_bytes;
    int r = fill(pool, window, lacking);
    lock_release(&pool->lock);
    int kept = mappings_drop_stale(pool, window);
    if (r == 0 && (kept != 0 || mappings_make(pool, window) != 0)) {
        r = -ERANGE;
    }
    lock_acquire(&pool->lock);
    if (window->extent_slots > 0 && !window_slot(&pool->layouts, window, 0)->mapped) {
        release_extent(pool, window);
    }
    layouts_put_back(&pool->layouts, window); /* free, and without conflicts if it is mapped */
    while (r != 0 && pool->layouts.reserved_bytes > before &&
           release_some(pool, IDLE_FREE, pool->layouts.reserved_bytes - before) > 0) {
    } /* what was made for it is of no use: others may have some */
    return r;
}

/* The epoch that has to finish for so many slots of what is free to have, those first that an event is about anyway. */
static uint64_t free_stamp(const struct layouts *layouts, uint32_t slots) {
    uint64_t frames = frames_stamp(layouts, slots), extents = extents_stamp(layouts, slots);
    uint64_t all = (uint64_t)frames_count_finished(layouts, UINT64_MAX, slots);
    return all < slots && extents > frames ? extents : frames;
}

/* Frames that lie idle behind a barrier are waited for rather than that the pool grows past its budget; those
 * that the window has already are among them. Not for what could not be had then either. */
static void wait_for_frames(struct pool *pool, uint32_t slots) {
    struct epochs *epochs = &pool->epochs;
    struct layouts *layouts = &pool->layouts;
    if (layouts->frozen ||
        layouts_lacking(layouts, slots, epochs->finished) <= frames_allowed(pool)) {
        return;
    }
    epochs_poll(epochs, pool->backend);
    uint64_t stamp = free_stamp(layouts, slots), bytes = (uint64_t)slots << PAGE_SHIFT;
    uint32_t ready = frames_count_finished(layouts, epochs->finished, slots);
    bool late = ready + extents_count_finished(layouts, epochs->finished) < slots;
    if (!late || stamp <= epochs->finished) {
        return;
    }
    uint64_t others = 0, room = bytes > layouts->free_bytes ? budget_room(pool, &others) : 0;
    if (bytes <= layouts->free_bytes + room + others) {
        order_finish_stamp(pool, stamp);
    }
}

int mapper_grow(struct pool *pool, uint32_t slots) {
    uint64_t lives = pool_lives(pool);
    int r = 0;
    wait_for_frames(pool, slots);
    budget_begin_growth(pool);
    enter(pool);
    if (lives != pool_lives(pool)) {
        r = -ENOMEM;
    } else if (layouts_lacking(&pool->layouts, slots, 0) > 0) { /* nobody else has brought one */
        r = map_window(pool, slots);
    }
    leave(pool);
    budget_end_growth(pool, r != 0 && slots > 1); /* it may have had some of them */
    return r;
}

/* --- for the others --- */

uint64_t mapper_release(struct pool *pool, enum idle which, uint64_t bytes) {
    uint64_t released = 0, some = 1;
    enter(pool);
    while (released < bytes && some > 0) {
        some = release_some(pool, which, bytes - released);
        released += some;
    }
    leave(pool);
    return released;
}

uint64_t mapper_decay(struct pool *pool) {
    enter(pool);
    uint64_t released = pool->layouts.frozen ? 0 : release_some(pool, IDLE_AGED, UINT64_MAX);
    leave(pool);
    return released;
}
