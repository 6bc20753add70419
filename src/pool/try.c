/*
 * The sources of memory for a request, except thread caches. sync/barrier.c has the price of each.
 *
 * A step may release the pool's lock, and other threads may then free or take memory. Each step
 * therefore ends with a retry of free memory, and slow_path.c repeats cheap steps after expensive
 * ones.
 */
#include "pool/try.h"

#include "sync/sync.h"

#include <errno.h>

bool try_barrier(struct source *source, struct alloc_request *request) {
    ASSERT_HELD(&source->lock);
    enum sync_effort effort = request->any ? SYNC_ANY_WAIT : SYNC_WAIT;
    uint64_t enough = pending_stamp(source, request->bytes),
             all = epochs_latest_on_time(&source->epochs);
    if (enough > 0 && enough < all && sync_make_safe(source, enough, effort) &&
        try_free_or_split(source, request)) {
        return true;
    }
    all = epochs_latest_on_time(&source->epochs);
    return all > 0 && !epochs_is_safe(&source->epochs, all) &&
           sync_make_safe(source, all, effort) && try_free_or_split(source, request);
}

bool try_completed(struct source *source, struct alloc_request *request) {
    ASSERT_HELD(&source->lock);
    if (try_free_or_split(source, request)) {
        return true;
    }
    uint64_t enough = pending_stamp(source, request->bytes),
             all = pending_stamp(source, UINT64_MAX);
    if (enough == 0) {
        return false;
    }
    sync_query(source, enough);
    if (try_free_or_split(source, request)) {
        return true;
    }
    return all > enough && sync_query(source, all) && try_free_or_split(source, request);
}

bool try_pending(struct source *source, struct alloc_request *request) {
    return try_completed(source, request) || try_barrier(source, request);
}

bool try_other_pools(struct source *source, const struct alloc_request *request, bool wait) {
    ASSERT_HELD(&source->lock);
    struct backend *backend = source->backend;
    if (!backend->ops->release_others) {
        return false;
    }
    lock_release(&source->lock);
    bool any = backend->ops->release_others(backend, source_growth(request), wait);
    lock_acquire(&source->lock);
    return any;
}

int try_grow(struct source *source, struct alloc_request *request, int *refusal) {
    *refusal = source_grow(source, request);
    return try_free_or_split(source, request) ? 0 : source_refused(*refusal) ? -EAGAIN : *refusal;
}

bool try_wait(struct source *source, struct alloc_request *request, uint64_t time_budget) {
    uint64_t last = epochs_stamp(&source->epochs), before;
    bool served, more;
    do {
        before = source->epochs.finished;
        more = sync_wait_any(source, time_budget, false);
        served = try_free_or_split(source, request);
    } while (!served && more && source->epochs.finished > before && source->epochs.finished < last);
    return served;
}
