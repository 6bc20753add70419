/* How far a pool may grow: the peaks, and what follows from them. Under the lock, but for the sums. */
#ifndef GPUCACHE_POOL_BUDGET_H
#define GPUCACHE_POOL_BUDGET_H

#include "pool/state.h"

struct budget_sums {
    struct budget_sum {
        uint64_t taken, given, live;
        uint64_t highest; /* no more can have been live since the last look */
    } of[WATERMARKS];
    unsigned used; /* how many caches have counted anything */
};
struct budget_sums budget_sums(const struct pool *pool); /* of all caches */
uint64_t budget_live_at_most(const struct pool *pool);   /* for who counts what is not live */
void budget_look(struct pool *pool);         /* after every visit: what has changed in the books */
void budget_sum_at_times(struct pool *pool); /* the peaks, unless that was done just before */
void budget_look_at_all(struct pool *pool);  /* peaks, budget and pressure too */
uint64_t
budget_little(const struct pool *pool);      /* most for a program of one thread that uses little */
void budget_book_reserve(struct pool *pool); /* the books of what is reserved and free */
unsigned budget_streams(void);               /* of the program, besides the default one */
/* Whether more was live than what several streams may keep to stay side by side; always where there are not several. */
bool budget_is_beyond_floor(const struct pool *pool);
uint64_t budget_used(const struct pool *pool); /* the reserve */
/* What the driver has left; *others: what other pools have idle. Lets go of the lock. */
uint64_t budget_room(struct pool *pool, uint64_t *others);
uint64_t budget_ready(const struct pool *pool); /* what of it may be handed out */
uint64_t budget_with(const struct pool *pool,
                     uint64_t bytes); /* in a line: what it will be with so much more in use */
uint64_t budget_mapping_slack_most(const struct pool *pool); /* by what mapping has taken so far */
bool budget_is_short(struct pool *pool, uint64_t bytes); /* growing by so much would exceed it */

void budget_begin_growth(struct pool *pool); /* others may wait for it to end */
void budget_end_growth(struct pool *pool, bool given_back);

/* Large blocks of more bytes than this may not be taken without the peaks being summed. */
static inline uint64_t budget_unseen(const struct pool *pool) {
    return books_get(&pool->books.allocated.peak) / UNSEEN_SHARE;
}

/* The reserve, with what threads are asking the driver for. */
static inline uint64_t budget_expected(const struct pool *pool) {
    return pool->large.reserved_bytes + pool->small.reserved_bytes + pool->growing;
}

/* Growing by so much takes that over this. */
static inline bool budget_would_exceed(const struct pool *pool, uint64_t growth, uint64_t most) {
    return budget_expected(pool) + growth > most;
}

/* As far as is known: the peak may have risen since the last look. */
static inline bool budget_has_room(const struct pool *pool, uint64_t bytes) {
    uint64_t budget = atomic_load_explicit(&pool->budget, memory_order_relaxed);
    return !budget_would_exceed(pool, bytes, budget);
}

#endif
