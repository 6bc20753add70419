/*
 * Synchronising: makes pending memory safe in one of four ways.
 *
 *      way                       price (docs/policy.md) allowed
 *      query                     lowest                 always; helps if the work has completed
 *      record, then query        low                    outside captures, if no event covers the
 *                                                       memory; not if late_record_does_harm()
 *      barrier on the device     low on the CPU; later  outside captures, if no other context is
 *                                work of streams waits  active, the newest event was recorded in a
 *                                                       free, and the program recorded none since
 *      wait on the CPU (wait.c)  the time of the work   without a limit: events that frees of the
 *                                                       calling thread recorded. With a limit:
 *                                                       those of other threads' frees, and before
 *                                                       out of memory all events
 *
 * A free that cannot record an event may have to wait for all work (synchronize_in_free()). The
 * cases are at sync_in_free() in sync.h. In mode REUSE_SYNC each free waits for its event without a
 * limit.
 *
 * Under pressure, frees record events, so that a barrier or a wait can make their memory safe when
 * it is needed. docs/policy.md has the measurements. All functions need the pool's lock. Only
 * sync_in_free() and sync_make_safe() wait, and release the lock while they do.
 */
#include "sync/sync.h"

#include "sync/wait.h"

#include <errno.h>

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
 * Pending blocks may not fit the next requests. The pool then grows by up to as much as is pending.
 *
 *   such a growth would     frees of large blocks record an event, even without pressure
 *   exceed the budget       once per budget_event_bytes()
 *   not exceed it           for decay only, once per 1/EVENT_PART of the reserve, or per
 *                           budget_event_bytes() if that is more: idle memory can then go back
 *                           although later work still runs. Not if the last record was refused, or
 *                           during a capture: the free could have to wait for all work
 */
bool sync_event_is_due(struct source *source, uint64_t freed) {
    bool within_budget = budget_allows(source, source->pending_bytes + freed);
    if (within_budget && (!source->config.decays || !source->backend->has_events ||
                          source->backend->refused > 0 || backend_is_captured(source->backend)))
        return false;
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
        if (sync || pressure || source->pending_bytes > BUDGET_FLOOR)
            synchronize_in_free(source);
        return;
    }
    if (!sync && !pressure)
        return;
    /* Completed events make memory safe for allocations, which then need no slow path. */
    epochs_poll(&source->epochs, source->backend);
    uint64_t stamp = epochs_stamp(&source->epochs);
    int r = sync_close_in_free(source);
    /* -EAGAIN: no slot is free, because threads wait for every event */
    while (r == -EAGAIN && sync && wait_for_event_in_free(source, 0, true) == 0) {
        stamp = epochs_stamp(&source->epochs);
        r = sync_close_in_free(source);
    }
    bool waits = r == -EIO || (r == -EBUSY && backend_is_captured(source->backend));
    if (waits)
        r = synchronize_in_free(source);
    if (r == -EBUSY) /* captured, suspended, in a host function: a later free records the event */
        counter_add(&source->counters.capture_deferred_frees, 1);
    else if (r == 0 && sync && !waits)
        wait_for_event_in_free(source, stamp, true);
}

/*
 * Returns whether an event recorded now, outside a free, would do harm, for one of two reasons:
 *
 *   1. The program itself makes later work of the context wait for its own events. These waits
 *      would include the pool's event.
 *   2. A barrier is allowed now, and would not be allowed while the new event is the newest. Under
 *      pressure the barrier is worth more than the event.
 */
static bool late_record_does_harm(const struct source *source) {
    return source->application_syncs ||
           (source->config.reuse == REUSE_BARRIER && epochs_barrier_allowed(&source->epochs) &&
            atomic_load_explicit(&source->pressure, memory_order_relaxed));
}

bool sync_query(struct source *source, uint64_t stamp) {
    ASSERT_HELD(&source->lock);
    struct epochs *epochs = &source->epochs;
    if (epochs_is_safe(epochs, stamp))
        return true;
    epochs_poll(epochs, source->backend);
    if (!epochs_is_safe(epochs, stamp) && epochs_latest(epochs) < stamp &&
        source->backend->has_events && !late_record_does_harm(source) &&
        epochs_close(epochs, source->backend, false) == 0)
        epochs_poll(epochs, source->backend);
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
    if (budget_streams() <= 1)
        return false;
    uint64_t budget = atomic_load_explicit(&source->budget, memory_order_relaxed);
    uint64_t behind = epochs_behind(&source->epochs, stamp);
    return behind >= EVENTS_BEHIND &&
           behind * budget_event_bytes(source, budget) >= budget / BEHIND_SHARE;
}

/*
 * Chooses between a barrier and a CPU wait. The first row that holds decides.
 *
 *      condition                                      way
 *   1  the reuse mode has no barriers                 CPU wait
 *   2  barrier_serialises_streams()                   CPU wait
 *   3  the newest event was not recorded in a free    CPU wait with SYNC_ANY_WAIT, else none
 *   4  otherwise                                      barrier, or CPU wait if the backend can make
 *                                                     none (-EBUSY of ops->barrier())
 *
 * With SYNC_NO_WAIT the function does nothing instead of a CPU wait. Row 3 (-ENOENT of
 * epochs_barrier()) also holds without any event, and after an application-recorded event
 * (epochs_barrier_allowed()).
 *
 * The slow path (pool/slow_path.c) decides when memory has to become safe: at steps 5, 8, 11 and 12
 * if a growth would exceed the budget, after step 10 if it would exceed the goal, and at steps 14
 * to 21 after a refusal.
 */
bool sync_make_safe(struct source *source, uint64_t stamp, enum sync_effort effort) {
    ASSERT_HELD(&source->lock);
    bool no_barrier =
        source->config.reuse != REUSE_BARRIER || barrier_serialises_streams(source, stamp);
    int r = no_barrier ? -EBUSY : epochs_barrier(&source->epochs, source->backend);
    bool waits = r == -EBUSY || (r == -ENOENT && effort == SYNC_ANY_WAIT); /* -ENOENT: row 3 */
    if (waits && effort != SYNC_NO_WAIT)
        r = wait_for_event_in_free(source, stamp, false);
    return r == 0 && epochs_is_safe(&source->epochs, stamp);
}

bool sync_work_is_done(struct source *source) {
    ASSERT_HELD(&source->lock);
    struct epochs *epochs = &source->epochs;
    uint64_t stamp = epochs_stamp(epochs);
    if (!source->backend->has_events || epochs_close(epochs, source->backend, false) != 0)
        return false;
    for (unsigned i = 0; i < QUERIES_MOST && epochs->finished < stamp; i++)
        epochs_poll(epochs, source->backend);
    return epochs->finished >= stamp; /* `stamp` was the open epoch: it covers barriers too */
}
