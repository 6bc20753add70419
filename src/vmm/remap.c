/*
 * Decides which segments of a vmm pool are mapped, moved and released. handles.c makes the driver
 * calls for handles; this file makes those that reserve and free addresses.
 *
 * A growth beyond the budget takes handles from idle segments, in this order:
 *
 *      1  detaches idle segments, to map them in the gap         move_to_gap()
 *      2  releases idle segments whose work has completed        release_excess()
 *      3  maps the detached handles, and new ones for the rest   handles_make()
 *
 * Only idle memory moves or is released, so a live block keeps its address and its handles. A gap
 * is a run of unmapped addresses between segments (heap/va_range.h).
 *
 * The remap lock admits one thread at a time, and is taken before the pool's lock. Callers of the
 * policy's functions hold the pool's lock alone; the functions release that lock to take both.
 * Callers of end() hold both locks, which end() keeps. Driver calls that reserve, probe, create,
 * map, unmap or release run without the pool's lock. Event queries and the end of a context keep
 * it. Invariant: no other thread uses the addresses of such a call. They lie in no segment at that
 * time, and the remap lock keeps others from mapping there. A growth also marks the free ranges
 * next to its gap as used (handles_hold()).
 *
 * Callers, through vmm_policy: slow_path.c, out_of_memory.c, decay.c, pending.c and source.c.
 */
#include "heap/page_map.h"
#include "heap/va_range.h"
#include "policy/budget.h"
#include "sync/pending.h"
#include "sync/sync.h"
#include "vmm/handles.h"

#include <errno.h>

#define DECAY_REFUSALS 16 /* segments that cannot go, in one call of remap_decay() */

/* Unmaps stale mappings whose work has completed, with the pool's lock released. A growth may then
 * use the addresses. The driver gets a released handle's memory only when its last mapping ends. */
static void drop_stale(struct source *source) {
    ASSERT_HELD(&source->remap.lock);
    ASSERT_HELD(&source->lock);
    if (source->large.stale_mappings.count + source->small.stale_mappings.count > 0) {
        uint64_t since = backend_clock(source->backend);
        handles_drop_stale(source, &source->large);
        handles_drop_stale(source, &source->small);
        source->remap.remap_ns += backend_clock(source->backend) - since;
    }
}

/* Takes the remap lock, which comes before the pool's lock, and drops stale mappings. Releases the
 * pool's lock and takes it again: the pool may change during the call. */
static void lock_remap(struct source *source) {
    lock_release(&source->lock);
    lock_acquire(&source->remap.lock);
    lock_acquire(&source->lock);
    drop_stale(source);
}

/* Releases the remap lock and keeps the pool's lock. Clears segment.refused: the next thread with
 * the remap lock tries the segments again. */
static void unlock_remap(struct source *source) {
    struct arena *const arenas[] = {&source->large, &source->small};
    ASSERT_HELD(&source->remap.lock);
    ASSERT_HELD(&source->lock);
    for (unsigned i = 0; i < 2 && source->remap.any_refused; i++)
        for (struct segment *s = arenas[i]->segments; s; s = s->next)
            s->refused = false;
    source->remap.any_refused = false;
    lock_release(&source->remap.lock);
}

/* --- release --- */

/* A released segment. */
struct vacated {
    struct arena *arena;
    uint64_t base, bytes; /* bytes 0: none was released */
};

/* Releases one idle segment, chosen by idle_segment(), and returns where it was. A large `bytes`
 * only shortens the search: the segment may have any length. Tries the next one if a segment cannot
 * go now (-EBUSY of handles_release()). Needs both locks; releases the pool's lock during driver
 * calls. */
static struct vacated release_one(struct source *source, uint64_t bytes) {
    struct arena *const arenas[] = {&source->large, &source->small};
    struct vacated vacated = {0};
    for (unsigned i = 0; i < 2 && vacated.bytes == 0; i++) {
        struct segment *segment;
        int r = -EBUSY;
        while (r == -EBUSY && arenas[i]->idle_bytes > 0 &&
               (segment = idle_segment(arenas[i], bytes, source->epochs.finished)) != NULL) {
            vacated = (struct vacated){.arena = arenas[i], .base = segment->base};
            r = handles_release(source, arenas[i], segment, &vacated.bytes);
        }
    }
    return vacated;
}

static uint64_t remap_release(struct source *source, uint64_t bytes) {
    uint64_t released = 0, size = 1;
    lock_remap(source);
    while (released < bytes && size > 0) {
        size = release_one(source, bytes - released).bytes;
        released += size;
    }
    /* A released handle may have a stale mapping whose work completed while the pool's lock was
     * released. */
    drop_stale(source);
    unlock_remap(source);
    return released;
}

