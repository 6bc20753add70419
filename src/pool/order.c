/*
 * Order: making pending memory usable, each way at its price.
 *
 *      query                 0.1 us of CPU       if the work has finished; always allowed
 *      late event + query    0.3 us of CPU       likewise, for memory of the open epoch
 *      device barrier        1 us, and streams   while the newest event is on time
 *                            fall in behind it
 *      CPU wait              the work's time     on-time events only; on a late one as the last
 *                                                thing before out of memory, with a time limit
 *
 * A free records nothing but under pressure: then it leaves an event on time, so that what it freed
 * can be ordered when it is needed.
 */
#include "pool/internal.h"

#include "process/nap.h"

#include <errno.h>

static void book_wait(struct pool *pool, uint64_t since) {
    pool->epochs.cpu_waits++;
    pool->epochs.cpu_wait_ns += backend_clock(pool->backend) - since;
}

/* Waits on the CPU for the earliest on-time event that makes `stamp` usable, without the lock. */
static int wait_on_time(struct pool *pool, uint64_t stamp) {
    unsigned slot;
    uint64_t number;
    int r = pool->backend->quiet ? -EBUSY : epochs_pin(&pool->epochs, stamp, &slot, &number);
    if (r != 0) {
        return r;
    }
    uint64_t since = backend_clock(pool->backend);
    pool->waiting++;
    lock_release(&pool->lock);
    r = pool->backend->ops->wait(pool->backend, slot);
    lock_acquire(&pool->lock);
    pool->waiting--;
    book_wait(pool, since);
    epochs_unpin(&pool->epochs, slot, number, r);
    return r;
}

/* Where nothing can be recorded: as the native free would, wait for everything there is. Only inside a
 * free. */
static int synchronize_in_free(struct pool *pool) {
    uint64_t number = atomic_fetch_add(&pool->epochs.open, 1);
    uint64_t since = backend_clock(pool->backend);
    pool->waiting++;
    lock_release(&pool->lock);
    int r = pool->backend->ops->synchronize(pool->backend);
    lock_acquire(&pool->lock);
    pool->waiting--;
    book_wait(pool, since);
    if (r == 0) {
        epochs_finish(&pool->epochs, number);
        pool->epochs.closed++;
    } else if (r > 0) {
        pool->epochs.broken = r;
    }
    return r;
}

int order_close_on_time(struct pool *pool) {
    uint64_t number = epochs_stamp(&pool->epochs);
    int r = epochs_close(&pool->epochs, pool->backend, true);
    if (r == 0) {
        pool->freed_large = 0;
        if (atomic_load_explicit(&pool->tight, memory_order_relaxed) > 0) {
            atomic_store_explicit(&pool->tight, tight_from(number, true), memory_order_relaxed);
        }
    }
    return r;
}

/* What is freed here may go back before the work has ended that is submitted next. Only where an event costs nothing
 * but its record. */
static bool decays(const struct pool *pool) {
    return pool->config.decays && pool->backend->has_events && pool->backend->refused == 0 &&
           !order_is_captured(pool);
}

/*
 * Large blocks of other sizes than those that are pending make the pool grow by as much again. Where that
 * would exceed the budget the frees prepare for it, without pressure too.
 */
bool order_is_due(struct pool *pool, uint64_t freed) {
    bool has_room = budget_has_room(pool, pool->pending_bytes + freed);
    if (has_room && !decays(pool)) {
        return false;
    }
    uint64_t budget = atomic_load_explicit(&pool->budget, memory_order_relaxed);
    pool->freed_large += freed;
    uint64_t most = order_event_bytes(pool, budget), part = budget_used(pool) / DECAY_EVENT_SHARE;
    return pool->freed_large > (has_room && part > most ? part : most);
}

void order_in_free(struct pool *pool, bool due) {
    bool sync = pool->config.reuse == POOL_SYNC;
    bool tight = due || atomic_load_explicit(&pool->tight, memory_order_relaxed);
    if (!pool->backend->has_events) {
        if (sync || tight || pool->pending_bytes > SYNCHRONIZE_BYTES) {
            synchronize_in_free(pool);
        }
        return;
    }
    if (!sync && !tight) {
        return;
    }
    epochs_poll(&pool->epochs, pool->backend); /* so that allocations need not come here for it */
    uint64_t stamp = epochs_stamp(&pool->epochs);
    int r = order_close_on_time(pool);
    while (r == -EAGAIN && sync &&
           wait_on_time(pool, 0) == 0) { /* every slot is being waited for */
        stamp = epochs_stamp(&pool->epochs);
        r = order_close_on_time(pool);
    }
    bool waits = r == -EIO || (r == -EBUSY && order_is_captured(pool));
    if (waits) {
        r = synchronize_in_free(pool);
    }
    if (r == -EBUSY) {
        books_add(&pool->books.capture_deferred_frees, 1);
    } else if (r == 0 && sync && !waits) {
        wait_on_time(pool, stamp);
    }
}

