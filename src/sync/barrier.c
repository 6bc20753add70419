/*
 * Synchronising: makes pending memory safe in one of four ways.
 *
 *      way                       price                  allowed
 *      query                     0.1 us of CPU time     always; helps if the work has completed
 *      record, then query        0.3 us of CPU time     outside captures; for the open epoch
 *      barrier on the device     1 us; later work of    if the newest event was recorded in a free
 *                                all streams waits
 *      wait on the CPU           the time of the work   without a limit: events that frees of the
 *                                                       calling thread recorded. With a limit:
 *                                                       those of other threads' frees, and before
 *                                                       out of memory all events
 *
 * Under pressure, frees record events, so that a barrier or a wait can make their memory safe when
 * it is needed. docs/policy.md has the measurements. All functions need the pool's lock, and
 * release it while they wait. Invariant: outside a free, no thread waits without a limit for an
 * event that is not its own. Exceptions: sync_wait_barriers_by_queries(), and failing queries.
 */
#include "sync/sync.h"

#include "base/clock.h"

#include <errno.h>

/* Counts a CPU wait since `since` (ns). */
static void count_wait(struct source *source, uint64_t since) {
    source->epochs.cpu_waits++;
    source->epochs.cpu_wait_ns += backend_clock(source->backend) - since;
}

/* Waits for a pinned event in the driver, with the lock released. Returns as ops->wait(). */
static int wait_in_driver(struct source *source, unsigned slot) {
    ASSERT_HELD(&source->lock);
    source->waits.inside++;
    lock_release(&source->lock);
    int r = source->backend->ops->wait(source->backend, slot);
    lock_acquire(&source->lock);
    source->waits.inside--;
    return r;
}

/* Returns the ns since `since`, at least `slept`: the backend's clock may stand still. */
static uint64_t passed(const struct source *source, uint64_t since, uint64_t slept) {
    return max_u64(backend_clock(source->backend) - since, slept);
}

/* Sleeps `ns` with the pool's lock released. */
static void sleep_unlocked(struct source *source, uint64_t ns) {
    ASSERT_HELD(&source->lock);
    lock_release(&source->lock);
    sleep_ns(ns);
    lock_acquire(&source->lock);
}

/*
 * Returns the remaining ns of `limit_ns`. Failed waits count against the limit until their epochs
 * have finished. Several requests in a row therefore do not each wait for the full limit.
 */
static uint64_t remaining_ns(struct source *source, uint64_t limit_ns) {
    if (source->epochs.finished >= source->waits.failed_stamp) {
        source->waits.failed_ns = 0;
    }
    return limit_ns > source->waits.failed_ns ? limit_ns - source->waits.failed_ns : 0;
}

/* Counts a wait of `ns` after which epoch `stamp` had not finished. */
static void count_failed_wait(struct source *source, uint64_t stamp, uint64_t ns) {
    source->waits.failed_stamp = max_u64(source->waits.failed_stamp, stamp);
    source->waits.failed_ns += ns;
}

/*
 * Queries until epoch `stamp` has finished, for at most `limit_ns`. Never waits in the driver:
 * the calling thread's current context may be another one, and this context may end during the
 * wait. The polling ends with the context, because epochs_forget() finishes every epoch.
 *
 *   context is suspended    no event can be queried. Goes on polling if `suspended`, because the
 *                           context may be usable again afterwards; otherwise gives up.
 *   queries fail otherwise  returns false after QUERIES_MOST of them: the driver may never answer.
 */
static bool poll_up_to_unpinned(struct source *source, uint64_t stamp, bool suspended,
                                uint64_t limit_ns) {
    struct epochs *epochs = &source->epochs;
    uint64_t since = backend_clock(source->backend), slept = 0;
    unsigned before = epochs->failed_queries;
    while (epochs->finished < stamp && !epochs->broken &&
           (suspended || !source->backend->suspended) && passed(source, since, slept) < limit_ns) {
        if (source->backend->suspended) {
            before = epochs->failed_queries;
        } else if (epochs->failed_queries - before > QUERIES_MOST) {
            return false;
        }
        sleep_unlocked(source, POLL_NS);
        slept += POLL_NS;
        epochs_poll(epochs, source->backend);
    }
    return true;
}

