/*
 * Reserves segments for a pool, within the budget if possible, and releases them whole (segments
 * backend).
 *
 * The pool's lock is held on entry to every function. It is released around every reservation,
 * around a release that waits (release_waits), and around every wait. The context may end while the
 * lock is released. Invariant: the arenas then get no segment of the ended context, because
 * release_segment() and grow_by() compare source_generation() before and after. Callers, through
 * segments_policy: slow_path.c, out_of_memory.c, decay.c, pool.c and source.c.
 */
#include "base/clock.h"
#include "heap/page_map.h"
#include "policy/budget.h"
#include "sync/pending.h"
#include "sync/sync.h"

#include <errno.h>

/* --- release --- */

/* Gives a segment back to the driver. Releases the lock if the call waits. Returns as release(). */
static int free_segment(struct source *source, uint64_t base, uint64_t bytes) {
    ASSERT_HELD(&source->lock);
    struct backend *backend = source->backend;
    if (!backend->release_waits)
        return backend->ops->release(backend, base, bytes);
    source->waits.inside++;
    lock_release(&source->lock);
    int r = backend->ops->release(backend, base, bytes);
    lock_acquire(&source->lock);
    source->waits.inside--;
    return r;
}

/* Releases an idle segment. Returns its bytes; or 0 if the driver did not take it, or if the
 * context has ended during the call. */
static uint64_t release_segment(struct source *source, struct arena *arena,
                                struct segment *segment) {
    uint64_t base = segment->base, size = segment->bytes, since = segment->since;
    uint64_t generation = source_generation(source);
    bool visible = segment->externally_visible;
    arena_remove(arena, segment); /* succeeds: the segment is one range */
    int r = free_segment(source, base, size);
    if (generation != source_generation(source)) {
        if (r != 0)
            source->backend->ops->forget_reserve(source->backend, size);
        return 0;
    }
    if (r != 0) {
        struct segment *kept = arena_add(arena, base, size, NULL) == 0 ? arena->segments : NULL;
        if (kept) {
            kept->externally_visible = visible;
            kept->since = since;
        }
        return 0;
    }
    source->returning_bytes += size;
    counter_add(&source->counters.driver_frees, 1);
    budget_count_reserve(source); /* before a growth in the same slow path hides the release */
    return size;
}

/*
 * Releases one idle segment, chosen by idle_segment() for `bytes`. Returns its bytes, or 0.
 *
 * With `release_waits`, releases only while the device is idle. The release then waits only for
 * work that another thread submits during the call (docs/design/known-gaps.md). A suspended backend
 * releases nothing: the driver would refuse, and another context may have the addresses.
 */
static uint64_t release_one(struct source *source, struct arena *arena, uint64_t bytes) {
    if (arena->idle_bytes == 0 || source->backend->suspended ||
        (source->backend->release_waits && !sync_work_is_done(source)))
        return 0;
    struct segment *segment = idle_segment(arena, bytes, source->epochs.finished);
    return segment ? release_segment(source, arena, segment) : 0;
}

/* Never called with `release_waits` (decay_is_any()). */
static uint64_t decay_one(struct source *source) {
    struct arena *arena;
    bool waits;
    struct segment *aged = source->backend->suspended ? NULL : source_aged(source, &arena, &waits);
    return aged ? release_segment(source, arena, aged) : 0;
}

static uint64_t release_idle(struct source *source, uint64_t bytes) {
    uint64_t released = 0;
    while (released < bytes) {
        uint64_t more = release_one(source, &source->large, bytes - released);
        more = more > 0 ? more : release_one(source, &source->small, bytes - released);
        if (more == 0)
            break;
        released += more;
    }
    return released;
}

/* Waits until the driver has all returning memory, for at most `limit_ns`. Sums the sleeps instead
 * of reading the clock: the clock of a backend may stand still. */
