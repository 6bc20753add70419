/*
 * Two threads: one allocates blocks, the other one frees them. The blocks go through `places`
 * slots, so at most that many are live. Include pool_bench.h first.
 */
#ifndef GPUCACHE_TESTS_EXCHANGE_H
#define GPUCACHE_TESTS_EXCHANGE_H

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

#define EXCHANGE_MOST 64

struct exchange {
    unsigned places; /* at most EXCHANGE_MOST */
    uint64_t (*bytes)(unsigned turn);
    _Atomic uint64_t at[EXCHANGE_MOST]; /* 0: an empty slot */
    atomic_bool over, asked_all, has_freed;
    atomic_uint failures;
    pthread_t asking, freeing;
};

static void *exchange_ask(void *argument) {
    struct exchange *e = argument;
    for (unsigned turn = 0; !e->over; turn++) {
        _Atomic uint64_t *place = &e->at[turn % e->places];
        uint64_t address = 0;
        while (*place != 0 && !e->over)
            sched_yield();
        if (*place == 0) {
            e->failures += pool_alloc(pool, e->bytes(turn), &address) != 0;
            *place = address;
        }
    }
    e->asked_all = true;
    return NULL;
}

static void *exchange_free(void *argument) {
    struct exchange *e = argument;
    for (unsigned turn = 0;; turn++) {
        _Atomic uint64_t *place = &e->at[turn % e->places];
        while (*place == 0) {
            if (e->asked_all && *place == 0)
                return NULL;
            sched_yield();
        }
        e->failures += fake_pool_free(*place) != 0;
        *place = 0;
        e->has_freed = true;
    }
}

/* Starts the allocating thread; returns when the first block is live. */
static void exchange_start_asking(struct exchange *e) {
    assert_int_equal(pthread_create(&e->asking, NULL, exchange_ask, e), 0);
    while (e->at[0] == 0)
        sched_yield();
}

/* Starts the freeing thread; returns when it has freed a block, and so has its cache. */
static void exchange_start_freeing(struct exchange *e) {
    assert_int_equal(pthread_create(&e->freeing, NULL, exchange_free, e), 0);
    while (!e->has_freed)
        sched_yield();
}

/* Ends both threads after all blocks are freed. Returns whether all calls succeeded. */
static bool exchange_end(struct exchange *e) {
    e->over = true;
    pthread_join(e->asking, NULL);
    pthread_join(e->freeing, NULL);
    return e->failures == 0;
}

#endif
