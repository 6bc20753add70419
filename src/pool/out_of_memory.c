/*
 * Out of memory: steps 14 to 21 of the ladder of an allocation (slow_path.c has the table).
 *
 * refusal_round() takes each step once, steps 19 and 20 twice. retry_refused() repeats the
 * steps while other threads free or return memory, because they may also take the memory that this
 * thread waited for. The pool's lock protects all. Step 15 keeps it while it waits for threads to
 * leave their caches. All other waits release it, and state is read anew afterwards. Invariant:
 * retry_refused() holds the lock from its last check to its return. try_growth() in slow_path.c is
 * its only caller.
 */
#include "pool/internal.h"

#include "base/clock.h"

#include <errno.h>

/*
 * Returns the bytes that the driver has left for the pool. Sets *others to the idle bytes of other
 * pools if the backend has available(), else does not set it. Entered with the pool's lock, which
 * is released to ask.
 */
static uint64_t available_bytes(struct source *source, uint64_t *others) {
    struct backend *backend = source->backend;
    uint64_t used = source_reserved(source);
    uint64_t available = backend->capacity > used ? backend->capacity - used : 0;
    if (backend->ops->available) {
        lock_release(&source->lock);
        available = backend->ops->available(backend, others);
        lock_acquire(&source->lock);
    }
    return available;
}

/*
 * Returns whether enough memory may exist for the request: left at the driver, idle in other pools,
 * on its way to the driver, or unused_bytes() of this pool. Otherwise another request to the driver
 * or a wait is useless.
 *
 * Sets *none if nothing is pending or on its way, this pool has no idle segment and other pools no
 * idle memory. Entered with the pool's lock, which is released in between, before the idle bytes
 * are counted.
 */
static bool may_suffice(struct pool *pool, const struct alloc_request *request, bool *none) {
    struct source *source = &pool->source;
    uint64_t others = 0, available = available_bytes(source, &others);
    *none = source->pending_bytes + source->returning_bytes + source_idle(source) + others == 0;
    uint64_t unused = unused_bytes(pool, source_reserved(source));
    return request->bytes <= available + others + source->returning_bytes + unused;
}

/* State of an allocation after a refusal by the driver or the limit. */
struct oom_state {
    /* Limit of each further wait, in ns; 0 once a call that may end the context used it up. */
    uint64_t time_budget;
    bool taken_by_others; /* other requests took the memory that other pools released */
};

/*
 * Step 14: lets other threads run until as many growths have ended as were in progress on entry:
 * these may bring memory or return a charge. Releases the pool's lock in each turn of the loop.
 */
static void wait_for_growths(struct source *source) {
    ASSERT_HELD(&source->lock);
    uint64_t all = source->growing.done + source->growing.threads;
    for (unsigned turn = 0; source->growing.threads > 0 && source->growing.done < all; turn++) {
        lock_release(&source->lock);
        let_others_run(turn);
        lock_acquire(&source->lock);
    }
}

/*
 * Step 20: makes other pools of the device release idle memory, and with `wait` also memory that
 * work still uses. Returns whether they had any, or the driver had enough. Releases the lock.
 */
static bool try_other_pools(struct source *source, const struct alloc_request *request, bool wait) {
    ASSERT_HELD(&source->lock);
    struct backend *backend = source->backend;
    if (!backend->ops->release_others)
        return false;
    lock_release(&source->lock);
    bool any = backend->ops->release_others(backend, source_growth(request), wait);
    lock_acquire(&source->lock);
    return any;
}

/*
 * Steps 17, 19 and 20: grows the pool by a segment and retries. Returns 0 with request->block;
 * -EAGAIN if releasing memory may help; or another error of the growth. -EAGAIN after a growth
 * means that another thread took the memory. A refusal by the driver or the limit is in *refusal.
 */
static int try_grow(struct source *source, struct alloc_request *request, int *refusal) {
    int r = source->policy->grow(source, request);
    *refusal = source_refused(r) ? r : *refusal;
    return try_free_or_split(source, request) ? 0 : r == 0 || source_refused(r) ? -EAGAIN : r;
}

/*
 * Step 21: waits for everything freed so far, for at most `time_budget` ns per wait. Retries the
 * request each time an epoch has finished, before a thread that did not wait can take the memory.
 */
static bool try_wait(struct source *source, struct alloc_request *request, uint64_t time_budget) {
    uint64_t last = epochs_stamp(&source->epochs), before;
    bool served, more;
    do {
        before = source->epochs.finished;
        more = sync_wait_any(source, time_budget, false);
        served = try_free_or_split(source, request);
    } while (!served && more && source->epochs.finished > before && source->epochs.finished < last);
    return served;
}

/*
 * Steps 19 and 20: releases idle segments of this pool, then of other pools, and grows. Returns as
 * try_grow(). `wait`: other pools wait for work that uses their memory.
 */
