/*
 * Growing, and what goes back or is waited for before that, or instead, so that the pool stays within its budget.
 *
 *      in segments   what lies idle goes back first, as far as that does not take too much of the time
 *      in a line     what lies idle makes room (remap.c); if it would, work in front of it is waited for
 *
 * Both end in source_grow(), whose answer is the driver's.
 */
#include "source/try.h"

#include "source/internal.h"

#include <sched.h>

void grow_wait_for_others(struct source *source) {
    uint64_t all = source->growing.done + source->growing.threads;
    while (source->growing.threads > 0 && source->growing.done < all) {
        lock_release(&source->lock);
        sched_yield();
        lock_acquire(&source->lock);
    }
}

/* How far the pool may grow while anything of it lies idle. The request may raise the peak
 * of what is in use: neither ready nor pending. */
static uint64_t reserve_bound(const struct source *source, uint64_t growth) {
    uint64_t in_use = budget_expected(source) - budget_free(source) - source->pending_bytes;
    uint64_t peak = max_u64(counter_get(&source->counters.allocated.peak), in_use + growth);
    uint64_t budget = atomic_load_explicit(&source->budget, memory_order_relaxed);
    return max_u64(peak + peak / 10 * (RESERVE_TENTHS - 10) + RESERVE_BYTES, budget);
}

static void release_down_to(struct source *source, uint64_t growth, uint64_t most) {
    if (budget_would_exceed(source, growth, most)) {
        source_release_idle(source, budget_expected(source) + growth - most);
    }
}

/* Waits for the work in front of what lies idle, has not finished and was freed in epoch `last` at the
 * latest. False: none can be waited for. */
static bool wait_for_idle(struct source *source, uint64_t last) {
    uint64_t finished = source->epochs.finished;
    uint64_t stamp =
        min_u64(idle_stamp(&source->large, finished), idle_stamp(&source->small, finished));
    return stamp <= last && sync_wait_stamp(source, stamp);
}

/*
 * Growing would exceed what the peak allows: what lies idle behind a barrier is waited for and goes back
 * too, and ranges that are spared otherwise are cut. What other threads free meanwhile is not waited for:
 * that need not end. True: that has served the request.
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
 * What was released is the driver's only when the stream that frees it has got there, and a barrier holds that stream up
 * like any other of the context. What grows meanwhile comes on top.
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
 * In a line what lies idle makes room for the growth (remap.c), if it may move or has finished; where that is not enough, work is waited
 * for rather than that the pool grows past its budget, and past what it has already. Not where that would not be enough either.
 */
static int grow_vmm(struct source *source, struct alloc_request *request) {
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
 * Growing past the budget while segments lie idle: they go back first, as long as that and the growth
 * do not take more than a share of the time. What they did not take of that is forgotten but for a
 * little: after a rest every growth would else cost twice as much for long. Past what the peak allows
 * they go back whatever it takes: natively all of them would have gone.
 */
int grow(struct source *source, struct alloc_request *request, bool give_back_first) {
    uint64_t growth = source_growth(request);
    if (backend_maps(source->backend)) {
        return grow_vmm(source, request);
    }
    if (!give_back_first) {
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
    if (idle) { /* what is usable behind a barrier may have finished */
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
