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
#include "source/alloc_request.h"
#include "source/state.h"

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
 * Grows the pool by source_growth() or more. Releases the lock. Returns 0, or:
 *
 *      -ENOMEM, -EDQUOT   the driver or the limit has no more (source_refused())
 *      -ERANGE            the pool cannot manage it: no host memory, or no suitable address
 *      > 0                the driver's code
 */
int source_grow(struct source *source, const struct alloc_request *request);

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
