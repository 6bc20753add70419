/*
 * The source of blocks: pages for small ones, the arena for large ones, and the segments of both, which
 * come from the backend and go back to it.
 *
 * Taking and giving never wait. The lock is dropped around a growth, and around giving back where that
 * waits.
 */
#include "pool/internal.h"

#include "memory/page_map.h"
#include "process/nap.h"

#include <errno.h>

/* --- blocks --- */

/*
 * The unit that a page keeps back (page.h) takes a whole block out of the few large ones that fit there.
 * That is borne for little memory only, and where it takes half a page not near the budget.
 */
static bool take_small(struct pool *pool, struct want *want) {
    bool half = want->bytes == SMALL_MAX_BYTES && pool->config.budget == 0 &&
                !budget_has_room(pool, PAGE_BYTES);
    bool dear = want->bytes > STARTS_LEAST && pool->small.reserved_bytes > STARTS_BYTES;
    bool any = want->any || dear || half;
    want->block = runs_take(&pool->runs, (unsigned)(want->bytes >> UNIT_SHIFT), want->bin, any);
    return want->block != NULL;
}

static bool take_large(struct pool *pool, struct want *want) {
    want->splits = pool->large.in_line && want->care != ARENA_ALL &&
                   arena_pinned_by(&pool->large, want->bytes, pool->epochs.finished);
    if (want->splits) {
        return false;
    }
    struct range *range = arena_take(&pool->large, want->bytes, want->care);
    if (range) {
        page_map_set_start(range->block.address, range);
        want->block = &range->block;
    }
    return range != NULL;
}

/* 2 MiB for small blocks. */
static struct range *take_page(struct pool *pool) {
    return arena_take(&pool->small, PAGE_BYTES, ARENA_ALL);
}

bool source_take(struct pool *pool, struct want *want) {
    pending_take_usable(pool);
    if (want->large) {
        return take_large(pool, want);
    }
    if (take_small(pool, want)) {
        return true;
    }
    struct range *range = take_page(pool);
    if (!range) {
        return false;
    }
    block_become(&range->block, BLOCK_PAGE);
    if (runs_add_page(&pool->runs, range, range->block.address) != 0) {
        arena_give(&pool->small, range);
        return false;
    }
    return take_small(pool, want);
}

/* The segment may go back to the driver when the epoch of all that is free in it has finished. One that
 * nobody knows is at the latest that of what has just become usable. */
static void give_range(struct pool *pool, struct arena *arena, struct range *range,
                       uint64_t stamp) {
    uint64_t tick = pool->decay.tick;
    stamp = stamp > 0 ? stamp : atomic_load_explicit(&pool->epochs.usable, memory_order_relaxed);
    for (struct segment *s = range->segment; s; s = range_next_segment(range, s)) {
        s->stamp = most_of(stamp, s->stamp);
        s->since =
            (int64_t)(tick - s->since) > 0 ? tick : s->since; /* what was pending may be older */
    }
    arena_give(arena, range);
}

void source_give(struct pool *pool, struct block *block) {
    if (block_is_large(block)) {
        give_range(pool, &pool->large, range_of(block), block->stamp);
        return;
    }
    struct range *emptied = runs_give(&pool->runs, block);
    if (emptied) {
        give_range(pool, &pool->small, emptied, 0);
    }
}

/* --- giving back --- */

static int give_back(struct pool *pool, uint64_t base, uint64_t bytes) {
    struct backend *backend = pool->backend;
    if (!backend->release_waits) {
        return backend->ops->release(backend, base, bytes);
    }
    pool->waiting++;
    lock_release(&pool->lock);
    int r = backend->ops->release(backend, base, bytes);
    lock_acquire(&pool->lock);
    pool->waiting--;
    return r;
}

/* Its bytes, or 0: the driver has not taken it, or the context has ended meanwhile. */
static uint64_t release_segment(struct pool *pool, struct arena *arena, struct segment *segment) {
    uint64_t base = segment->base, size = segment->bytes, since = segment->since;
    uint64_t lives = pool_lives(pool);
    bool reached = segment->reached_from_outside;
    arena_remove(arena, segment); /* all of a range */
    int r = give_back(pool, base, size);
    if (lives != pool_lives(pool)) {
        if (r != 0) {
            pool->backend->ops->lose(pool->backend, size);
        }
        return 0;
    }
    if (r != 0) {
        struct segment *kept = arena_add(arena, base, size, NULL) == 0 ? arena->segments : NULL;
        if (kept) {
            kept->reached_from_outside = reached;
            kept->since = since;
        }
        return 0;
    }
    pool->returning += size;
    books_add(&pool->books.driver_frees, 1);
    budget_book_reserve(pool); /* a growth in the same visit would hide it */
    return size;
}

/* Bytes given back: one segment, or 0. Where that waits for the device, only if it is idle: nothing but
 * what another thread submits at that very moment is then waited for (Known gaps in docs/design.md). While the
 * context may be ending none: nothing would be taken, and its addresses may be another one's by then. */
static uint64_t release_one(struct pool *pool, struct arena *arena, uint64_t bytes) {
    if (arena->idle_bytes == 0 || pool->backend->quiet ||
        (pool->backend->release_waits && !order_is_idle(pool))) {
        return 0;
    }
    struct segment *segment = idle_segment(arena, bytes, pool->epochs.finished);
    return segment ? release_segment(pool, arena, segment) : 0;
}