/*
 * A late record keeps barriers away until it has finished: near the budget, where barriers count,
 * none is made while one is possible. And none at all beside a program that makes its own waits of
 * the context: they would stand in line behind it.
 */
static bool late_records_hurt(const struct pool *pool) {
    return pool->program_orders ||
           (pool->config.reuse == POOL_BARRIER && epochs_can_order(&pool->epochs) &&
            atomic_load_explicit(&pool->tight, memory_order_relaxed));
}

bool order_cheaply(struct pool *pool, uint64_t stamp) {
    struct epochs *epochs = &pool->epochs;
    if (epochs_usable(epochs, stamp)) {
        return true;
    }
    epochs_poll(epochs, pool->backend);
    if (!epochs_usable(epochs, stamp) && epochs_latest(epochs) < stamp &&
        pool->backend->has_events && !late_records_hurt(pool) &&
        epochs_close(epochs, pool->backend, false) == 0) {
        epochs_poll(epochs, pool->backend);
    }
    return epochs_usable(epochs, stamp);
}

/*
 * A barrier holds up every stream until all of them have got to it. Where streams run side by side
 * and much more is under way behind the event that is needed, the CPU waits for that one instead:
 * the device has the rest to go on with. Much by the measure of the program: one that works on large
 * memory is soon through what it freed within a small part of it, and would run dry.
 */
static bool barrier_hurts(const struct pool *pool, uint64_t stamp) {
    if (budget_streams() <= 1) {
        return false;
    }
    uint64_t budget = atomic_load_explicit(&pool->budget, memory_order_relaxed);
    uint64_t behind = epochs_behind(&pool->epochs, stamp);
    return behind >= EVENTS_BEHIND &&
           behind * order_event_bytes(pool, budget) >= budget / BEHIND_SHARE;
}

static int order_by_barrier(struct pool *pool, uint64_t stamp) {
    return pool->config.reuse == POOL_BARRIER && !barrier_hurts(pool, stamp)
               ? epochs_order(&pool->epochs, pool->backend)
               : -EBUSY;
}

bool order_soon(struct pool *pool, uint64_t stamp) {
    return order_cheaply(pool, stamp) ||
           (order_by_barrier(pool, stamp) == 0 && epochs_usable(&pool->epochs, stamp));
}

bool order_now(struct pool *pool, uint64_t stamp, bool at_any_price) {
    int r = order_by_barrier(pool, stamp);
    if (r == -EBUSY || (r == -ENOENT && at_any_price)) {
        r = wait_on_time(pool, stamp);
    }
    return r == 0 && epochs_usable(&pool->epochs, stamp);
}

/* A clock may stand still: what was slept has passed in any case. */
static uint64_t passed(const struct pool *pool, uint64_t since, uint64_t slept) {
    return most_of(backend_clock(pool->backend) - since, slept);
}

static void sleep_unlocked(struct pool *pool, uint64_t ns) {
    lock_release(&pool->lock);
    nap(ns);
    lock_acquire(&pool->lock);
}

bool order_wait_for_answers(struct pool *pool, uint64_t limit_ns) {
    if (!pool->backend->quiet) {
        return false;
    }
    uint64_t since = backend_clock(pool->backend), slept = 0, lives = pool_lives(pool);
    while (pool->backend->quiet && lives == pool_lives(pool) &&
           passed(pool, since, slept) < limit_ns) {
        sleep_unlocked(pool, FINISH_POLL_NS);
        slept += FINISH_POLL_NS;
    }
    return !pool->backend->quiet;
}

/* A late record; while a stream is being captured, when there can be none, the last one that was made before. 0: there is
 * nothing to wait for; *again: there may be. */
static uint64_t close_late(struct pool *pool, bool *again) {
    uint64_t stamp = epochs_stamp(&pool->epochs);
    int r = epochs_close(&pool->epochs, pool->backend, false);
    *again = r == -EAGAIN || r == -EIO || pool->backend->quiet;
    bool captured = r == -EBUSY && !pool->backend->quiet && order_is_captured(pool);
    return r == 0 ? stamp : captured ? epochs_latest(&pool->epochs) : 0;
}

/* What is left of a limit: waits in vain count until what they were for has finished. */
static uint64_t patience(struct pool *pool, uint64_t limit_ns) {
    if (pool->epochs.finished >= pool->waited_for) {
        pool->waited_ns = 0;
    }
    return limit_ns > pool->waited_ns ? limit_ns - pool->waited_ns : 0;
}

static void waited_in_vain(struct pool *pool, uint64_t line, uint64_t ns) {
    pool->waited_for = most_of(pool->waited_for, line);
    pool->waited_ns += ns;
}