/* Tries the next segment if one cannot go now (-EBUSY), as release_one() does: idle_aged() skips
 * segments that are marked as refused. Gives up after DECAY_REFUSALS. If the driver refused all
 * segments of a large pool, the search would keep the remap lock for seconds. */
static uint64_t remap_decay(struct source *source) {
    struct arena *arena;
    struct segment *aged;
    uint64_t released = 0;
    int r = -EBUSY;
    bool waits;
    lock_remap(source);
    for (unsigned refusals = 0; r == -EBUSY && refusals < DECAY_REFUSALS; refusals++) {
        aged = source_aged(source, &arena, &waits);
        r = aged ? handles_release(source, arena, aged, &released) : 0;
    }
    drop_stale(source); /* as in remap_release() */
    unlock_remap(source);
    return released;
}

/* --- split --- */

/* Replaces a long idle handle by short ones, if a request of `bytes` would use only a part of it.
 * Returns true also if there is no such handle, and false if the driver or host memory refuses.
 * Entered with the pool's lock, which is released in between. */
static bool remap_split(struct source *source, uint64_t bytes) {
    struct arena *arena = &source->large;
    uint64_t released = 0;
    lock_remap(source);
    struct segment *idle = arena_to_split(arena, bytes, source->epochs.finished);
    uint64_t base = idle ? idle->base : 0;
    int r = idle ? handles_release(source, arena, idle, &released) : 0;
    if (released > 0)
        r = handles_make_short(source, arena, base, released, bytes);
    unlock_remap(source);
    return r == 0;
}

/* --- growth --- */

/* Reserves addresses: VMM_ADDRESS_TIMES the memory of the device, or as many as the driver gives,
 * but at least `least` bytes. Releases the pool's lock. Returns false without addresses or host
 * memory. */
static bool reserve_addresses(struct source *source, struct arena *arena, uint64_t least) {
    ASSERT_HELD(&source->remap.lock);
    ASSERT_HELD(&source->lock);
    struct backend *backend = source->backend;
    uint64_t bytes = (backend->capacity & ~(PAGE_BYTES - 1)) * VMM_ADDRESS_TIMES, base;
    int r;
    if (!host_freelist_prepare(&arena->va_range_freelist, 1))
        return false;
    lock_release(&source->lock);
    least = round_up(least, PAGE_BYTES);
    bytes = max_u64(bytes, least);
    while ((r = backend->ops->reserve_addresses(backend, bytes, &base)) != 0 && bytes > least)
        bytes = max_u64(bytes / 2 & ~(PAGE_BYTES - 1), least);
    lock_acquire(&source->lock);
    if (r == 0)
        va_range_add(arena, base, bytes);
    return r == 0;
}

/* Detaches one idle segment of at most `most` bytes whose stamp is at least `from`. Keeps both
 * locks. */
static bool detach_one(struct source *source, uint64_t most, uint64_t from) {
    struct arena *const arenas[] = {&source->large, &source->small};
    for (unsigned i = 0; i < 2 && source->remap.transit.count < TRANSIT_MOST; i++) {
        struct segment *segment = idle_movable(arenas[i], most, from);
        if (segment && handles_detach(source, arenas[i], segment))
            return true;
    }
    return false;
}

/* Returns the bytes of idle segments that can be released now, without those next to the gap. */
static uint64_t releasable_bytes(const struct source *source, const struct gap *gap) {
    struct idle_limits none = {0};
    uint64_t finished = source->epochs.finished;
    return idle_available_bytes(&source->large, finished, gap, UINT64_MAX, &none) +
           idle_available_bytes(&source->small, finished, gap, UINT64_MAX, &none);
}

/*
 * Detaches idle segments for the gap until the growth is within the budget. Makes the gap longer
 * than needed if the addresses allow it: whole handles fit then, and can move again.
 *
 * If the release of completed segments cannot bring the growth within the budget, detaches others
 * first. Earlier work may still use these, so they cannot be released. One growth moves at most
 * TRANSIT_MOST segments.
 */
static void move_to_gap(struct source *source, uint64_t budget, struct gap *gap) {
    const struct transit *transit = &source->remap.transit;
    uint64_t least = gap->bytes, from = source->epochs.finished + 1;
    uint64_t available = releasable_bytes(source, gap);
    gap_become(gap, round_up(least, VMM_HANDLE >> source->remap.size_shift));
    while (budget_would_exceed(source, gap->bytes, budget)) {
        from = budget_would_exceed(source, gap->bytes, budget + available) ? from : 0;
        if (!detach_one(source, gap->bytes - transit->bytes, from)) {
            if (from == 0)
                break;
            from = available = 0; /* no such segment is left: detach any */
        }
    }
    /* Still beyond the budget: the extra length would take new memory. The gap becomes only as long
     * as the request and the detached handles need. */
    if (budget_would_exceed(source, gap->bytes, budget))
        gap_become(gap, max_u64(transit->bytes, least));
}

