/*
 * Segments: reserves them from the backend, and releases them whole. With vmm, remap.c does both.
 *
 * The pool lock is released around every reservation, and around a release that waits
 * (release_waits). The context may end in between, so source_generation() is compared afterwards.
 */
#include "source/internal.h"

#include "heap/page_map.h"
#include "process/nap.h"

#include <errno.h>

/* --- release --- */

static int give_back(struct source *source, uint64_t base, uint64_t bytes) {
    ASSERT_HELD(&source->lock);
    struct backend *backend = source->backend;
    if (!backend->release_waits) {
        return backend->ops->release(backend, base, bytes);
    }
    source->waits.inside++;
    lock_release(&source->lock);
    int r = backend->ops->release(backend, base, bytes);
    lock_acquire(&source->lock);
    source->waits.inside--;
    return r;
}

/* Returns the segment's bytes. Returns 0 if the driver did not take it, or if the context has ended
 * during the call. */
static uint64_t release_segment(struct source *source, struct arena *arena,
                                struct segment *segment) {
    uint64_t base = segment->base, size = segment->bytes, since = segment->since;
    uint64_t generation = source_generation(source);
    bool reached = segment->externally_visible;
    arena_remove(arena, segment); /* succeeds: the segment is one range */
    int r = give_back(source, base, size);
    if (generation != source_generation(source)) {
        if (r != 0) {
            source->backend->ops->forget_reserve(source->backend, size);
        }
        return 0;
    }
    if (r != 0) {
        struct segment *kept = arena_add(arena, base, size, NULL) == 0 ? arena->segments : NULL;
        if (kept) {
            kept->externally_visible = reached;
            kept->since = since;
        }
        return 0;
    }
    source->freeing_bytes += size;
    counter_add(&source->counters.driver_frees, 1);
    budget_count_reserve(source); /* now: a growth in the same slow path would hide the release */
    return size;
}

/*
 * Releases one idle segment. Returns its bytes, or 0.
 *
 * Where a release waits for the device, it needs an idle device. It then waits only for work that
 * another thread submits at that moment (docs/design/known-gaps.md). A suspended backend releases
 * nothing: the driver would refuse, and another context may have the addresses by then.
 */
static uint64_t release_one(struct source *source, struct arena *arena, uint64_t bytes) {
    if (arena->idle_bytes == 0 || source->backend->suspended ||
        (source->backend->release_waits && !sync_device_is_idle(source))) {
        return 0;
    }
    struct segment *segment = idle_segment(arena, bytes, source->epochs.finished);
    return segment ? release_segment(source, arena, segment) : 0;
}

static uint64_t decay_one(struct source *source) {
    struct arena *arena;
    bool waits;
    struct segment *aged = source->backend->suspended ? NULL : source_aged(source, &arena, &waits);
    return aged ? release_segment(source, arena, aged) : 0;
}

static uint64_t release_idle(struct source *source, uint64_t bytes) {
    uint64_t released = 0;
    while (released < bytes) {
        uint64_t one = release_one(source, &source->large, bytes - released);
        one = one > 0 ? one : release_one(source, &source->small, bytes - released);
        if (one == 0) {
            break;
        }
        released += one;
    }
    return released;
}

uint64_t source_decay(struct source *source) {
    ASSERT_HELD(&source->lock);
    return source->policy->decay(source);
}

int source_release_idle(struct source *source, uint64_t bytes) {
    ASSERT_HELD(&source->lock);
    uint64_t released = source->policy->release_idle(source, bytes);
    return released > 0 ? 0 : source_idle(source) > 0 ? -EBUSY : -ENOENT;
}

/* Counts its pauses instead of reading the clock: the clock of a backend may stand still. */
void source_wait_for_return(struct source *source, uint64_t limit_ns) {
    ASSERT_HELD(&source->lock);
    uint64_t waited = 0;
    unsigned failed_queries = 0;
    int r = source->backend->ops->returned(source->backend);
    while ((r == -EAGAIN || (r == -EBUSY && (source->backend->suspended ||
                                             failed_queries++ < FAILED_QUERIES_MOST))) &&
           waited < limit_ns) {
        lock_release(&source->lock);
        nap(RETURN_POLL_NS);
        lock_acquire(&source->lock);
        waited += RETURN_POLL_NS;
        r = source->backend->ops->returned(source->backend);
    }
    if (r == 0) {
        source->freeing_bytes = 0; /* the driver has said that it has all of it */
    }
}

