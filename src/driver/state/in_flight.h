/*
 * Keeps a table of the threads that are requesting memory of a device.
 *
 * A request may hold a charge or memory of the driver for a moment and then give it back. Another
 * request that is refused at that moment would succeed natively, where a call takes all it needs or
 * nothing. The refused request therefore waits for the others (in_flight_wait), and tries again if
 * one gave memory back. All fields are atomic; no lock protects them. Backends, unpooled.c,
 * driver_pool_claim.c and oom_retry.c call this file.
 */
#ifndef GPUCACHE_DRIVER_STATE_IN_FLIGHT_H
#define GPUCACHE_DRIVER_STATE_IN_FLIGHT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define ASKERS 64 /* threads in one table; further tables hold more */

struct in_flight_thread {
    _Atomic uintptr_t who;   /* the thread (pthread_self); 0: a free entry */
    _Atomic uint64_t number; /* serial number of the request; 0: it has charged nothing yet */
    atomic_bool waits;       /* it waits for the others, and holds no memory of the driver */
    atomic_bool slow;        /* another thread has waited for it in vain */
};

struct in_flight_table {
    struct in_flight_thread of[ASKERS];
    _Atomic(struct in_flight_table *) next; /* set once, never unmapped */
};

struct in_flight {
    _Atomic uint64_t asked;        /* requests so far */
    _Atomic uint64_t return_count; /* times that a charge or memory came back */
    struct in_flight_table first;
};

/**
 * Enters the calling thread, before it charges or requests what it may have to give back. Without
 * host memory for a further table the thread is not entered, and others do not wait for it.
 */
void in_flight_enter(struct in_flight *in_flight);

/** Removes the calling thread, after its request has its answer. */
void in_flight_leave(struct in_flight *in_flight);

/** Counts that the calling thread gave a charge or memory back. Call it before
 * in_flight_leave(). */
void in_flight_give_back(struct in_flight *in_flight);

/** Times that the driver got memory of any device back; raised after the driver has it. A charge
 * that came back without memory does not count. */
extern _Atomic uint64_t in_flight_returns;

/** Returns a number that changes when another thread gives something back. Memory that the calling
 * thread gave back is no reason for it to try again, so it does not count. */
uint64_t in_flight_given_back(const struct in_flight *in_flight);

/**
 * Waits until the requests that other threads have in progress now are answered, for about 1 s at
 * most. Returns whether there were any. Two threads that are both entered, and were refused by the
 * driver, do not wait for each other. Call with no lock held.
 */
bool in_flight_wait(struct in_flight *in_flight);

#endif