/*
 * Waits by queries for a pinned event of another thread's free, at most LATE_WAIT_NS; if queries
 * fail, in the driver without a limit. That thread's native free might not have returned yet: its
 * work may wait for the calling thread's next call. Returns as wait_in_free_event().
 */
static int wait_for_other_thread(struct source *source, unsigned slot, uint64_t number) {
    struct epochs *epochs = &source->epochs;
    uint64_t limit_ns = remaining_ns(source, LATE_WAIT_NS);
    epochs_poll(epochs, source->backend);
    if (!poll_up_to_unpinned(source, number, false, limit_ns)) {
        return wait_in_driver(source, slot);
    }
    if (epochs->finished < number && !source->backend->suspended && !epochs->broken) {
        count_failed_wait(source, number, limit_ns);
    }
    return epochs->finished >= number ? 0 : epochs->broken ? epochs->broken : -EBUSY;
}

/*
 * Waits on the CPU for the oldest event recorded in a free that covers `stamp`: without a limit if
 * the caller is a free (`freeing`) or the event is the calling thread's, because the native free
 * waits for the same work. Releases the lock during the wait. Returns 0; -ENOENT if there is no
 * such event; -EBUSY if the context is suspended, the backend cannot wait now or the time is over;
 * or the driver's code.
 */
static int wait_in_free_event(struct source *source, uint64_t stamp, bool freeing) {
    ASSERT_HELD(&source->lock);
    unsigned slot;
    uint64_t number;
    int r =
        source->backend->suspended ? -EBUSY : epochs_pin(&source->epochs, stamp, &slot, &number);
    if (r != 0) {
        return r;
    }
    uint64_t since = backend_clock(source->backend);
    r = freeing || epochs_is_own(&source->epochs, slot)
            ? wait_in_driver(source, slot)
            : wait_for_other_thread(source, slot, number);
    count_wait(source, since);
    epochs_unpin(&source->epochs, slot, number, r);
    return r;
}

/*
 * Waits for all work of the context, as the native free does, and finishes the epoch that is open
 * on entry. Only for frees, if no event can be recorded. Releases the lock during the wait. Returns
 * as ops->synchronize().
 */
static int synchronize_in_free(struct source *source) {
    ASSERT_HELD(&source->lock);
    uint64_t number = atomic_fetch_add(&source->epochs.open, 1);
    uint64_t since = backend_clock(source->backend), generation = source_generation(source);
    source->waits.inside++;
    lock_release(&source->lock);
    int r = source->backend->ops->synchronize(source->backend);
    lock_acquire(&source->lock);
    source->waits.inside--;
    count_wait(source, since);
    if (r == 0) {
        epochs_finish(&source->epochs, number);
        source->epochs.closed++;
    } else if (r > 0 && generation == source_generation(source)) {
        source->epochs.broken = r;
    }
    return r;
}

int sync_close_in_free(struct source *source) {
    ASSERT_HELD(&source->lock);
    uint64_t number = epochs_stamp(&source->epochs);
    int r = epochs_close(&source->epochs, source->backend, true);
    if (r == 0) {
        source->freed_large = 0;
        if (atomic_load_explicit(&source->pressure, memory_order_relaxed) > 0) {
            atomic_store_explicit(&source->pressure, pressure_since(number, true),
                                  memory_order_relaxed);
        }
    }
    return r;
}

/*
 * Returns whether frees record events for decay, so that idle memory can go back although later
 * work still runs. False if a record may be refused, because the free would then wait for all work.
 */
static bool records_for_decay(const struct source *source) {
    return source->config.decays && source->backend->has_events && source->backend->refused == 0 &&
           !backend_is_captured(source->backend);
}

/*
 * Pending blocks may not fit the next requests. The pool then grows by up to as much as is pending.
 *
 *   such a growth would     frees of large blocks record an event, even without pressure
 *   exceed the budget       once per budget_event_bytes()
 *   not exceed it           for decay only, once per 1/EVENT_PART of the reserve if that is more
 */
bool sync_event_is_due(struct source *source, uint64_t freed) {
    bool within_budget = budget_allows(source, source->pending_bytes + freed);
    if (within_budget && !records_for_decay(source)) {
        return false;
    }
    uint64_t budget = atomic_load_explicit(&source->budget, memory_order_relaxed);
    source->freed_large += freed;
    uint64_t most = budget_event_bytes(source, budget), part = source_reserved(source) / EVENT_PART;
    return source->freed_large > (within_budget && part > most ? part : most);
}

