/*
 * The source: the memory that a pool has from the driver, and the epochs that tell when freed memory
 * may be used again. state.h has its fields; the folders above work on them:
 *
 *      a request (pool/slow_path.c)            a freed block (sync/pending.h)
 *         |                                          |
 *      free memory (sync/pending.h) <----- safe -----  a queue by epoch
 *         |  nothing fits                            |  query, barrier, wait (sync/sync.h)
 *      growth within the budget (policy/)         epochs (source/epoch.h)
 *         |                                          |
 *      segments (segment/) or handles (vmm/)      events
 *   ------|-------------------- backend -------------|------
 *
 * Unless a comment says otherwise, functions are called with the pool's lock; functions that can
 * block release it, and take it again.
 */
#ifndef GPUCACHE_SOURCE_SOURCE_H
#define GPUCACHE_SOURCE_SOURCE_H

#include "heap/idle.h"
#include "heap/page_map.h"
#include "source/state.h"

#include <errno.h>

/* A request on its way through the slow path, and what it got. Owned by the calling thread. */
struct alloc_request {
    unsigned bin;   /* in which a thread cache keeps such a block */
    uint64_t bytes; /* rounded up to the size class, or to LARGE_UNIT */
    bool large;
    unsigned requester; /* of a large block (stats/requesters.h) */
    bool over_budget;   /* a growth would exceed the budget: a larger cached block may serve it */
    bool any;           /* a growth was refused: any memory that fits may serve it */
    bool split_first; /* result: nothing was taken, because a long segment has to be split first */
    enum arena_placement placement; /* the large ranges that may be cut for it */
    struct block *block;            /* result, in state BLOCK_CACHED */
};

/** Returns the least bytes that the pool can grow by for a request. */
static inline uint64_t source_growth(const struct alloc_request *request) {
    return request->large ? round_up(request->bytes, PAGE_BYTES) : PAGE_BYTES;
}

/** Returns whether the result `r` of a growth says that the driver or the limit has no more. */
static inline bool source_refused(int r) {
    return r == -ENOMEM || r == -EDQUOT;
}

/** Sets up the source of a pool; `source` is zeroed. Needs no lock. */
void source_start(struct source *source, struct pool *pool, struct backend *backend,
                  const struct memory_policy *policy, const struct pool_config *config);

/**
 * Takes all memory out of the page map after its context has ended, so that no thread finds it any
 * more. remap.lock and the pool's lock are held, and kept.
 */
void source_leave_map(struct source *source);

/**
 * Forgets that memory, once no thread uses what it found in the page map before. Returns the bytes
 * that ended with the context (memory_policy.end). Locks as above.
 */
uint64_t source_forget(struct source *source);

/**
 * Prepares host memory for a growth and its request, before the driver is asked: to release an
 * unusable segment can mean to wait for the device. Returns false without host memory, or if the
 * driver gives addresses that the pool cannot manage: the pool then does not grow (-ERANGE).
 */
bool source_can_grow(struct source *source, const struct alloc_request *request);

/**
 * Releases idle segments whose work has completed until `bytes` bytes are released. Releases the
 * lock where a release blocks. Returns 0 if any was released; -EBUSY if work uses all that is idle,
 * or the driver does not take it; -ENOENT if nothing is idle.
 */
int source_release_idle(struct source *source, uint64_t bytes);

/** Returns the bytes of idle segments: those without a live, cached or pending block. */
static inline uint64_t source_idle(const struct source *source) {
    return source->large.idle_bytes + source->small.idle_bytes;
}

/**
 * Returns an idle segment whose last free is older than the decay time, and its arena, or NULL. Its
 * work has completed. Sets *waits if another one is as old, but its work has not completed.
 */
static inline struct segment *source_aged(struct source *source, struct arena **arena,
                                          bool *waits) {
    struct arena *const arenas[] = {&source->large, &source->small};
    struct segment *aged = NULL;
    *waits = false;
    for (unsigned i = 0; i < 2 && !aged; i++) {
        *arena = arenas[i];
        aged = idle_aged(*arena, source->decay.tick, source->epochs.finished, waits);
    }
    return aged;
}

#endif
