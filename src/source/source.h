/*
 * The source: where a pool's memory comes from, and when what was freed may be used again.
 *
 *      a request (try.h)                       a freed block (pending.h)
 *         |                                          |
 *      pages, arena (heap.c)  <-- usable --------  a queue by epoch (pending.c)
 *         |  nothing fits                            |  query, barrier, wait (sync.c)
 *      growing within the budget (grow.c)         epochs (epoch.c)
 *         |                                          |
 *      segments (source.c), or lines (remap.c)   events
 *   ------|-------------------- backend -------------|------
 *
 * Of the threads' caches above it is told how much they may hold, and of the program how much is live (the books): the
 * budget follows from those. Everything here runs under the pool's lock, which is let go of around what can block.
 */
#ifndef GPUCACHE_SOURCE_SOURCE_H
#define GPUCACHE_SOURCE_SOURCE_H

#include "memory/idle.h"
#include "source/state.h"

/** In segments that are wholly free. */
static inline uint64_t source_idle(const struct source *source) {
    return source->large.idle_bytes + source->small.idle_bytes;
}

/** One that has been idle for the decay time, if it has finished, or NULL; *waits: it has not. */
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

/* What is asked for, and the answer. */
struct alloc_request {
    unsigned bin;   /* where caches would keep it, */
    uint64_t bytes; /* of its size class; of a large block, in whole units */
    bool large;
    bool over_budget; /* growing would exceed the budget: larger blocks will do */
    bool any;         /* growing was refused: cut whatever fits */
    bool split_first; /* why nothing was taken: a long segment is to be split for it */
    enum arena_placement placement; /* which large ranges are not cut for it */
    struct block *block;            /* the answer: BLOCK_CACHED */
};

/** Makes the source of a pool, which is zeroed: lifetime.c. */
void source_start(struct source *source, struct pool *pool, struct backend *backend,
                  const struct pool_config *config);

/** The context is gone, and its memory with it: from now on nobody finds any; then, when nobody has any of it in hand, all is forgotten.
 * Returns the bytes that it had from the driver. Both locks are held. */
void source_leave_map(struct source *source);
uint64_t source_forget(struct source *source);

/** What may be handed out: heap.c. */
bool heap_take(struct source *source, struct alloc_request *request);
void heap_give(struct source *source, struct block *block);

/** The least the pool can grow by for a request. */
uint64_t source_growth(const struct alloc_request *request);

/** A segment from the driver, or more. 0; -ENOMEM, -EDQUOT: neither the driver nor the limit has more (source_refused()); -ERANGE: what
 * it has cannot be managed; or its code. */
int source_grow(struct source *source, const struct alloc_request *request);
bool source_refused(int r);

/** Gives back what lies idle and no work touches. 0: something is on its way; -EBUSY: work is in front of it; -ENOENT: nothing is idle. */
int source_release_idle(struct source *source, uint64_t bytes);

/** A segment that has been idle for the decay time. Returns its bytes, or 0. */
uint64_t source_decay(struct source *source);

/** Asks until the driver has what was released, for limit_ns at most; 0: once. Lets go of the lock. */
void source_wait_for_return(struct source *source, uint64_t limit_ns);

#endif
