#include "pool/mapping.h"

#include "pool/internal.h"
#include "pool/window.h"

static struct slot *slot_at(struct pool *pool, const struct window *window, uint32_t i) {
    return window_slot(&pool->layouts, window, i);
}

/* Slots side by side: everything that is mapped, what is stale of it, or frames that are to be mapped. */
enum run { RUN_MAPPED, RUN_STALE, RUN_UNMAPPED };

static bool is_in_run(const struct slot *slot, enum run run) {
    return run == RUN_UNMAPPED ? !slot->mapped && slot->frame != 0
                               : slot->mapped && (slot->stale || run == RUN_MAPPED);
}

/* How many from `i` on, at most so many. */
static uint32_t run_of(struct pool *pool, const struct window *window, uint32_t i, enum run run,
                       uint32_t most) {
    uint32_t count = 0;
    while (i + count < window->slots && count < most &&
           is_in_run(slot_at(pool, window, i + count), run)) {
        count++;
    }
    return count;
}

/* An extent is unmapped whole: a run has all of it, or nothing. */
static int unmap_runs(struct pool *pool, const struct window *window, enum run run) {
    int r = 0;
    for (uint32_t i = 0, count; i<window->slots; i += count> 0 ? count : 1) {
        count = run_of(pool, window, i, run, UINT32_MAX);
        int kept = count > 0
                       ? pool->backend->ops->unmap(pool->backend, slot_address(window, i), count)
                       : 0;
        for (uint32_t n = 0; n < count; n++) {
            slot_at(pool, window, i + n)->mapped = kept != 0;
        }
        r = kept != 0 ? kept : r;
    }
    return r;
}

bool mappings_drop_all(struct pool *pool, const struct window *window) {
    return unmap_runs(pool, window, RUN_MAPPED) == 0;
}

int mappings_drop_stale(struct pool *pool, const struct window *window) {
    int r = unmap_runs(pool, window, RUN_STALE);
    for (uint32_t i = 0; i < window->slots; i++) {
        struct slot *slot = slot_at(pool, window, i);
        slot->stale = slot->stale && slot->mapped;
    }
    return r;
}

static int map_extent(struct pool *pool, const struct window *window) {
    if (window->extent_slots == 0 || slot_at(pool, window, 0)->mapped) {
        return 0;
    }
    int r = pool->backend->ops->map(pool->backend, window->segment.base, 1, window->extent_slots,
                                    &window->extent);
    for (uint32_t i = 0; i < window->extent_slots; i++) {
        slot_at(pool, window, i)->mapped = r == 0;
    }
    return r;
}

int mappings_make(struct pool *pool, const struct window *window) {
    int r = map_extent(pool, window);
    for (uint32_t i = 0, count; i < window->slots && r == 0; i += count > 0 ? count : 1) {
        uint64_t pages[MAP_BATCH];
        count = run_of(pool, window, i, RUN_UNMAPPED, MAP_BATCH);
        for (uint32_t n = 0; n < count; n++) {
            pages[n] = layouts_frame(&pool->layouts, slot_at(pool, window, i + n)->frame)->page;
        }
        r = count > 0
                ? pool->backend->ops->map(pool->backend, slot_address(window, i), count, 1, pages)
                : 0;
        for (uint32_t n = 0; n < count && r == 0; n++) {
            slot_at(pool, window, i + n)->mapped = true;
        }
    }
    return r;
}
