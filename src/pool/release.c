#include "pool/release.h"

#include "pool/extent.h"
#include "pool/frame.h"
#include "pool/internal.h"
#include "pool/mapping.h"
#include "pool/window.h"

uint64_t release_extent(struct pool *pool, struct window *window) {
    struct backend *backend = pool->backend;
    struct layouts *layouts = &pool->layouts;
    uint32_t slots = window->extent_slots, kept = window->kept;
    bool mapped = window_slot(layouts, window, 0)->mapped;
    uint64_t page = extent_remove(layouts, window), bytes = (uint64_t)slots << PAGE_SHIFT;
    atomic_fetch_add(&pool->leaving_bytes, bytes);
    budget_book_reserve(pool);
    lock_release(&pool->lock);
    bool refused = mapped && backend->ops->unmap(backend, window->segment.base, slots) != 0;
    for (uint32_t i = 0; i < slots; i++) {
        window_slot(layouts, window, i)->mapped = refused;
    }
    if (!refused) {
        backend->ops->give_pages(backend, 1, slots, &page);
    }
    atomic_fetch_sub(&pool->leaving_bytes, bytes);
    lock_acquire(&pool->lock);
    if (refused) {
        extent_enter(layouts, window, page, slots);
        extent_put_back(layouts, window, kept);
        return 0;
    }
    books_add(&pool->books.driver_frees, 1);
    return bytes;
}

static uint64_t release_some_extent(struct pool *pool, enum idle which) {
    struct layouts *layouts = &pool->layouts;
    uint64_t finished = pool->epochs.finished;
    bool waits;
    struct window *window = which == IDLE_AGED   ? extents_pick_aged(layouts, finished, &waits)
                            : which == IDLE_KEPT ? extents_pick_kept(layouts, finished)
                                                 : extents_pick(layouts, finished);
    return window ? release_extent(pool, window) : 0;
}

/* False: the driver has kept it in some slot. */
static bool unmap_frame(struct pool *pool, const struct removed_frame *frame) {
    bool all = true;
    for (uint32_t number = frame->slots, next; number; number = next) {
        struct slot *slot = layouts_slot(&pool->layouts, number);
        uint64_t address = slot_address(slot->window, number - slot->window->first);
        next = slot->next;
        slot->next = 0;
        slot->mapped = slot->stale = pool->backend->ops->unmap(pool->backend, address, 1) != 0;
        all &= !slot->mapped;
    }
    return all;
}

/* How many have gone. */
static uint32_t give_frames(struct pool *pool, const struct removed_frame *frames, uint32_t count) {
    uint64_t pages[MAP_BATCH];
    uint32_t gone = 0;
    for (uint32_t i = 0; i < count; i++) {
        if (unmap_frame(pool, &frames[i])) {
            pages[gone++] = frames[i].page;
        }
    }
    if (gone > 0) {
        pool->backend->ops->give_pages(pool->backend, gone, 1, pages);
    }
    return gone;
}

uint64_t release_some(struct pool *pool, enum idle which, uint64_t bytes) {
    struct layouts *layouts = &pool->layouts;
    struct frame_walk walk = frames_walk(layouts);
    struct removed_frame frames[MAP_BATCH];
    uint32_t count = 0;
    while (count < MAP_BATCH && count * PAGE_BYTES < bytes &&
           frames_remove(layouts, which, &walk, pool->epochs.finished, &frames[count])) {
        count++;
    }
    if (count == 0) {
        return release_some_extent(pool, which);
    }
    atomic_fetch_add(&pool->leaving_bytes, count * PAGE_BYTES);
    budget_book_reserve(pool);
    lock_release(&pool->lock);
    uint32_t gone = give_frames(pool, frames, count);
    atomic_fetch_sub(&pool->leaving_bytes, count * PAGE_BYTES);
    lock_acquire(&pool->lock);
    books_add(&pool->books.driver_frees, gone);
    return count * PAGE_BYTES;
}

/* --- the end --- */

static bool is_mapped(const struct layouts *layouts, const struct frame *frame) {
    uint32_t s = frame->slots;
    while (s && !layouts_slot(layouts, s)->mapped) {
        s = layouts_slot(layouts, s)->next;
    }
    return s != 0;
}

void release_all(struct pool *pool) {
    struct layouts *layouts = &pool->layouts;
    struct backend *backend = pool->backend;
    bool all = true;
    for (struct window *window = layouts->windows; window; window = window->next_of_all) {
        all &= mappings_drop_all(pool, window);
        if (window->extent_slots > 0 && !window_slot(layouts, window, 0)->mapped) {
            backend->ops->give_pages(backend, 1, window->extent_slots, &window->extent);
        }
    }
    for (uint32_t n = 1; n <= layouts->frame_count; n++) {
        const struct frame *frame = layouts_frame(layouts, n);
        if (frame->exists && !is_mapped(layouts, frame)) {
            backend->ops->give_pages(backend, 1, 1, &frame->page);
        }
    }
    for (const struct space *space = all ? layouts->spaces : NULL; space; space = space->next) {
        backend->ops->give_addresses(backend, space->base, space->bytes);
    }
    layouts_forget(layouts);
}
