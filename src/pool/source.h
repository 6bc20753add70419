/* Where memory for a request comes from: pages, arena, segments. Under the lock. */
#ifndef GPUCACHE_POOL_SOURCE_H
#define GPUCACHE_POOL_SOURCE_H

#include "memory/idle.h"
#include "pool/state.h"

/* In segments that are wholly free. */
static inline uint64_t source_idle(const struct pool *pool) {
    return pool->large.idle_bytes + pool->small.idle_bytes;
}

/* One that has been idle for the decay time, if it has finished, or NULL; *waits: it has not. */
static inline struct segment *source_aged(struct pool *pool, struct arena **arena, bool *waits) {
    struct arena *const arenas[] = {&pool->large, &pool->small};
    struct segment *aged = NULL;
    *waits = false;
    for (unsigned i = 0; i < 2 && !aged; i++) {
        *arena = arenas[i];
        aged = idle_aged(*arena, pool->decay.tick, pool->epochs.finished, waits);
    }
    return aged;
}

/* What is asked for, and the answer. */
struct want {
    unsigned bin;   /* where caches would keep it, */
    uint64_t bytes; /* of its size class; of a large block, in whole units */
    bool large;
    bool is_short;        /* growing would exceed the budget: larger blocks will do */
    bool any;             /* growing was refused: cut whatever fits */
    bool lost;            /* and what other pools gave back for it, went elsewhere */
    bool splits;          /* why nothing was taken: a long segment is to be split for it */
    enum arena_care care; /* which large ranges are not cut for it */
    struct cache *cache;  /* of the asking thread: emptied before the pool grows past its budget */
    struct block *block;  /* the answer: BLOCK_CACHED */
};

/* cache.c */
unsigned want_last_bin(const struct want *want, bool much); /* the largest that will do */

/* source.c: pages, arena, segments. Under the lock. */
bool source_take(struct pool *pool, struct want *want); /* what is ready now */
void source_give(struct pool *pool, struct block *block);
uint64_t source_growth(const struct want *want); /* the least the pool can grow by for it */
int source_grow(struct pool *pool, const struct want *want); /* a segment from the driver */
bool source_refused(int r); /* neither the driver nor the limit has more */
int source_release_idle(struct pool *pool,
                        uint64_t bytes); /* what no work touches; 0: something is on its way back */
uint64_t source_decay(struct pool *pool);                          /* such a one goes back */
void source_wait_for_return(struct pool *pool, uint64_t limit_ns); /* until the driver has it */

/* mapper.c: segments in lines. Lets go of the lock in between. */
int mapper_grow(struct pool *pool, struct arena *arena,
                uint64_t bytes); /* what a range of so many lacks */
/* How much that is, and what could make room for it: idle segments elsewhere, and those of them that can at once, as far as it
 * takes to stay within `budget`. */
struct growth {
    uint64_t bytes, idle, ready;
};
struct growth mapper_growth(const struct pool *pool, const struct arena *arena, uint64_t bytes,
                            uint64_t budget);
bool mapper_split(
    struct pool *pool, struct arena *arena,
    uint64_t bytes); /* a long one that is idle, for a request that would take a part of it */
uint64_t mapper_release(struct pool *pool,
                        uint64_t bytes);  /* so much of what lies idle, if it has finished */
uint64_t mapper_decay(struct pool *pool); /* a segment that has been idle for the decay time */
void mapper_end(struct pool *pool,
                struct arena *arena); /* the context has gone: all of it. Both locks are held */

/* supply.c: where memory for a request comes from. Takes and returns with the lock held; lets go of it
 * in between. */
int supply(struct pool *pool, struct want *want);

#endif
