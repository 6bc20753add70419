/*
 * Growing: what the pool does before it asks the driver for memory, to stay within its budget.
 *
 *      segments   grow()       releases idle segments first, unless that takes too much of the time
 *      VMM        grow_vmm()   waits for idle handles that source_grow() can then remap (remap.c)
 *
 * Both end in source_grow() and return its result. slow_path.c calls grow() after free and pending
 * memory did not serve the request. The pool's lock is held on entry and on return; every wait and
 * every call that asks the driver for memory releases it.
 */
#include "source/try.h"

#include "source/internal.h"

#include <sched.h>

void grow_wait_for_others(struct source *source) {
    ASSERT_HELD(&source->lock);
    uint64_t all = source->growing.done + source->growing.threads;
    while (source->growing.threads > 0 && source->growing.done < all) {
        lock_release(&source->lock);
        sched_yield();
        lock_acquire(&source->lock);
    }
}

/*
 * Returns the bytes up to which the reserve may grow while some of it is idle: a share above the
 * peak of live memory, or the budget if that is more. The request itself may raise the peak.
 * Memory in use is neither free nor pending.
 */
static uint64_t reserve_bound(const struct source *source, uint64_t growth) {
    uint64_t in_use = budget_expected(source) - budget_free(source) - source->pending_bytes;
    uint64_t peak = max_u64(counter_get(&source->counters.allocated.peak), in_use + growth);
    uint64_t budget = atomic_load_explicit(&source->budget, memory_order_relaxed);
    return max_u64(peak + peak / 10 * (RESERVE_TENTHS - 10) + RESERVE_BYTES, budget);
}

/* Releases idle segments until the reserve and `growth` are at most `most` bytes, if possible. */
static void release_down_to(struct source *source, uint64_t growth, uint64_t most) {
    if (budget_would_exceed(source, growth, most)) {
        source_release_idle(source, budget_expected(source) + growth - most);
    }
}

/*
 * Waits for the oldest unfinished epoch of an idle segment, if it is not later than `last`. False
 * if there is none, or if no event for it may be waited for.
 */
static bool wait_for_idle(struct source *source, uint64_t last) {
    uint64_t finished = source->epochs.finished;
    uint64_t stamp =
        min_u64(idle_stamp(&source->large, finished), idle_stamp(&source->small, finished));
    return stamp <= last && sync_wait_stamp(source, stamp);
}

/*
 * Tries to avoid a growth beyond reserve_bound():
 *
 *   1. Waits for idle segments that are safe only behind a barrier, and releases them. Waits for
 *      memory freed before the call only, because other threads may go on freeing for ever.
 *   2. Cuts free ranges that the placement policy otherwise keeps whole.
 *
 * True if the request is served.
 */
static bool try_before_growth(struct source *source, struct alloc_request *request,
                              uint64_t growth) {
    uint64_t most = reserve_bound(source, growth), last = epochs_stamp(&source->epochs);
    while (budget_would_exceed(source, growth, most) && wait_for_idle(source, last)) {
        if (try_free_or_split(source, request)) {
            return true;
        }
        release_down_to(source, growth, most);
    }
    if (!budget_would_exceed(source, growth, most)) {
        return false;
    }
    request->placement = PLACE_CUTTING;
    bool served = try_free_or_split(source, request);
    request->placement = PLACE_SPARING;
    return served;
}

/*
 * Grows, after segments on their way to the driver have arrived there. The driver has a released
 * segment only after the stream that frees it reaches that free. A barrier delays that stream like
 * every other one of the context. A growth before that would come on top of the released memory.
 * If the sum would exceed reserve_bound(), waits for the barriers without a limit, and then for the
 * driver RETURN_SOON_NS at most.
 */
static int grow_after_returns(struct source *source, struct alloc_request *request,
                              uint64_t growth) {
    uint64_t most = reserve_bound(source, growth);
    if (source->freeing_bytes > 0) {
        source_wait_for_return(source, 0);
    }
    if (source->freeing_bytes > 0 &&
        budget_would_exceed(source, growth + source->freeing_bytes, most)) {
        sync_wait_barriers(source);
        source_wait_for_return(source, RETURN_SOON_NS);
    }
    return source_grow(source, request);
}

/*
 * Grows a VMM pool. source_grow() remaps idle handles, which must have finished or be movable. If
 * these are not enough to stay within the budget, or within the present reserve if that is larger,
 * waits for the other idle handles. Does not wait if all idle handles together are not enough.
 */
int grow_vmm(struct source *source, struct alloc_request *request, bool over_budget) {
    (void)over_budget; /* idle handles are remapped instead of released */
    const struct arena *arena = request->large ? &source->large : &source->small;
    uint64_t bytes = request->large ? request->bytes : PAGE_BYTES,
             last = epochs_stamp(&source->epochs);
    uint64_t budget = budget_with(source, bytes);
    struct growth growth = remap_growth(source, arena, bytes, budget);
    if (budget_would_exceed(source, growth.bytes, budget)) {
        epochs_poll(&source->epochs, source->backend);
        growth = remap_growth(source, arena, bytes, budget);
    }
    uint64_t most = max_u64(budget, budget_expected(source));
    while (budget_would_exceed(source, growth.bytes, most + growth.available) &&
           !budget_would_exceed(source, growth.bytes, most + growth.idle) &&
           wait_for_idle(source, last)) {
        if (try_free_or_split(source, request)) {
            return 0;
        }
        growth = remap_growth(source, arena, bytes, budget);
    }
    return source_grow(source, request);
}

/*
 * Releases idle segments before a growth beyond the budget (`give_back_first`):
 *
 *      the reserve would exceed   idle segments are released
 *      the budget                 if releases and their growths took less than 1/EXCESS_SHARE of
 *                                 the time so far
 *      reserve_bound()            always: natively, all of them would be the driver's
 *
 * Of the time that is not used, at most EXCESS_MOST_NS remain as credit. Otherwise, after a long
 * pause, many growths would release segments first and take twice as long.
 */
int grow_segments(struct source *source, struct alloc_request *request, bool over_budget) {
    ASSERT_HELD(&source->lock);
    uint64_t growth = source_growth(request);
    if (!over_budget) {
        return grow_after_returns(source, request, growth);
    }
    uint64_t budget = atomic_load_explicit(&source->budget, memory_order_relaxed);
    uint64_t most = reserve_bound(source, growth), before = backend_clock(source->backend);
    uint64_t share = (before - source->started_ns) / EXCESS_SHARE;
    if (share > source->excess_ns + EXCESS_MOST_NS) {
        source->excess_ns = share - EXCESS_MOST_NS;
    }
    bool idle = source->large.idle_bytes + source->small.idle_bytes > 0;
    bool due = idle && source->excess_ns <= share,
         exceeds = budget_would_exceed(source, growth, most);
    if (idle) { /* a segment that is safe behind a barrier may have finished */
        epochs_poll(&source->epochs, source->backend);
    }
    release_down_to(source, growth, due ? budget : most);
    if (exceeds && try_before_growth(source, request, growth)) {
        return 0;
    }
    int r = grow_after_returns(source, request, growth);
    if (source->freeing_bytes > 0) {
        source_wait_for_return(source, 0);
    }
    if (due) {
        source->excess_ns += backend_clock(source->backend) - before;
    }
    return r;
}
