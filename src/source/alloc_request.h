/*
 * A request for memory on its way through the slow path, and what it got. Owned by the calling
 * thread.
 */
#ifndef GPUCACHE_SOURCE_ALLOC_REQUEST_H
#define GPUCACHE_SOURCE_ALLOC_REQUEST_H

#include "heap/arena.h"
#include "heap/arith.h"
#include "heap/page_map.h"
#include "stats/requesters.h"

#include <errno.h>

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

#endif