void sync_in_free(struct source *source, bool due) {
    ASSERT_HELD(&source->lock);
    bool sync = source->config.reuse == REUSE_SYNC;
    bool pressure = due || atomic_load_explicit(&source->pressure, memory_order_relaxed);
    if (!source->backend->has_events) {
        if (sync || pressure || source->pending_bytes > BUDGET_FLOOR) {
            synchronize_in_free(source);
        }
        return;
    }
    if (!sync && !pressure) {
        return;
    }
    /* Completed events make memory safe for allocations, which then need no slow path. */
    epochs_poll(&source->epochs, source->backend);
    uint64_t stamp = epochs_stamp(&source->epochs);
    int r = sync_close_in_free(source);
    /* -EAGAIN: no slot is free, because threads wait for every event */
    while (r == -EAGAIN && sync && wait_in_free_event(source, 0, true) == 0) {
        stamp = epochs_stamp(&source->epochs);
        r = sync_close_in_free(source);
    }
    bool waits = r == -EIO || (r == -EBUSY && backend_is_captured(source->backend));
    if (waits) {
        r = synchronize_in_free(source);
    }
    if (r == -EBUSY) {
        counter_add(&source->counters.capture_deferred_frees, 1);
    } else if (r == 0 && sync && !waits) {
        wait_in_free_event(source, stamp, true);
    }
}

/*
 * Returns whether an event recorded now, outside a free, would do harm, for one of two reasons:
 *
 *   1. The program itself makes later work of the context wait for its own events. These waits
 *      would include the pool's event.
 *   2. A barrier is allowed now, and would not be allowed while the new event is the newest. Under
 *      pressure the barrier is worth more than the event.
 */
static bool late_record_blocks_barriers(const struct source *source) {
    return source->application_syncs ||
           (source->config.reuse == REUSE_BARRIER && epochs_barrier_allowed(&source->epochs) &&
            atomic_load_explicit(&source->pressure, memory_order_relaxed));
}

bool sync_query(struct source *source, uint64_t stamp) {
    ASSERT_HELD(&source->lock);
    struct epochs *epochs = &source->epochs;
    if (epochs_is_safe(epochs, stamp)) {
        return true;
    }
    epochs_poll(epochs, source->backend);
    if (!epochs_is_safe(epochs, stamp) && epochs_latest(epochs) < stamp &&
        source->backend->has_events && !late_record_blocks_barriers(source) &&
        epochs_close(epochs, source->backend, false) == 0) {
        epochs_poll(epochs, source->backend);
    }
    return epochs_is_safe(epochs, stamp);
}

/*
 * Returns whether a CPU wait is better than a barrier because the program uses several streams.
 *
 * A barrier makes every stream wait for all the others. If enough work is in progress behind the
 * event that covers `stamp`, the CPU waits for that event alone, and the device stays busy with
 * later work. Enough means EVENTS_BEHIND events, and 1/BEHIND_SHARE of the budget freed between
 * them. A program with large blocks completes less than that soon: the device would run idle.
 */
static bool barrier_serialises_streams(const struct source *source, uint64_t stamp) {
    if (budget_streams() <= 1) {
        return false;
    }
    uint64_t budget = atomic_load_explicit(&source->budget, memory_order_relaxed);
    uint64_t behind = epochs_behind(&source->epochs, stamp);
    return behind >= EVENTS_BEHIND &&
           behind * budget_event_bytes(source, budget) >= budget / BEHIND_SHARE;
}

enum way { WAY_NONE, WAY_BARRIER, WAY_WAIT };

/*
 * The decision on barriers: returns what makes `stamp` safe. The first row that holds decides.
 *
 *      condition                                      way
 *   1  the reuse mode has no barriers                 CPU wait
 *   2  barrier_serialises_streams()                   CPU wait
 *   3  the newest event was not recorded in a free    CPU wait with SYNC_ANY_WAIT, else none
 *   4  otherwise                                      barrier, or CPU wait if the backend can make
 *                                                     none: other contexts reach the memory too
 *
 * With SYNC_NO_WAIT the caller does nothing instead of a CPU wait. Row 3 also holds without any
 * event, and after an application-recorded event (epochs_barrier_allowed()).
 *
 * The slow path (pool/slow_path.c) decides when memory has to become safe: at steps 5, 8, 11 and 12
 * if a growth would exceed the budget, after step 10 if it would exceed the goal, and at steps 14
 * to 21 after a refusal.
 */