static void wait_for_return(struct source *source, uint64_t limit_ns) {
    ASSERT_HELD(&source->lock);
    uint64_t waited = 0;
    unsigned failed_queries = 0;
    int r = source->backend->ops->returned(source->backend);
    while ((r == -EAGAIN ||
            (r == -EBUSY && (source->backend->suspended || failed_queries++ < QUERIES_MOST))) &&
           waited < limit_ns) {
        lock_release(&source->lock);
        sleep_ns(POLL_NS);
        lock_acquire(&source->lock);
        waited += POLL_NS;
        r = source->backend->ops->returned(source->backend);
    }
    if (r == 0)
        source->returning_bytes = 0;
}

/* --- growth --- */

/*
 * Returns the bytes to grow by:
 *
 *      slab                          2 MiB: one live block keeps no more, as without the library
 *      large, a multiple of 2 MiB    the request's bytes
 *      large, any other size         such blocks for 1/SEGMENT_STEP_PART of the arena, but for at
 *                                    most SEGMENT_STEP_MAX, at least one block; and LARGE_UNIT;
 *                                    rounded up to 2 MiB
 *
 * LARGE_UNIT keeps the first block away from the segment's base (arena.h). A block takes no more
 * memory in a shared segment than in a segment of its own, which is rounded up to 2 MiB. As many
 * blocks therefore fit on the device as without the library.
 */
static uint64_t preferred_growth(const struct source *source, const struct alloc_request *request) {
    uint64_t least = source_growth(request);
    if (!request->large || request->bytes == least)
        return least;
    uint64_t most = SEGMENT_STEP_MAX;
    uint64_t step = min_u64(source->large.reserved_bytes / SEGMENT_STEP_PART, most);
    uint64_t blocks = step > request->bytes && !is_ablated(ABLATION_STEPS)
                          ? (step + request->bytes - 1) / request->bytes
                          : 1;
    return round_up(blocks * request->bytes + LARGE_UNIT, PAGE_BYTES);
}

/* Reserves one segment. Releases the lock around the call. Returns as memory_policy.grow(). */
static int grow_by(struct source *source, struct arena *arena, uint64_t bytes) {
    uint64_t base = 0, generation = source_generation(source);
    struct backend *backend = source->backend;
    if (!source_begin_growth(source))
        return -ERANGE;
    source->growing.bytes += bytes;
    lock_release(&source->lock);
    int r = backend->ops->reserve(backend, bytes, &base);
    lock_acquire(&source->lock);
    if (r == 0 && generation != source_generation(source)) {
        backend->ops->forget_reserve(backend, bytes); /* the context has ended during the call */
        r = -ENOMEM;
    } else if (r == 0) {
        r = base & (PAGE_BYTES - 1) ? -ERANGE : arena_add(arena, base, bytes, NULL);
        source->unmanageable |= r == -ERANGE;
        if (r == 0) {
            arena->segments->since = source->decay.tick; /* the new segment is the first one */
        } else {
            free_segment(source, base, bytes);
            r = -ERANGE;
        }
    }
    source->growing.bytes -= bytes;
    source_end_growth(source, false);
    if (r == 0)
        counter_add(&source->counters.driver_allocs, 1);
    return r;
}

static int grow_by_segment(struct source *source, const struct alloc_request *request) {
    if (!source_can_grow(source, request))
        return -ERANGE;
    struct arena *arena = source_arena(source, request);
    uint64_t preferred = preferred_growth(source, request), least = source_growth(request);
    int r = grow_by(source, arena, preferred);
    if (source_refused(r) && source->returning_bytes > 0) {
        wait_for_return(source, RETURN_WAIT_NS);
        r = grow_by(source, arena, preferred);
    }
    if (source_refused(r) && preferred > least)
        r = grow_by(source, arena, least);
    return r;
}

/* --- growth within the budget --- */

/*
 * Returns the bytes up to which the reserve may grow while some of it is idle: RESERVE_TENTHS
 * tenths of the peak of live memory, or the budget if that is more. The growth may raise the peak.
 */