static int try_release(struct source *source, struct alloc_request *request, struct oom_state *oom,
                       bool wait, int *refusal) {
    uint64_t need = source_growth(request), others = 0;
    int r = -EAGAIN;
    while (r == -EAGAIN && source_release_idle(source, need) == 0)
        r = try_grow(source, request, refusal);
    if (r == -EAGAIN && try_other_pools(source, request, wait)) {
        r = try_grow(source, request, refusal);
        /* if enough is available for the growth, the driver refuses for another reason */
        oom->taken_by_others = r == -EAGAIN && available_bytes(source, &others) < need;
    }
    return r;
}

/*
 * Steps 14 to 21: tries each source once after a refusal. Returns 0 with request->block,
 * `refusal` if nothing served the request, or another error of the growth. The pool's lock is
 * held on entry and on return; it is released in between.
 */
static int refusal_round(struct pool *pool, struct alloc_request *request, struct oom_state *oom,
                         int refusal) {
    ASSERT_HELD(&pool->source.lock);
    struct source *source = &pool->source;
    request->any_memory = true;
    request->placement = PLACEMENT_ANYWHERE;
    wait_for_growths(source);           /* 14 */
    if (try_pending(source, request) || /* then 15 */
        (quota_deactivate_all(pool) && try_pending(source, request)))
        return 0;
    bool none;
    if (!may_suffice(pool, request, &none))
        return refusal;
    bool answers = sync_wait_while_suspended(source, oom->time_budget); /* 16 */
    if (source->backend->suspended)
        oom->time_budget = 0; /* the wait above used it up */
    if (answers && try_pending(source, request))
        return 0;
    int r = try_grow(source, request, &refusal); /* 17: another growth may have held the memory */
    if (r == -EAGAIN && !none) {
        sync_wait_barriers(source); /* 18: idle segments behind a barrier can be released then */
        r = try_release(source, request, oom, false, &refusal);          /* 19, 20 */
        if (r == -EAGAIN && try_wait(source, request, oom->time_budget)) /* 21 */
            return 0;
        r = r == -EAGAIN ? try_release(source, request, oom, true, &refusal) : r; /* 19, 20 */
        if (r == -EAGAIN && try_free_or_split(source, request))
            return 0;
    }
    return r == -EAGAIN ? refusal : r;
}

/*
 * Returns how often other threads have given memory of the device back; 0 if the backend does not
 * count that. Releases the pool's lock for the call, which waits for other requests in flight.
 */
static uint64_t wait_for_in_flight(struct source *source) {
    uint64_t count = 0;
    if (source->backend->ops->wait_for_in_flight) {
        lock_release(&source->lock);
        count = source->backend->ops->wait_for_in_flight(source->backend);
        lock_acquire(&source->lock);
    }
    return count;
}

/*
 * Returns a number that grows with every free by any thread, into any cache or queue, and with
 * every reclaimed deferred free.
 */
static uint64_t count_frees(const struct pool *pool) {
    return peaks_sums(pool, false).of[WATERMARK_BLOCKS].given + atomic_load(&pool->reclaims);
}

/* The state of the pool when one try of a refused request began. */
struct try_start {
    uint64_t stamp; /* of a free made at that time */
    uint64_t frees; /* count_frees() at that time */
};

/*
 * Returns whether the refused request may have missed memory. One of these happened after
 * `since`:
 *
 *  1. memory became pending
 *  2. a thread freed a block, or a deferred free was reclaimed
 *  3. free memory went into caches (refill()) after quota_deactivate_all()
 */
static bool may_have_missed(const struct pool *pool, const struct try_start *since) {
    const struct source *source = &pool->source;
    bool pending = false;
    for (enum reach reach = 0; reach < REACHES; reach++) {
        const struct pending *queue = &source->pending[reach];
        pending |= queue->head && queue->tail->stamp >= since->stamp;
    }
    return pending || count_frees(pool) != since->frees ||
           unused_bytes(pool, source_reserved(source)) >
               source_free(source) + source->pending_bytes;
}

/*
 * Repeats steps 14 to 21 while memory moves. Returns 0 with request->block, the last refusal, or
 * another error of the growth. If the context has ended, returns -ERANGE instead of a refusal, so
 * that the driver answers the request.
 *
 * Another thread may take the memory that this thread waited for or released, and free as much.
 * A refusal is therefore final only if no memory moved during the last try, if may_suffice() finds
 * too little, or after OTHERS_TRIES tries. The lock is held from the last check until the return.
 */
int retry_refused(struct pool *pool, struct alloc_request *request, int refusal) {
    ASSERT_HELD(&pool->source.lock);
    struct source *source = &pool->source;
    struct oom_state oom = {.time_budget = LATE_WAIT_NS};
    uint64_t now = wait_for_in_flight(source);
    bool again = true, none;
    for (unsigned tries = 0; again && tries < OTHERS_TRIES; tries++) {
        uint64_t before = now;
        struct try_start since = {epochs_stamp(&source->epochs), count_frees(pool)};
        oom.taken_by_others = false;
        refusal = refusal_round(pool, request, &oom, refusal);
        bool refused = source_refused(refusal);
        now = refused ? wait_for_in_flight(source) : before;
        again =
            now != before || (refused && (oom.taken_by_others || may_have_missed(pool, &since)) &&
                              may_suffice(pool, request, &none));
    }
    return source_refused(refusal) && source->backend->ended ? -ERANGE : refusal;
}
