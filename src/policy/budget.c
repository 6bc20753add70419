/*
 * The budget: the reserved bytes up to which the pool grows instead of synchronising.
 *
 *      peak of live memory  ->  goal  -- plus quotas of caches ->  budget  ->  pressure
 *
 * The pool's lock protects all but the number of streams. Allocations and frees read the results
 * without it. budget_recompute() has the rules in order; the constants are in
 * src/tuning/tuning.def. Invariant: the goal is at most the budget. tcache/peaks.c recomputes the
 * budget. Other callers: sync.c, quota.c, pool.c, slow_path.c, stats.c, segments.c, remap.c and
 * handles.c.
 */
#include "policy/budget.h"

static _Atomic unsigned expected_streams;

void budget_expect_streams(unsigned streams) {
    atomic_store_explicit(&expected_streams, streams, memory_order_relaxed);
}

unsigned budget_streams(void) {
    return atomic_load_explicit(&expected_streams, memory_order_relaxed);
}

/*
 * Returns the lower bound of goal_of() without GPUCACHE_BUDGET, in bytes. Each stream gets
 * BUDGET_FLOOR, so that streams need not wait for each other's memory.
 */
static uint64_t budget_floor(void) {
    return BUDGET_FLOOR * clamp_u64(1, budget_streams(), BUDGET_STREAMS);
}

bool budget_is_beyond_floor(const struct source *source) {
    return budget_streams() <= 1 || counter_get(&source->counters.allocated.peak) > budget_floor();
}

uint64_t budget_highest_goal(const struct source *source) {
    uint64_t peak = counter_get(&source->counters.allocated.peak);
    return peak <= BUDGET_LITTLE_PEAK ? BUDGET_LITTLE : peak * BUDGET_TIMES;
}

uint64_t budget_remap_slack_most(const struct source *source) {
    return counter_get(&source->counters.allocated.peak) / REMAP_SLACK_STEP *
           source->remap.slack_steps;
}

/*
 * Returns the goal: GPUCACHE_BUDGET if that is set, else the peak plus the slack, at least
 * budget_floor(). The slack is a share of the peak plus remap.slack, at least BUDGET_FLOOR.
 */
static uint64_t goal_of(const struct source *source) {
    if (source->config.budget > 0)
        return source->config.budget;
    uint64_t peak = counter_get(&source->counters.allocated.peak), floor = budget_floor();
    /* The peak may have been reset after remapping raised the slack. */
    uint64_t more = min_u64(source->remap.slack, budget_remap_slack_most(source));
    uint64_t slack = peak / source->policy->slack_share + more;
    return max_u64(peak + max_u64(slack, BUDGET_FLOOR), floor);
}

uint64_t budget_with(const struct source *source, uint64_t bytes) {
    uint64_t budget = atomic_load_explicit(&source->budget, memory_order_relaxed);
    uint64_t peak = counter_get(&source->counters.allocated.peak);
    uint64_t in_use = source_reserved(source) - source_free(source) - source->pending_bytes + bytes;
    uint64_t more = in_use > peak && source->config.budget == 0 ? in_use - peak : 0;
    return source->refused_at > 0 ? budget : budget + more + more / source->policy->slack_share;
}

/* Stores a changed value only: all threads read the field, and each store costs them a miss. */
static void set_if_changed(_Atomic uint64_t *at, uint64_t bytes) {
    if (atomic_load_explicit(at, memory_order_relaxed) != bytes)
        atomic_store_explicit(at, bytes, memory_order_relaxed);
}

