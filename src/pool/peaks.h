/* The peaks of what is live, of all caches together. Under the pool's lock, but for the sums. */
#ifndef GPUCACHE_POOL_PEAKS_H
#define GPUCACHE_POOL_PEAKS_H

#include "pool/state.h"

struct peaks_sums {
    struct peaks_sum {
        uint64_t taken, given, live;
        uint64_t highest; /* no more can have been live since the last look */
    } of[WATERMARKS];
    unsigned used; /* how many caches have counted anything */
};
struct peaks_sums peaks_sums(const struct pool *pool); /* of all caches */
uint64_t peaks_live_at_most(const struct pool *pool);  /* for who counts what is not live */

void peaks_update(struct pool *pool);        /* after every visit: what has changed in the books */
void peaks_update_if_due(struct pool *pool); /* the peaks, unless that was done just before */
void peaks_update_all(struct pool *pool);    /* peaks, budget and pressure too */
/* Growing by so much would exceed the budget, also after a look at what has changed in this visit. */
bool peaks_over_budget(struct pool *pool, uint64_t bytes);

#endif
