/*
 * The source: where the memory of a pool comes from, and when freed memory may be used again.
 *
 *      a request (try.h)                       a freed block (pending.h)
 *         |                                          |
 *      slabs, arenas (heap.c)  <--- safe ----------  a queue by epoch (pending.c)
 *         |  nothing fits                            |  query, barrier, wait (sync.c)
 *      growth within the budget (grow.c)          epochs (epoch.c)
 *         |                                          |
 *      segments (source.c), or handles (remap.c)  events
 *   ------|-------------------- backend -------------|------
 *
 * The thread caches above the source tell it how much they may hold. The counters tell it how much
 * the program has live. The budget follows from both. Unless a comment says otherwise, functions
 * are called with the pool lock; functions that can block release it, and take it again.
 */
#ifndef GPUCACHE_SOURCE_SOURCE_H
#define GPUCACHE_SOURCE_SOURCE_H

#include "heap/idle.h"
#include "source/state.h"

/** Returns the bytes of idle segments: those without a live, cached or pending block. */
static inline uint64_t source_idle(const struct source *source) {
    return source->large.idle_bytes + source->small.idle_bytes;
}

/** Returns an idle segment whose last free is older than the decay time, and its arena, or NULL.
 * Its work has completed. Sets *waits if another one is as old, but its work has not completed. */
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

/* A request to the source, and its result. */
struct alloc_request {
    unsigned bin;   /* in which a thread cache keeps such a block */
    uint64_t bytes; /* rounded up to the size class, or to LARGE_UNIT */
    bool large;
    bool over_budget; /* a growth would exceed the budget: a larger cached block may serve it */
    bool any;         /* a growth was refused: any memory that fits may serve it */
    bool split_first; /* result: nothing was taken, because a long segment has to be split first */
    enum arena_placement placement; /* the large ranges that may be cut for it */
    struct block *block;            /* result, in state BLOCK_CACHED */
};

/** Sets up the source of a pool; `source` is zeroed. Needs no lock. */
void source_start(struct source *source, struct pool *pool, struct backend *backend,
                  const struct pool_config *config);

/** Takes all memory out of the page map after its context has ended, so that no thread finds it any
 * more. The remap lock and the pool lock are held, and kept. */
void source_leave_map(struct source *source);

/** Forgets that memory, once no thread uses what it found in the page map before. Returns the bytes
 * that the pool had from the driver; 0 for vmm, which releases them here. Locks as above. */
uint64_t source_forget(struct source *source);

/** Takes free memory for a request (heap.c), without a wait. Returns false if nothing fits. */
bool heap_take(struct source *source, struct alloc_request *request);

/** Makes a block free (heap.c), without a wait. Its stamp is safe. */
void heap_give(struct source *source, struct block *block);

/** Returns the least bytes that the pool can grow by for a request. */
uint64_t source_growth(const struct alloc_request *request);

/** Grows the pool by that or more. Releases the lock. Returns 0, or:
 *
 *      -ENOMEM, -EDQUOT   the driver or the limit has no more (source_refused())
 *      -ERANGE            the pool cannot manage it: no host memory, or no suitable address
 *      > 0                the driver's code
 */
int source_grow(struct source *source, const struct alloc_request *request);

/** Returns whether the result `r` says that the driver or the limit has no more. */
bool source_refused(int r);

/** Releases idle segments whose work has completed until `bytes` bytes are released. Releases the
 * lock with vmm, and where a release waits. Returns 0 if any was released; -EBUSY if work uses all
 * that is idle, or the driver does not take it; -ENOENT if nothing is idle. */
int source_release_idle(struct source *source, uint64_t bytes);

/** Releases one segment that was idle for the decay time. Returns its bytes, or 0. Releases the
 * lock with vmm, and where a release waits. */
uint64_t source_decay(struct source *source);

/** Polls until the driver has all memory that was released, for at most limit_ns ns (0: asks once).
 * Releases the lock between two queries. */
void source_wait_for_return(struct source *source, uint64_t limit_ns);

#endif