/*
 * Computes in order:
 *
 *   1. The goal: goal_of(), at most budget_highest_goal().
 *   2. The budget: the goal and the quotas of the caches, with 1/BUDGET_QUOTA_SHARE more, because
 *      cached blocks are cut from slabs that other caches use too. Reductions:
 *        - vmm backend, or at most one active cache and slack of at most BUDGET_FLOOR: the quotas
 *          are reduced by the slack. With the vmm backend, remapping leaves no unusable free ranges
 *          that would need the slack.
 *        - vmm backend: slack and quotas together are at most BUDGET_CACHES_EACH for each active
 *          cache, but for at most BUDGET_CACHES caches. In a large program the slack covers the
 *          caches.
 *        - At most one active cache: at most budget_highest_goal().
 *   3. Bounds of budget and goal: the capacity of the device, and the reserve at which growing was
 *      refused. The segments backend leaves 1/BUDGET_DEVICE_SHARE of the device to others. The vmm
 *      backend need not, because idle handles can be released at any time.
 *   4. Pressure, if one holds: mode REUSE_SYNC; the program has ever recorded a context event, or
 *      made a context wait for one; the last record was refused, so frees have to try again; a
 *      capture is in progress; the reserve is above the budget less 1/PRESSURE_SHARE of the goal.
 *   5. The bytes per event of frees under pressure. In mode REUSE_SYNC 0: every free records. A
 *      thread that freed less than 1/EVENT_PART of them records none.
 *
 * GPUCACHE_BUDGET replaces steps 1 and 2.
 */
void budget_recompute(struct source *source) {
    ASSERT_HELD(&source->lock);
    const struct memory_policy *policy = source->policy;
    uint64_t goal = goal_of(source), budget = goal;
    if (source->config.budget == 0) {
        uint64_t highest = budget_highest_goal(source);
        goal = min_u64(goal, highest);
        uint64_t more = source->quotas + source->quotas / BUDGET_QUOTA_SHARE;
        uint64_t slack = goal - min_u64(counter_get(&source->counters.allocated.peak), goal);
        bool small = source->active_caches <= 1 && slack <= BUDGET_FLOOR;
        if (small || policy->slack_is_shared)
            more -= min_u64(more, slack);
        if (policy->caches_each_most < UINT64_MAX) {
            uint64_t most =
                min_u64(source->active_caches, BUDGET_CACHES) * policy->caches_each_most;
            more = min_u64(more, most - min_u64(slack, most));
        }
        budget = source->active_caches > 1 ? goal + more : min_u64(goal + more, highest);
    }
    uint64_t capacity = source->backend->capacity;
    uint64_t unused = policy->share_for_others > 0 ? capacity / policy->share_for_others : 0;
    budget = min_u64(budget, capacity - unused);
    budget = source->refused_at > 0 ? min_u64(budget, source->refused_at) : budget;
    goal = min_u64(goal, budget);
    source->goal = goal;
    unsigned refused = source->backend->refused;
    bool records_fail = refused > 0 && source->backend->has_events;
    bool sync = source->config.reuse == REUSE_SYNC;
    bool pressure = sync || source->application_syncs || records_fail ||
                    backend_is_captured(source->backend) ||
                    source_reserved(source) > budget - goal / PRESSURE_SHARE;
    set_if_changed(&source->budget, budget);
    if (pressure != (atomic_load_explicit(&source->pressure, memory_order_relaxed) > 0)) {
        uint64_t since = pressure ? pressure_since(epochs_stamp(&source->epochs), false) : 0;
        atomic_store_explicit(&source->pressure, since, memory_order_relaxed);
    }
    uint64_t most = sync ? 0 : budget_event_bytes(source, budget);
    set_if_changed(&source->event_least, most / EVENT_PART);
    set_if_changed(&source->event_bytes, most);
    source->refused_seen = refused;
    source->budget_stale = false;
}

void budget_count_reserve(struct source *source) {
    ASSERT_HELD(&source->lock);
    struct counters *counters = &source->counters;
    uint64_t reserved = source_reserved(source), available = source_free(source);
    metric_become(&counters->reserved, reserved);
    metric_become(&counters->active, reserved - available);
    metric_become(&counters->segments, source->large.segment_count + source->small.segment_count);
    uint64_t large = arena_largest_free(&source->large), small = arena_largest_free(&source->small);
    counter_set(&counters->largest_free_bytes,
                max_u64(max_u64(large, small), runs_largest(&source->runs)));
    counter_set(&counters->ready_bytes, available);
    counter_set(&counters->releasable_bytes, source_idle(source));
    counter_set(&counters->free_blocks,
                source->large.free_count + source->small.free_count + source->runs.count);
}