static enum way choose_way(const struct source *source, uint64_t stamp, enum sync_effort effort) {
    if (source->config.reuse != REUSE_BARRIER || barrier_serialises_streams(source, stamp)) {
        return WAY_WAIT;
    }
    if (!epochs_barrier_allowed(&source->epochs)) {
        return effort == SYNC_ANY_WAIT ? WAY_WAIT : WAY_NONE;
    }
    return WAY_BARRIER;
}

bool sync_make_safe(struct source *source, uint64_t stamp, enum sync_effort effort) {
    ASSERT_HELD(&source->lock);
    enum way way = choose_way(source, stamp, effort);
    int r = -ENOENT;
    if (way == WAY_BARRIER) {
        r = epochs_barrier(&source->epochs, source->backend);
        way = r == -EBUSY ? WAY_WAIT : WAY_NONE;
    }
    if (way == WAY_WAIT && effort != SYNC_NO_WAIT) {
        r = wait_in_free_event(source, stamp, false);
    }
    return r == 0 && epochs_is_safe(&source->epochs, stamp);
}

bool sync_wait_while_suspended(struct source *source, uint64_t limit_ns) {
    if (!source->backend->suspended) {
        return false;
    }
    uint64_t since = backend_clock(source->backend), slept = 0,
             generation = source_generation(source);
    while (source->backend->suspended && generation == source_generation(source) &&
           passed(source, since, slept) < limit_ns) {
        sleep_unlocked(source, POLL_NS);
        slept += POLL_NS;
    }
    return !source->backend->suspended;
}

/*
 * Records an event outside a free and returns its epoch. During a stream capture returns the epoch
 * of the newest earlier event. Returns 0 if there is none to wait for. Sets *again to whether a
 * later call may succeed.
 */
static uint64_t close_outside_free(struct source *source, bool *again) {
    ASSERT_HELD(&source->lock);
    uint64_t stamp = epochs_stamp(&source->epochs);
    int r = epochs_close(&source->epochs, source->backend, false);
    *again = r == -EAGAIN || r == -EIO || source->backend->suspended;
    bool captured =
        r == -EBUSY && !source->backend->suspended && backend_is_captured(source->backend);
    return r == 0 ? stamp : captured ? epochs_latest(&source->epochs) : 0;
}

/* Returns whether epoch `number` (0: none) has finished, or any after `before` unless `all`. */
static bool has_enough(const struct epochs *epochs, uint64_t before, uint64_t number, bool all) {
    return (!all && epochs->finished > before) || (number > 0 && epochs->finished >= number);
}

bool sync_wait_any(struct source *source, uint64_t limit_ns, bool all) {
    ASSERT_HELD(&source->lock);
    struct epochs *epochs = &source->epochs;
    uint64_t since = backend_clock(source->backend), number = 0, slept = 0, waited = 0;
    uint64_t before = epochs->finished, generation = source_generation(source);
    if (!source->backend->has_events) {
        return false;
    }
    limit_ns = remaining_ns(source, limit_ns);
    while (generation == source_generation(source)) {
        bool again = true;
        number = number > 0 ? number : close_outside_free(source, &again);
        if (number == 0 && !again) {
            break;
        }
        epochs_poll(epochs, source->backend);
        waited = passed(source, since, slept);
        if (has_enough(epochs, before, number, all) || epochs->broken || waited >= limit_ns) {
            break;
        }
        sleep_unlocked(source, POLL_NS);
        slept += POLL_NS;
    }
    if (slept > 0) {
        count_wait(source, since);
    }
    bool finished = has_enough(epochs, before, number, all);
    if (!finished && slept > 0) {
        count_failed_wait(source, epochs_stamp(epochs) - 1, waited);
    }
    return finished;
}

