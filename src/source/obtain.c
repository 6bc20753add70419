/*
 * What a request can be served with, without anything of the caches: each step at its price (order.c). The lock may have been let go
 * of after any of them, so whoever tries one looks at everything before it again (supply.c).
 */
#include "source/obtain.h"

#include "source/internal.h"

#include <errno.h>

bool obtain_usable(struct source *source, struct alloc_request *request) {
    pending_take_usable(source);
    return ready_take(source, request);
}

bool obtain_ready(struct source *source, struct alloc_request *request) {
    bool served;
    while (!(served = obtain_usable(source, request)) && request->split_first) {
        request->placement = mapper_split(source, &source->large, request->bytes)
                                 ? request->placement
                                 : PLACE_ANYWHERE;
    }
    return served;
}

bool obtain_ordered(struct source *source, struct alloc_request *request) {
    uint64_t enough = pending_stamp(source, request->bytes),
             all = epochs_orderable(&source->epochs);
    if (enough > 0 && enough < all && order_now(source, enough, request->any) &&
        obtain_ready(source, request)) {
        return true;
    }
    all = epochs_orderable(&source->epochs);
    return all > 0 && !epochs_usable(&source->epochs, all) &&
           order_now(source, all, request->any) && obtain_ready(source, request);
}

bool obtain_cheap(struct source *source, struct alloc_request *request) {
    if (obtain_ready(source, request)) {
        return true;
    }
    uint64_t enough = pending_stamp(source, request->bytes),
             all = pending_stamp(source, UINT64_MAX);
    if (enough == 0) {
        return false;
    }
    order_cheaply(source, enough);
    if (obtain_ready(source, request)) {
        return true;
    }
    return all > enough && order_cheaply(source, all) && obtain_ready(source, request);
}

bool obtain_pending(struct source *source, struct alloc_request *request) {
    return obtain_cheap(source, request) || obtain_ordered(source, request);
}

bool obtain_gathered(struct source *source, const struct alloc_request *request, bool wait) {
    struct backend *backend = source->backend;
    if (!backend->ops->gather) {
        return false;
    }
    lock_release(&source->lock);
    bool any = backend->ops->gather(backend, source_growth(request), wait);
    lock_acquire(&source->lock);
    return any;
}

int obtain_grown(struct source *source, struct alloc_request *request, int *refusal) {
    *refusal = source_grow(source, request);
    return obtain_ready(source, request) ? 0 : source_refused(*refusal) ? -EAGAIN : *refusal;
}

bool obtain_finished(struct source *source, struct alloc_request *request, uint64_t patience) {
    uint64_t last = epochs_stamp(&source->epochs), before;
    bool served, more;
    do {
        before = source->epochs.finished;
        more = order_finish(source, patience, false);
        served = obtain_ready(source, request);
    } while (!served && more && source->epochs.finished > before && source->epochs.finished < last);
    return served;
}