/* Releases idle segments until a growth by `bytes` is within the budget. If a long segment was more
 * than needed, maps short ones at its addresses for the surplus. Releases the pool's lock for
 * calls of the driver. */
static void release_excess(struct source *source, uint64_t bytes, uint64_t budget) {
    struct vacated vacated = {.bytes = 1};
    while (vacated.bytes > 0 && budget_would_exceed(source, bytes, budget)) {
        uint64_t over = round_up(source_reserved_soon(source) + bytes - budget, VMM_HANDLE);
        vacated = release_one(source, over);
        if (vacated.bytes > over)
            handles_make_short(source, vacated.arena, vacated.base, vacated.bytes - over, bytes);
    }
}

/*
 * Halves the length of new handles if free memory is trapped next to live blocks. All must hold:
 *
 *      1  the growth exceeds the budget by more than 1/VMM_TRAPPED_SHARE of the budget
 *      2  the excess is more than all idle segments, so a wait for work would not help
 *      3  the pool has as much free memory as the excess, besides what the growth holds
 *      4  the bytes mapped since handles were last shortened are at least the reserve
 *      5  the length is still above VMM_HANDLE_LEAST
 */
static void shorten_if_trapped(struct source *source, uint64_t bytes, uint64_t budget) {
    uint64_t excess = budget_would_exceed(source, bytes, budget)
                          ? source_reserved_soon(source) + bytes - budget
                          : 0;
    bool trapped = !is_ablated(ABLATION_HALVING) && excess > budget / VMM_TRAPPED_SHARE &&
                   excess > source_idle(source) &&
                   excess <= source_free(source) - source->remap.held_bytes;
    if (trapped && source->remap.made_bytes >= source_reserved(source) &&
        VMM_HANDLE >> source->remap.size_shift > VMM_HANDLE_LEAST) {
        source->remap.size_shift++;
        source->remap.made_bytes = 0;
    }
}

/*
 * Measures the time of remapping. Returns true if it took longer than REMAP_TIME_MOST_NS plus
 * 1/REMAP_TIME_SHARE of the elapsed time, and the peak has not risen by a slack step. The caller
 * may then allow one more slack step. Without the step, a program that repeats its requests may get
 * new addresses again and again.
 *
 * Credits unused time to later bursts, at most REMAP_TIME_KEPT_NS: without the credit, a burst now
 * and then would raise the goal for ever. Restarts the measurement after a step, and when the peak
 * has risen by a slack step.
 */
static bool measure_remapping(struct source *source, uint64_t peak) {
    uint64_t now = backend_clock(source->backend);
    uint64_t allowed = (now - source->remap.since_ns) / REMAP_TIME_SHARE;
    bool risen = peak > source->remap.peak + source->remap.peak / REMAP_SLACK_STEP;
    bool too_long = source->remap.remap_ns > allowed + REMAP_TIME_MOST_NS && !risen;
    if (risen) { /* a higher peak has longer steps: the same slack is fewer of them */
        source->remap.slack_steps =
            (unsigned)(source->remap.slack_steps * source->remap.peak / peak);
    }
    if (risen || peak < source->remap.peak) /* a program can reset the peak */
        source->remap.peak = peak;
    if (risen || too_long) {
        source->remap.since_ns = now;
        source->remap.remap_ns = 0;
    } else if (allowed > source->remap.remap_ns + REMAP_TIME_KEPT_NS) {
        source->remap.since_ns =
            now - (source->remap.remap_ns + REMAP_TIME_KEPT_NS) * REMAP_TIME_SHARE;
    }
    return too_long;
}

/* Allows one more step of slack if remapping took too long. With or without a new step, raises the
 * goal by the excess of the growth over the budget, as far as steps and capacity allow. Only
 * measures the time if the goal may not rise: a refusal or an option limits the budget, or the
 * budget has reached the capacity. Returns the bytes added. */