void sync_wait_barriers(struct source *source) {
    uint64_t stamp = atomic_load(&source->epochs.safe);
    if (source->epochs.finished < stamp) {
        wait_in_free_event(source, stamp, false);
    }
}

bool sync_wait_idle_segment(struct source *source, uint64_t last) {
    uint64_t finished = source->epochs.finished;
    uint64_t stamp =
        min_u64(idle_stamp(&source->large, finished), idle_stamp(&source->small, finished));
    return stamp <= last && wait_in_free_event(source, stamp, false) == 0;
}

/*
 * Pins the event of `stamp` and calls poll_up_to_unpinned(). Without the pin another event could be
 * recorded in the same slot, and capture work that was submitted later. Waits for the event in the
 * driver if queries fail.
 */
static void poll_up_to(struct source *source, uint64_t stamp, bool suspended, uint64_t limit_ns) {
    ASSERT_HELD(&source->lock);
    unsigned slot;
    uint64_t number;
    epochs_poll(&source->epochs, source->backend);
    if (source->epochs.finished < stamp) {
        bool pinned = epochs_pin(&source->epochs, stamp, &slot, &number) == 0;
        if (!poll_up_to_unpinned(source, stamp, suspended, limit_ns)) {
            wait_in_free_event(source, stamp, false);
        }
        if (pinned) {
            epochs_unpin(&source->epochs, slot, number, -EAGAIN);
        }
    }
}

void sync_wait_submitted(struct source *source, uint64_t limit_ns) {
    ASSERT_HELD(&source->lock);
    struct epochs *epochs = &source->epochs;
    unsigned slot;
    uint64_t number, generation = source_generation(source);
    if (source->backend->suspended) {
        return;
    }
    /* During a capture, or while no slot is free, the newest event that exists has to do. */
    bool recorded = epochs_close(epochs, source->backend, false) == 0;
    epochs->closed -= recorded; /* uncounted, like the wait: no call of the program caused it */
    if (epochs_pin_latest(epochs, &slot, &number) != 0) {
        return;
    }
    epochs_poll(epochs, source->backend);
    poll_up_to_unpinned(source, number, false, limit_ns);
    if (epochs->finished >= number && !source->backend->suspended &&
        generation == source_generation(source)) {
        wait_in_driver(source, slot); /* the event has completed: the driver only prints */
    }
    epochs_unpin(epochs, slot, number, -EAGAIN);
}

void sync_wait_barriers_by_queries(struct source *source) {
    poll_up_to(source, atomic_load(&source->epochs.safe), true, UINT64_MAX);
}

bool sync_wait_in_free_events(struct source *source) {
    ASSERT_HELD(&source->lock);
    struct epochs *epochs = &source->epochs;
    uint64_t since = backend_clock(source->backend), stamp = epochs_latest_in_free(epochs);
    epochs_poll(epochs, source->backend);
    bool any = epochs->finished < stamp;
    if (any) {
        poll_up_to(source, epochs_latest_own(epochs), false, UINT64_MAX);
        uint64_t limit_ns = remaining_ns(source, LATE_WAIT_NS);
        poll_up_to(source, stamp, false, limit_ns);
        if (epochs->finished < stamp && !source->backend->suspended) {
            count_failed_wait(source, stamp, limit_ns);
        }
        count_wait(source, since);
    }
    return any;
}

bool sync_wait_own_barrier(struct source *source) {
    struct epochs *epochs = &source->epochs;
    uint64_t since = backend_clock(source->backend), stamp = atomic_load(&epochs->safe);
    bool any = epochs->finished < stamp && epochs_latest_own(epochs) >= stamp;
    if (any) {
        poll_up_to(source, stamp, false, UINT64_MAX);
        count_wait(source, since);
    }
    return any;
}

bool sync_work_is_done(struct source *source) {
    ASSERT_HELD(&source->lock);
    struct epochs *epochs = &source->epochs;
    uint64_t stamp = epochs_stamp(epochs);
    if (!source->backend->has_events || epochs_close(epochs, source->backend, false) != 0) {
        return false;
    }
    for (unsigned i = 0; i < QUERIES_MOST && epochs->finished < stamp; i++) {
        epochs_poll(epochs, source->backend);
    }
    return epochs->finished >= stamp; /* `stamp` was the open epoch: it covers barriers too */
}