static uint64_t reserve_bound(const struct source *source, uint64_t growth) {
    uint64_t in_use = /* neither free nor pending */
        source_reserved_soon(source) - source_free(source) - source->pending_bytes;
    uint64_t peak = max_u64(counter_get(&source->counters.allocated.peak), in_use + growth);
    uint64_t budget = atomic_load_explicit(&source->budget, memory_order_relaxed);
    return max_u64(peak + peak / 10 * (RESERVE_TENTHS - 10), budget);
}

/* Releases idle segments until the reserve and `growth` are at most `most` bytes, if possible. */
static void release_down_to(struct source *source, uint64_t growth, uint64_t most) {
    if (budget_would_exceed(source, growth, most))
        source_release_idle(source, source_reserved_soon(source) + growth - most);
}

/*
 * Tries to avoid a growth beyond reserve_bound(). Returns true if the request is served.
 *
 *   1. Waits for idle segments that are safe only behind a barrier, and releases them. Waits for
 *      memory freed before the call only, because other threads may go on freeing for ever.
 *   2. Cuts free ranges that the placement policy otherwise keeps whole.
 */
static bool try_before_growth(struct source *source, struct alloc_request *request,
                              uint64_t growth) {
    uint64_t most = reserve_bound(source, growth), last = epochs_stamp(&source->epochs);
    while (budget_would_exceed(source, growth, most) && !is_ablated(ABLATION_RESERVE_WAIT) &&
           sync_wait_idle_segment(source, last)) {
        if (try_free_or_split(source, request))
            return true;
        release_down_to(source, growth, most);
    }
    if (!budget_would_exceed(source, growth, most))
        return false;
    request->placement = PLACEMENT_CUT_LONG;
    bool served = try_free_or_split(source, request);
    request->placement = PLACEMENT_KEEP_LONG;
    return served;
}

/*
 * Grows. If the reserve, the growth and the returning memory would together exceed reserve_bound(),
 * first waits in sync_wait_barriers(), and then for the driver, GROWTH_WAIT_NS at most. The backend
 * frees segments in a stream of its own. The driver has a segment only after this stream reaches
 * the free, and a barrier delays this stream like every other one of the context.
 */
static int grow_after_returns(struct source *source, struct alloc_request *request,
                              uint64_t growth) {
    uint64_t most = reserve_bound(source, growth);
    if (source->returning_bytes > 0)
        wait_for_return(source, 0);
    if (source->returning_bytes > 0 && !is_ablated(ABLATION_RETURNS) &&
        budget_would_exceed(source, growth + source->returning_bytes, most)) {
        sync_wait_barriers(source);
        wait_for_return(source, GROWTH_WAIT_NS);
    }
    return grow_by_segment(source, request);
}

/*
 * Grows by source_growth() or more. With request->over_budget: first releases idle segments until
 * the reserve stays within the budget; natively the driver would have all of them. If the reserve
 * would still exceed reserve_bound(), try_before_growth() waits for more.
 */
static int grow_within_budget(struct source *source, struct alloc_request *request) {
    ASSERT_HELD(&source->lock);
    uint64_t growth = source_growth(request);
    if (!request->over_budget)
        return grow_after_returns(source, request, growth);
    uint64_t budget = atomic_load_explicit(&source->budget, memory_order_relaxed);
    if (source_idle(source) > 0) /* a segment that is safe behind a barrier may have finished */
        epochs_poll(&source->epochs, source->backend);
    release_down_to(source, growth, budget);
    return try_before_growth(source, request, growth) ? 0
                                                      : grow_after_returns(source, request, growth);
}

/* Returns all reserved bytes: the driver freed the segments with the context. */
static uint64_t end_with_context(struct source *source) {
    return source_reserved(source);
}

const struct memory_policy segments_policy = {
    .grow = grow_by_segment,
    .grow_within_budget = grow_within_budget,
    .release_idle = release_idle,
    .decay = decay_one,
    .wait_for_return = wait_for_return,
    .end = end_with_context,
    .releases_first = true,
    .slack_share = BUDGET_SLACK,
    .share_for_others = BUDGET_DEVICE_SHARE,
    .caches_each_most = UINT64_MAX,
};