static uint64_t raise_slack(struct source *source, uint64_t bytes, uint64_t budget) {
    uint64_t capacity = source->backend->capacity;
    bool may_be_raised = !is_ablated(ABLATION_SLACK) && source->refused_at == 0 &&
                         source->config.budget == 0 && budget < capacity;
    bool too_long = measure_remapping(source, counter_get(&source->counters.allocated.peak));
    if (too_long && may_be_raised)
        source->remap.slack_steps += source->remap.slack_steps < REMAP_SLACK_STEPS;
    uint64_t most = budget_remap_slack_most(source);
    if (source->remap.slack >= most || !may_be_raised)
        return 0;
    uint64_t lacking = source_reserved_soon(source) + bytes - budget;
    uint64_t remaining = most - source->remap.slack;
    uint64_t more = min_u64(min_u64(lacking, remaining), capacity - budget);
    source->remap.slack += more;
    source->budget_stale = true;
    return more;
}

/*
 * Returns the length of handles, in bytes, for `bytes` bytes of new memory and a request of `like`
 * bytes:
 *
 *   within the budget, length not halved   at most VMM_HANDLES_FEW handles, however long
 *   otherwise                              handles_length(), or longer: at most VMM_HANDLES_MOST
 */
static uint64_t growth_length(const struct source *source, uint64_t bytes, uint64_t like,
                              bool over_budget) {
    uint64_t each = handles_length(source, like);
    uint64_t least = round_up(bytes / VMM_HANDLES_MOST, PAGE_BYTES);
    if (!over_budget && source->remap.size_shift == 0 && !is_ablated(ABLATION_SPLITTING))
        least = round_up(bytes / VMM_HANDLES_FEW, VMM_HANDLE);
    each = max_u64(each, least);
    return bytes > 0 ? min_u64(each, bytes) : each;
}

/*
 * Maps memory in a gap for a request of `bytes`. Holds the free ranges next to the gap before
 * move_to_gap() and release_excess(), which could otherwise take idle segments there. Holds the new
 * memory too, until all is mapped: another thread could take a part, and the request would not fit.
 * Returns as handles_make(). remap.transit is empty on entry and on return.
 */
static int grow_at(struct source *source, struct arena *arena, struct gap *gap, uint64_t bytes) {
    ASSERT_HELD(&source->remap.lock);
    ASSERT_HELD(&source->lock);
    uint64_t before = source_reserved(source), budget = budget_with(source, bytes), size = 1;
    struct transit *transit = &source->remap.transit;
    struct range *const adjacent[] = {gap->left, gap->right};
    for (unsigned i = 0; i < 2; i++)
        if (adjacent[i])
            handles_hold(source, arena, adjacent[i]);
    bool over_budget = budget_would_exceed(source, gap->bytes, budget);
    uint64_t since = over_budget ? backend_clock(source->backend) : 0;
    if (over_budget) {
        budget += raise_slack(source, gap->bytes, budget);
        move_to_gap(source, budget, gap);
        budget_count_reserve(source); /* before the growth hides the handles in transit */
        release_excess(source, gap->bytes, budget);
        shorten_if_trapped(source, gap->bytes, budget);
    }
    struct segment *in_front = arena_before(arena, gap->base), *last = in_front;
    uint64_t each = growth_length(source, gap->bytes - transit->bytes, bytes, over_budget);
    int r = handles_make(source, arena, gap, each, transit, &last);
    source->remap.remap_ns += over_budget ? backend_clock(source->backend) - since : 0;
    handles_unhold_all(source, arena, in_front, last);
    /* After handles_unhold_all(): a reattached segment may lie between in_front and `last`. */
    handles_reattach(source);
    for (unsigned i = 0; i < 2; i++)
        if (adjacent[i])
            handles_unhold(source, arena, adjacent[i]);
    /* A failed growth releases as much as it has mapped: another thread may need the memory. */
    while (r != 0 && source_reserved(source) > before && size > 0)
        size = release_one(source, 0).bytes;
    return r;
}

/* The needs of a growth, in bytes:
 *
 *      bytes       new memory to map
 *      idle        idle segments whose memory may serve the growth: all but those next to the gap
 *      available   part of `idle` that can move or be released now, without a wait; counted only
 *                  as far as needed to stay within the budget
 */
struct growth {
    uint64_t bytes, idle, available;
};

