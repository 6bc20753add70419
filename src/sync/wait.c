/*
 * Waits on the CPU: for events recorded in frees, for another thread's call that may end the
 * context, and for all work so far.
 *
 * All functions need the pool's lock, and release it while they wait. sync_wait_submitted() keeps
 * it during its wait for a completed event. Invariant: outside a free, a thread waits without a
 * limit only for an event that one of its own frees recorded. Exceptions:
 * sync_wait_barriers_by_queries(), and waits in the driver after queries failed. Callers: sync.c,
 * pool.c, lookup.c, slow_path.c, out_of_memory.c, segments.c and remap.c.
 */
#include "sync/wait.h"

#include "base/clock.h"
#include "sync/sync.h"

#include <errno.h>

void count_wait(struct source *source, uint64_t since) {
    counter_add(&source->counters.cpu_waits, 1);
    counter_add(&source->counters.cpu_wait_ns, backend_clock(source->backend) - since);
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
    if (source->epochs.finished >= source->waits.failed_stamp)
        source->waits.failed_ns = 0;
    return limit_ns > source->waits.failed_ns ? limit_ns - source->waits.failed_ns : 0;
}

/* Counts a wait of `ns` after which epoch `stamp` had not finished. */
static void count_failed_wait(struct source *source, uint64_t stamp, uint64_t ns) {
    source->waits.failed_stamp = max_u64(source->waits.failed_stamp, stamp);
    source->waits.failed_ns += ns;
}

/*
 * Queries until epoch `stamp` has finished, for at most `limit_ns`. The caller has pinned the event
 * if one exists. Does not wait in the driver: this context may end during such a wait. The polling
 * ends with the context, because epochs_forget() finishes every epoch.
 *
 *   context is suspended    no event can be queried. Goes on with `while_suspended`, because the
 *                           context may be usable again afterwards; otherwise gives up.
 *   queries fail otherwise  returns false after QUERIES_MOST of them, POLL_NS apart: the driver may
 *                           never answer.
 *
 * Returns true in all other cases, also at the limit and after a fault: the caller looks at
 * epochs->finished.
 */
static bool query_until(struct source *source, uint64_t stamp, bool while_suspended,
                        uint64_t limit_ns) {
    struct epochs *epochs = &source->epochs;
    uint64_t since = backend_clock(source->backend), slept = 0;
    unsigned before = epochs->failed_queries;
    while (epochs->finished < stamp && !epochs->broken &&
           (while_suspended || !source->backend->suspended) &&
           passed(source, since, slept) < limit_ns) {
        if (source->backend->suspended)
            before = epochs->failed_queries;
        else if (epochs->failed_queries - before > QUERIES_MOST)
            return false;
        sleep_unlocked(source, POLL_NS);
        slept += POLL_NS;
        epochs_poll(epochs, source->backend);
    }
    return true;
}

/*
 * Waits by queries for a pinned event of another thread's free, at most LATE_WAIT_NS; if queries
 * fail, in the driver without a limit. The limit prevents a deadlock: the captured work may wait
 * for the calling thread's next call. Natively only the other thread would wait, in its free.
 * Returns as wait_for_event_in_free().
 */
static int wait_for_other_thread(struct source *source, unsigned slot, uint64_t number) {
    struct epochs *epochs = &source->epochs;
    uint64_t limit_ns = remaining_ns(source, LATE_WAIT_NS);
    epochs_poll(epochs, source->backend);
    if (!query_until(source, number, false, limit_ns))
        return wait_in_driver(source, slot);
    if (epochs->finished < number && !source->backend->suspended && !epochs->broken)
        count_failed_wait(source, number, limit_ns);
    return epochs->finished >= number ? 0 : epochs->broken ? epochs->broken : -EBUSY;
}

int wait_for_event_in_free(struct source *source, uint64_t stamp, bool freeing) {
    ASSERT_HELD(&source->lock);
    unsigned slot;
    uint64_t number;
    int r =
        source->backend->suspended ? -EBUSY : epochs_pin(&source->epochs, stamp, &slot, &number);
    if (r != 0)
        return r;
    uint64_t since = backend_clock(source->backend);
    r = freeing || epochs_is_own(&source->epochs, slot)
            ? wait_in_driver(source, slot)
            : wait_for_other_thread(source, slot, number);
    count_wait(source, since);
    epochs_unpin(&source->epochs, slot, number, r);
    return r;
}

/* Returns whether the context has ended and pool_forget() has removed its memory. Perhaps no next
 * context comes, so nothing waits for one. */
static bool is_forgotten(const struct source *source) {
    return source->backend->ended && source_reserved(source) == 0;
}