/* --- growth --- */

uint64_t source_growth(const struct alloc_request *request) {
    return request->large ? round_up(request->bytes, PAGE_BYTES) : PAGE_BYTES;
}

/*
 * Returns the bytes to grow by. Large blocks share a segment in a whole number of the requested
 * size. With LARGE_UNIT more, the first block need not begin where the segment does (arena.h). No
 * block takes more of the segment than a segment of its own would be rounded up to. As many
 * therefore fit on the device as without the library. A request of whole 2 MiB gets a segment of
 * its own.
 *
 * Slabs share no segment: a block that stays live keeps 2 MiB, as it does without the library.
 */
static uint64_t good_growth(const struct source *source, const struct alloc_request *request) {
    uint64_t least = source_growth(request);
    if (!request->large || request->bytes == least) {
        return least;
    }
    uint64_t most = min_u64(source->backend->capacity / SEGMENT_STEP_SHARE, SEGMENT_STEP_MAX);
    uint64_t step = min_u64(source->large.reserved_bytes / SEGMENT_STEP_PART, most);
    uint64_t blocks = step > request->bytes ? (step + request->bytes - 1) / request->bytes : 1;
    return round_up(blocks * request->bytes + LARGE_UNIT, PAGE_BYTES);
}

/* Reserves one segment. Releases the lock around the call. */
static int grow_by(struct source *source, struct arena *arena, uint64_t bytes) {
    uint64_t base = 0, generation = source_generation(source);
    struct backend *backend = source->backend;
    source->growing.bytes += bytes;
    budget_begin_growth(source);
    lock_release(&source->lock);
    int r = backend->ops->reserve(backend, bytes, &base);
    lock_acquire(&source->lock);
    if (r == 0 && generation != source_generation(source)) {
        backend->ops->forget_reserve(backend, bytes); /* the context has ended during the call */
        r = -ENOMEM;
    } else if (r == 0) {
        r = base & (PAGE_BYTES - 1) ? -ERANGE : arena_add(arena, base, bytes, NULL);
        source->unmanageable |= r == -ERANGE;
        if (r != 0) {
            give_back(source, base, bytes);
            r = -ERANGE;
        }
    }
    source->growing.bytes -= bytes;
    budget_end_growth(source, false);
    if (r == 0) {
        counter_add(&source->counters.driver_allocs, 1);
    }
    return r;
}

bool source_refused(int r) {
    return r == -ENOMEM || r == -EDQUOT;
}

/* Prepares host memory for the growth and the request, before the driver is asked: to release an
 * unusable segment can mean to wait for the device. */
static bool has_descriptors(struct source *source, const struct alloc_request *request) {
    struct arena *arena = request->large ? &source->large : &source->small;
    return arena_prepare(arena, 1) && page_map_spare() &&
           (request->large || runs_prepare(&source->runs));
}

int source_grow(struct source *source, const struct alloc_request *request) {
    ASSERT_HELD(&source->lock);
    bool possible = !source->unmanageable && has_descriptors(source, request);
    return possible ? source->policy->grow(source, request) : -ERANGE;
}

static int grow_by_segment(struct source *source, const struct alloc_request *request) {
    struct arena *arena = request->large ? &source->large : &source->small;
    uint64_t good = good_growth(source, request), least = source_growth(request);
    int r = grow_by(source, arena, good);
    if (source_refused(r) && source->freeing_bytes > 0) {
        source_wait_for_return(source, RETURN_WAIT_NS);
        r = grow_by(source, arena, good);
    }
    if (source_refused(r) && good > least) {
        r = grow_by(source, arena, least);
    }
    return r;
}

/* The context has freed its segments. */
static uint64_t end_with_context(struct source *source) {
    return budget_used(source);
}

const struct memory_policy segments_policy = {
    .grow = grow_by_segment,
    .grow_within_budget = grow_segments,
    .release_idle = release_idle,
    .decay = decay_one,
    .end = end_with_context,
    .releases_first = true,
    .slack_share = BUDGET_SLACK,
    .left_share = BUDGET_DEVICE_SHARE,
    .cached_block_most = UINT64_MAX,
    .caches_each_most = UINT64_MAX,
};