/* Computes the needs of a free range of `bytes` bytes. Keeps the pool's lock. */
static struct growth growth_at(const struct source *source, const struct arena *arena,
                               uint64_t bytes, uint64_t budget) {
    struct gap gap;
    const struct arena *const arenas[] = {&source->large, &source->small};
    if (!va_range_find(arena, bytes, &gap))
        gap = (struct gap){.bytes = bytes, .longest = UINT64_MAX}; /* addresses to be reserved */
    struct growth growth = {gap.bytes, source_idle(source), 0};
    uint64_t sum = source_reserved_soon(source) + gap.bytes, over = sum > budget ? sum - budget : 0;
    gap_become(&gap, round_up(gap.bytes, VMM_HANDLE >> source->remap.size_shift));
    struct idle_limits limits = {gap.bytes, TRANSIT_MOST};
    for (unsigned i = 0; i < 2 && growth.available < over; i++) {
        growth.available += idle_available_bytes(arenas[i], source->epochs.finished, &gap,
                                                 over - growth.available, &limits);
    }
    const struct range *const adjacent[] = {gap.left, gap.right};
    for (unsigned i = 0; i < 2 && over > 0; i++)
        for (const struct segment *s = adjacent[i] ? adjacent[i]->segment : NULL; s;
             s = range_next_segment(adjacent[i], s))
            growth.idle -= s->used == 0 ? s->bytes : 0;
    return growth;
}

static int remap_grow(struct source *source, const struct alloc_request *request) {
    struct arena *arena = source_arena(source, request);
    uint64_t bytes = request->large ? request->bytes : PAGE_BYTES;
    struct gap gap;
    int r = -ERANGE;
    if (!source_can_grow(source, request) || !source_begin_growth(source))
        return r;
    /* The pool may change in lock_remap(), and its context may end. While this thread has the remap
     * lock, pool_forget() waits: the pool keeps its segments even if its context ends. */
    lock_remap(source);
    if (source->backend->ended) {
        r = -ERANGE;
    } else if (arena_largest_free(arena) >= bytes) { /* another thread mapped it */
        r = 0;
    } else if (va_range_find(arena, bytes, &gap)) {
        r = grow_at(source, arena, &gap, bytes);
    } else if (reserve_addresses(source, arena, bytes)) {
        bool freed = arena_largest_free(arena) >= bytes; /* by another thread */
        r = freed                               ? 0
            : va_range_find(arena, bytes, &gap) ? grow_at(source, arena, &gap, bytes)
                                                : -ERANGE;
    }
    unlock_remap(source);
    /* A failed growth by more than one VMM page may have taken memory and released it again.
     * Requests of other threads may have missed that memory. */
    source_end_growth(source, r != 0 && bytes > PAGE_BYTES);
    return r;
}

/*
 * Grows a vmm pool. remap_grow() uses idle segments that can be released or moved now. If these are
 * not enough to stay within the budget, or within the present reserve if that is larger, waits for
 * the other idle segments. Does not wait if all idle segments together are not enough.
 */
static int remap_grow_within_budget(struct source *source, struct alloc_request *request) {
    const struct arena *arena = source_arena(source, request);
    uint64_t bytes = request->large ? request->bytes : PAGE_BYTES,
             last = epochs_stamp(&source->epochs);
    uint64_t budget = budget_with(source, bytes);
    struct growth growth = growth_at(source, arena, bytes, budget);
    if (budget_would_exceed(source, growth.bytes, budget)) {
        epochs_poll(&source->epochs, source->backend);
        growth = growth_at(source, arena, bytes, budget);
    }
    uint64_t most = max_u64(budget, source_reserved_soon(source));
    while (budget_would_exceed(source, growth.bytes, most + growth.available) &&
           !budget_would_exceed(source, growth.bytes, most + growth.idle) &&
           !is_ablated(ABLATION_GROWTH_WAIT) && sync_wait_idle_segment(source, last)) {
        if (try_free_or_split(source, request))
            return 0;
        growth = growth_at(source, arena, bytes, budget);
    }
    return remap_grow(source, request);
}

/* --- end of a context --- */

/* Ends all segments of an arena. Frees the addresses only if the driver unmapped everything. */
static void end_arena(struct source *source, struct arena *arena) {
    uint64_t base, bytes;
    bool all = handles_end(source, arena);
    while (va_range_remove(arena, &base, &bytes))
        if (all)
            source->backend->ops->free_addresses(source->backend, base, bytes);
}

/* Ends both arenas. Resets handle length and slack, which the next context may not need. */
static uint64_t remap_end(struct source *source) {
    source->remap.size_shift = source->remap.slack_steps = 0;
    source->remap.made_bytes = source->remap.slack = 0;
    end_arena(source, &source->small);
    end_arena(source, &source->large);
    return 0;
}

const struct memory_policy vmm_policy = {
    .grow = remap_grow,
    .grow_within_budget = remap_grow_within_budget,
    .release_idle = remap_release,
    .decay = remap_decay,
    .split = remap_split,
    .end = remap_end,
    .has_handles = true,
    .barrier_ahead = true,
    .slack_is_shared = true,
    .slack_share = VMM_SLACK,
    .caches_each_most = BUDGET_CACHES_EACH,
};