uint64_t source_decay(struct pool *pool) {
    struct arena *arena;
    bool waits;
    struct segment *aged = pool->backend->quiet ? NULL : source_aged(pool, &arena, &waits);
    return aged ? release_segment(pool, arena, aged) : 0;
}

int source_release_idle(struct pool *pool, uint64_t bytes) {
    uint64_t released = 0;
    if (backend_maps(pool->backend)) {
        released = mapper_release(pool, bytes);
    }
    while (released < bytes && !backend_maps(pool->backend)) {
        uint64_t one = release_one(pool, &pool->large, bytes - released);
        one = one > 0 ? one : release_one(pool, &pool->small, bytes - released);
        if (one == 0) {
            break;
        }
        released += one;
    }
    return released > 0 ? 0 : source_idle(pool) > 0 ? -EBUSY : -ENOENT;
}

/* By counting, not by the clock, which may stand still. */
void source_wait_for_return(struct pool *pool, uint64_t limit_ns) {
    uint64_t waited = 0;
    unsigned unanswered = 0;
    int r = pool->backend->ops->returned(pool->backend);
    while ((r == -EAGAIN ||
            (r == -EBUSY && (pool->backend->quiet || unanswered++ < UNANSWERED_MOST))) &&
           waited < limit_ns) {
        lock_release(&pool->lock);
        nap(RETURN_POLL_NS);
        lock_acquire(&pool->lock);
        waited += RETURN_POLL_NS;
        r = pool->backend->ops->returned(pool->backend);
    }
    if (r == 0) {
        pool->returning = 0; /* the driver has said that it has it */
    }
}

/* --- growing --- */

uint64_t source_growth(const struct want *want) {
    return want->large ? round_up(want->bytes, PAGE_BYTES) : PAGE_BYTES;
}

/*
 * Blocks share a segment in a whole number of the size that is asked for. With the unit that the first one
 * leaves (arena.h) none takes more of it than a segment of its own would be rounded up to. So to the brim of
 * the device as many fit as natively, and what fills a segment gets one of its own. Pages never share one:
 * a block that lives on holds up nothing but its own page, as natively.
 */
static uint64_t good_growth(const struct pool *pool, const struct want *want) {
    uint64_t least = source_growth(want);
    if (!want->large || want->bytes == least) {
        return least;
    }
    uint64_t most = least_of(pool->backend->capacity / SEGMENT_STEP_SHARE, SEGMENT_STEP_MAX);
    uint64_t step = least_of(pool->large.reserved_bytes / SEGMENT_STEP_PART, most);
    uint64_t blocks = step > want->bytes ? (step + want->bytes - 1) / want->bytes : 1;
    return round_up(blocks * want->bytes + LARGE_UNIT, PAGE_BYTES);
}

/* One reserve() of the backend, without the lock. */
static int grow_by(struct pool *pool, struct arena *arena, uint64_t bytes) {
    uint64_t base = 0, lives = pool_lives(pool);
    struct backend *backend = pool->backend;
    pool->growing += bytes;
    budget_begin_growth(pool);
    lock_release(&pool->lock);
    int r = backend->ops->reserve(backend, bytes, &base);
    lock_acquire(&pool->lock);
    if (r == 0 && lives != pool_lives(pool)) {
        backend->ops->lose(backend, bytes); /* the context ended meanwhile */
        r = -ENOMEM;
    } else if (r == 0) {
        r = base & (PAGE_BYTES - 1) ? -ERANGE : arena_add(arena, base, bytes, NULL);
        pool->unmanageable |= r == -ERANGE;
        if (r != 0) {
            give_back(pool, base, bytes);
            r = -ERANGE;
        }
    }
    pool->growing -= bytes;
    budget_end_growth(pool, false);
    if (r == 0) {
        books_add(&pool->books.driver_allocs, 1);
    }
    return r;
}

bool source_refused(int r) {
    return r == -ENOMEM || r == -EDQUOT;
}

/*
 * Host memory for what the growth and the request will need. It is asked for before the driver is, because
 * giving a segment back can wait for the device.
 */
static bool has_descriptors(struct pool *pool, const struct want *want) {
    struct arena *arena = want->large ? &pool->large : &pool->small;
    return arena_prepare(arena, 1) && page_map_spare() &&
           (want->large || runs_prepare(&pool->runs));
}

int source_grow(struct pool *pool, const struct want *want) {
    if (pool->unmanageable || !has_descriptors(pool, want)) {
        return -ERANGE;
    }
    struct arena *arena = want->large ? &pool->large : &pool->small;
    if (backend_maps(pool->backend)) {
        return mapper_grow(pool, arena, want->large ? want->bytes : PAGE_BYTES);
    }
    uint64_t good = good_growth(pool, want), least = source_growth(want);
    int r = grow_by(pool, arena, good);
    if (source_refused(r) && pool->returning > 0) {
        source_wait_for_return(pool, RETURN_WAIT_NS);
        r = grow_by(pool, arena, good);
    }
    if (source_refused(r) && good > least) {
        r = grow_by(pool, arena, least);
    }
    return r;
}