bool sync_wait_while_suspended(struct source *source, uint64_t limit_ns) {
    const struct backend *backend = source->backend;
    if (!backend->suspended || is_forgotten(source))
        return false;
    uint64_t since = backend_clock(source->backend), slept = 0,
             generation = source_generation(source);
    while (backend->suspended && generation == source_generation(source) &&
           passed(source, since, slept) < limit_ns) {
        sleep_unlocked(source, POLL_NS);
        slept += POLL_NS;
    }
    return !backend->suspended;
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

/* Returns whether a wait is over: epoch `number` (0: none) has finished, or, without `all`, any
 * epoch after `before`. */
static bool has_enough(const struct epochs *epochs, uint64_t before, uint64_t number, bool all) {
    return (!all && epochs->finished > before) || (number > 0 && epochs->finished >= number);
}

bool sync_wait_any(struct source *source, uint64_t limit_ns, bool all) {
    ASSERT_HELD(&source->lock);
    struct epochs *epochs = &source->epochs;
    uint64_t since = backend_clock(source->backend), number = 0, slept = 0, waited = 0;
    uint64_t before = epochs->finished, generation = source_generation(source);
    if (!source->backend->has_events)
        return false;
    limit_ns = remaining_ns(source, limit_ns);
    while (generation == source_generation(source) && !is_forgotten(source)) {
        bool again = true;
        number = number > 0 ? number : close_outside_free(source, &again);
        if (number == 0 && !again)
            break;
        epochs_poll(epochs, source->backend);
        waited = passed(source, since, slept);
        if (has_enough(epochs, before, number, all) || epochs->broken || waited >= limit_ns)
            break;
        sleep_unlocked(source, POLL_NS);
        slept += POLL_NS;
    }
    if (slept > 0)
        count_wait(source, since);
    bool finished = has_enough(epochs, before, number, all);
    if (!finished && slept > 0)
        count_failed_wait(source, epochs_stamp(epochs) - 1, waited);
    return finished;
}

void sync_wait_barriers(struct source *source) {
    uint64_t stamp = atomic_load(&source->epochs.safe);
    if (source->epochs.finished < stamp)
        wait_for_event_in_free(source, stamp, false);
}

bool sync_wait_idle_segment(struct source *source, uint64_t last) {
    uint64_t finished = source->epochs.finished;
    uint64_t stamp =
        min_u64(idle_stamp(&source->large, finished), idle_stamp(&source->small, finished));
    return stamp <= last && wait_for_event_in_free(source, stamp, false) == 0;
}

/*
 * Polls. Pins the event of `stamp` and calls query_until() if epoch `stamp` has not finished.
 * Without the pin the slot could get another event, which captures later work too. If queries fail,
 * calls wait_for_event_in_free(). For another thread's event that function polls again before it
 * waits in the driver.
 */
static void pin_and_query_until(struct source *source, uint64_t stamp, bool while_suspended,
                                uint64_t limit_ns) {
    ASSERT_HELD(&source->lock);
    unsigned slot;
    uint64_t number;
    epochs_poll(&source->epochs, source->backend);
    if (source->epochs.finished < stamp) {
        bool pinned = epochs_pin(&source->epochs, stamp, &slot, &number) == 0;
        if (!query_until(source, stamp, while_suspended, limit_ns))
            wait_for_event_in_free(source, stamp, false);
        if (pinned)
            epochs_unpin(&source->epochs, slot, number, -EAGAIN);
    }
}

void sync_wait_submitted(struct source *source, uint64_t limit_ns) {
    ASSERT_HELD(&source->lock);
    struct epochs *epochs = &source->epochs;
    unsigned slot;
    uint64_t number, generation = source_generation(source);
    if (source->backend->suspended)
        return;
    /* During a capture, or while no slot is free, the newest event that exists has to do. */
    bool recorded = epochs_close(epochs, source->backend, false) == 0;
    epochs->closed -= recorded; /* uncounted, like the wait: no call of the program caused it */
    if (epochs_pin_latest(epochs, &slot, &number) != 0)
        return;
    epochs_poll(epochs, source->backend);
    query_until(source, number, false, limit_ns);
    /* The event has completed, so the driver only prints what kernels wrote by printf(). The lock
     * stays held, because a call that may end the context, and the event with it, takes it
     * first. */
    if (epochs->finished >= number && !source->backend->suspended &&
        generation == source_generation(source))
        source->backend->ops->wait(source->backend, slot);
    epochs_unpin(epochs, slot, number, -EAGAIN);
}

void sync_wait_barriers_by_queries(struct source *source) {
    pin_and_query_until(source, atomic_load(&source->epochs.safe), true, UINT64_MAX);
}

bool sync_wait_in_free_events(struct source *source) {
    ASSERT_HELD(&source->lock);
    struct epochs *epochs = &source->epochs;
    uint64_t since = backend_clock(source->backend), stamp = epochs_latest_in_free(epochs);
    epochs_poll(epochs, source->backend);
    bool any = epochs->finished < stamp;
    if (any) {
        pin_and_query_until(source, epochs_latest_own(epochs), false, UINT64_MAX);
        uint64_t limit_ns = remaining_ns(source, LATE_WAIT_NS);
        pin_and_query_until(source, stamp, false, limit_ns);
        if (epochs->finished < stamp && !source->backend->suspended)
            count_failed_wait(source, stamp, limit_ns);
        count_wait(source, since);
    }
    return any;
}

bool sync_wait_own_barrier(struct source *source) {
    struct epochs *epochs = &source->epochs;
    uint64_t since = backend_clock(source->backend), stamp = atomic_load(&epochs->safe);
    bool any = epochs->finished < stamp && epochs_latest_own(epochs) >= stamp;
    if (any) {
        pin_and_query_until(source, stamp, false, UINT64_MAX);
        count_wait(source, since);
    }
    return any;
}
