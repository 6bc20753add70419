/*
 * The source: the memory that a pool has from the driver, and the epochs that tell when freed
 * memory may be handed out again. state.h has the fields; higher folders work on them:
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

/* A request of the calling thread in the slow path, and its result. */
struct alloc_request {
    unsigned bin;   /* bin of a thread cache for such blocks; BINS or more: none */
    uint64_t bytes; /* rounded up to the size class, or to LARGE_UNIT */
    bool large;
    unsigned requester; /* of a large block (stats/requesters.h) */
    bool over_budget;   /* a growth would exceed the budget: a larger cached block may serve */
    bool any_memory;    /* a growth was refused: any memory that fits may serve */
    bool split_first;   /* result: nothing was taken, because a long handle has to be split first */
    enum arena_placement placement; /* the large free ranges that may be cut for the request */
    struct block *block;            /* result, in state BLOCK_CACHED */
};

/** Returns the least bytes that the pool can grow by for a request. */
static inline uint64_t source_growth(const struct alloc_request *request) {
    return request->large ? round_up(request->bytes, PAGE_BYTES) : PAGE_BYTES;
}

/** Returns the arena from which a request is served. */
static inline struct arena *source_arena(struct source *source,
                                         const struct alloc_request *request) {
    return request->large ? &source->large : &source->small;
}

/** Returns whether the result `r` of a growth says that the driver or the limit has no more. */
static inline bool source_refused(int r) {
    return r == -ENOMEM || r == -EDQUOT;
}

/** Sets up the source of a pool; `source` is zeroed. Needs no lock. */
void source_start(struct source *source, struct pool *pool, struct backend *backend,
                  const struct memory_policy *policy, const struct pool_config *config);

/**
 * Forgets the memory of a context that has ended. Called after arena_leave_map() for both arenas,
 * once no thread uses an earlier result of the page map. Returns the bytes that ended with the
 * context (memory_policy.end). remap.lock and the pool's lock are held, and kept.
 */
uint64_t source_forget(struct source *source);

/**
 * Marks the begin of a growth, for whose end other threads may wait. Returns false if the context
 * has ended, because nobody would free the new memory: the pool then does not grow (-ERANGE).
 */
bool source_begin_growth(struct source *source);

/**
 * Marks the end of a growth. `gave_back`: the growth may have taken and returned memory that the
 * request of another thread missed.
 */
void source_end_growth(struct source *source, bool gave_back);

/**
 * Prepares the host memory that a growth and its request need. Called before the driver is asked: a
 * segment that cannot be used must be released, and that may wait for the device. Returns false
 * without host memory, or if the driver gives addresses that the pool cannot manage: the pool then
 * does not grow (-ERANGE).
 */
bool source_can_grow(struct source *source, const struct alloc_request *request);

/**
 * Releases idle segments whose work has completed until `bytes` bytes are released. Releases the
 * lock where a release blocks. Returns 0 if any was released; -EBUSY if earlier work may use every
 * idle segment, or the driver does not take one; -ENOENT if nothing is idle.
 */
int source_release_idle(struct source *source, uint64_t bytes);

/** Returns the reserve: the bytes that the pool holds from the driver. */
static inline uint64_t source_reserved(const struct source *source) {
    return source->large.reserved_bytes + source->small.reserved_bytes;
}

/** Returns the free bytes of the reserve, including those kept for a growing thread. */
static inline uint64_t source_free(const struct source *source) {
    return source->large.free_bytes + source->small.free_bytes + source->remap.held_bytes +
           (source->runs.free_units << UNIT_SHIFT);
}

/** Returns the reserve, plus the bytes that threads are asking the driver for. */
static inline uint64_t source_reserved_soon(const struct source *source) {
    return source_reserved(source) + source->growing.bytes;
}

/** Returns the bytes of idle segments: those without a live, cached or pending block. */
static inline uint64_t source_idle(const struct source *source) {
    return source->large.idle_bytes + source->small.idle_bytes;
}

/**
 * Returns an idle segment whose last free is older than the decay time and whose work has
 * completed, and sets *arena to its arena. Skips segments whose release failed (segment.refused).
 * Otherwise returns NULL. Sets *waits to whether the search saw a segment that is as old, but whose
 * work has not completed. Keeps the lock.
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
