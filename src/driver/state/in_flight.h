/*
 * Keeps a table of the threads that are requesting memory of a device.
 *
 * A request may take a charge or memory of the driver, fail, and give both back. Another request
 * that is refused meanwhile would succeed natively, where a call takes all that it needs or
 * nothing. The refused request therefore waits for the other requests (in_flight_wait). It tries
 * again if one of them gave memory back. Invariant: only the thread of an entry changes the entry,
 * `slow` excepted. All fields are atomic; no lock protects them. Backends, device.c and limit/ call
 * this file.
 */
#ifndef GPUCACHE_DRIVER_STATE_IN_FLIGHT_H
#define GPUCACHE_DRIVER_STATE_IN_FLIGHT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define IN_FLIGHT_THREADS 64 /* threads in one table; further tables hold more */

struct in_flight_thread {
    _Atomic uintptr_t who;   /* the thread (pthread_self); 0: a free entry */
    _Atomic uint64_t number; /* serial number of the request; 0: nothing is charged yet */
    atomic_bool waits;       /* the thread waits for others, and holds no memory of the driver */
    atomic_bool slow;        /* a wait for this request has timed out: nobody waits any more */
};

struct in_flight_table {
    struct in_flight_thread of[IN_FLIGHT_THREADS];
    _Atomic(struct in_flight_table *) next; /* set once, never unmapped */
};

struct in_flight {
    _Atomic uint64_t asked;        /* requests so far */
    _Atomic uint64_t return_count; /* times that a thread gave a charge or memory back */
    struct in_flight_table first;
};

/**
 * Enters the calling thread. Call before the thread charges or requests memory. Without host memory
 * for a further table the thread is not entered, and others do not wait for it.
 */
void in_flight_enter(struct in_flight *in_flight);

/** Removes the calling thread, after its request has its answer. */
void in_flight_leave(struct in_flight *in_flight);

/** Counts that the calling thread gave a charge or memory back. A thread in the table calls it
 * before in_flight_leave(). */
void in_flight_give_back(struct in_flight *in_flight);

/** Number of times that the driver got memory of any device back; raised afterwards. A charge that
 * was given back without memory does not count. */
extern _Atomic uint64_t in_flight_returns;

/** Returns a number that changes when another thread gives a charge or memory back. The calling
 * thread's own returns do not count, because they are no reason for it to try again. */
uint64_t in_flight_given_back(const struct in_flight *in_flight);

/**
 * Waits, for one second at most, for the requests that other threads have in progress now. Marks
 * a request that takes longer as slow: no thread waits for it any more. Returns whether there were
 * any requests. Two threads of the table that both wait do not wait for each other. Call with no
 * lock held.
 */
bool in_flight_wait(struct in_flight *in_flight);

#endif
