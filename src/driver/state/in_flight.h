/*
 * Threads that are asking for memory of a device: what they have charged, or have from the driver, may come back. A request
 * that is refused meanwhile would have been served natively, where a call takes all it needs or nothing.
 */
#ifndef GPUCACHE_DRIVER_STATE_IN_FLIGHT_H
#define GPUCACHE_DRIVER_STATE_IN_FLIGHT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define ASKERS 64 /* in one table; more at a time go into further ones */

struct in_flight_thread {
    _Atomic uintptr_t who;   /* 0: nobody */
    _Atomic uint64_t number; /* of the request; 0: has charged nothing yet */
    atomic_bool waits;       /* for the others: it has nothing of the driver's */
    atomic_bool slow;        /* somebody has waited for it in vain */
};

struct in_flight_table {
    struct in_flight_thread of[ASKERS];
    _Atomic(struct in_flight_table *) next; /* set once, never unmapped */
};

struct in_flight {
    _Atomic uint64_t asked;        /* requests there have been */
    _Atomic uint64_t return_count; /* how often memory came back */
    struct in_flight_table first;
};

/**
 * The calling thread is about to charge or to ask for what it may have to give back, and has its
 * answer. Without host memory for a further table, other threads do not wait for it.
 */
void in_flight_enter(struct in_flight *in_flight);
void in_flight_leave(struct in_flight *in_flight);

/** Something has come back. Before the asker leaves. */
void in_flight_give_back(struct in_flight *in_flight);

/** The driver has something back, of any device: raised after that. Charges that come back without are not counted. */
extern _Atomic uint64_t in_flight_returns;

/** Moves when another thread has given something back; what the calling one has is no reason to ask again. */
uint64_t in_flight_given_back(const struct in_flight *in_flight);

/** Waits, within limits, until the other threads that are asking now have their answers. True if there were any. With no lock
 * held. Two that are asking themselves, and were refused by the driver, do not wait for each other. */
bool in_flight_wait(struct in_flight *in_flight);

#endif