bool order_finish(struct pool *pool, uint64_t limit_ns, bool all) {
    struct epochs *epochs = &pool->epochs;
    uint64_t before = epochs->finished;
    if (!pool->backend->has_events) {
        return false;
    }
    limit_ns = patience(pool, limit_ns);
    uint64_t since = backend_clock(pool->backend), number = 0, slept = 0, waited = 0;
    uint64_t lives = pool_lives(pool);
    while (lives == pool_lives(pool)) {
        bool again = false;
        if (number == 0 && (number = close_late(pool, &again)) == 0 && !again) {
            break;
        }
        epochs_poll(epochs, pool->backend);
        waited = passed(pool, since, slept);
        bool some = !all && epochs->finished > before;
        if (some || (number > 0 && epochs->finished >= number) || epochs->broken ||
            waited >= limit_ns) {
            break;
        }
        sleep_unlocked(pool, FINISH_POLL_NS);
        slept += FINISH_POLL_NS;
    }
    if (slept > 0) {
        book_wait(pool, since);
    }
    bool some = !all && epochs->finished > before;
    bool finished = some || (number > 0 && epochs->finished >= number);
    if (!finished && slept > 0) {
        waited_in_vain(pool, epochs_stamp(epochs) - 1, waited);
    }
    return finished;
}

void order_finish_ordered(struct pool *pool) {
    uint64_t line = atomic_load(&pool->epochs.usable);
    if (pool->epochs.finished < line) {
        wait_on_time(pool, line);
    }
}

bool order_finish_stamp(struct pool *pool, uint64_t stamp) {
    return wait_on_time(pool, stamp) == 0;
}

/*
 * For other contexts' threads: by queries, because a wait would still be under way when this one ends. While a
 * call may be ending it nothing can be asked; but it may go on afterwards, with its work: `quiet` it is waited for. A driver that
 * does not answer otherwise is waited for all the same: it might never answer.
 */
static void settle_unpinned(struct pool *pool, uint64_t line, bool quiet, uint64_t limit_ns) {
    struct epochs *epochs = &pool->epochs;
    uint64_t lives = pool_lives(pool), since = backend_clock(pool->backend), slept = 0;
    unsigned before = epochs->unanswered;
    while (epochs->finished < line && !epochs->broken && (quiet || !pool->backend->quiet) &&
           passed(pool, since, slept) < limit_ns) {
        if (pool->backend->quiet) {
            before = epochs->unanswered;
        } else if (epochs->unanswered - before > UNANSWERED_MOST) {
            wait_on_time(pool, line);
            return;
        }
        sleep_unlocked(pool, FINISH_POLL_NS);
        slept += FINISH_POLL_NS;
        if (lives != pool_lives(pool)) {
            return;
        }
        epochs_poll(epochs, pool->backend);
    }
}

/* Its event is kept meanwhile: another one in its place would stand for work that was submitted since. */
static void settle_to(struct pool *pool, uint64_t line, bool quiet, uint64_t limit_ns) {
    unsigned slot;
    uint64_t number;
    epochs_poll(&pool->epochs, pool->backend);
    if (pool->epochs.finished < line) {
        bool pinned = epochs_pin(&pool->epochs, line, &slot, &number) == 0;
        settle_unpinned(pool, line, quiet, limit_ns);
        if (pinned) {
            epochs_unpin(&pool->epochs, slot, number, -EAGAIN);
        }
    }
}

void order_settle(struct pool *pool) {
    settle_to(pool, atomic_load(&pool->epochs.usable), true, UINT64_MAX);
}

bool order_finish_on_time(struct pool *pool) {
    struct epochs *epochs = &pool->epochs;
    uint64_t since = backend_clock(pool->backend), line = epochs_orderable(epochs);
    epochs_poll(epochs, pool->backend);
    bool any = epochs->finished < line;
    if (any) {
        settle_to(pool, epochs_left(epochs), false, UINT64_MAX);
        uint64_t limit_ns = patience(pool, LATE_WAIT_NS);
        settle_to(pool, line, false, limit_ns);
        if (epochs->finished < line && !pool->backend->quiet) {
            waited_in_vain(pool, line, limit_ns);
        }
        book_wait(pool, since);
    }
    return any;
}

bool order_is_idle(struct pool *pool) {
    struct epochs *epochs = &pool->epochs;
    uint64_t stamp = epochs_stamp(epochs);
    if (!pool->backend->has_events || epochs_close(epochs, pool->backend, false) != 0) {
        return false;
    }
    for (unsigned i = 0; i < IDLE_POLLS && epochs->finished < stamp; i++) {
        epochs_poll(epochs, pool->backend);
    }
    return epochs->finished >= stamp && epochs->finished >= atomic_load(&epochs->usable);
}
