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

struct asker {
    _Atomic uintptr_t who;   /* 0: nobody */
    _Atomic uint64_t number; /* of the request; 0: has charged nothing yet */
    atomic_bool waits;       /* for the others: it has nothing of the driver's */
    atomic_bool slow;        /* somebody has waited for it in vain */
};

struct asker_table {
    struct asker of[ASKERS];
    _Atomic(struct asker_table *) next; /* set once, never unmapped */
};

struct askers {
    _Atomic uint64_t asked;        /* requests there have been */
    _Atomic uint64_t return_count; /* how often memory came back */
    struct asker_table first;
};

/**
 * The calling thread is about to charge or to ask for what it may have to give back, and has its
 * answer. Without host memory for a further table, other threads do not wait for it.
 */
void askers_enter(struct askers *askers);
void askers_leave(struct askers *askers);

/** Something has come back. Before the asker leaves. */
void askers_give_back(struct askers *askers);

/** The driver has something back, of any device: raised after that. Charges that come back without are not counted. */
extern _Atomic uint64_t askers_returns;

/** Moves when another thread has given something back; what the calling one has is no reason to ask again. */
uint64_t askers_given_back(const struct askers *askers);

/** Waits, within limits, until the other threads that are asking now have their answers. True if there were any. With no lock
 * held. Two that are asking themselves, and were refused by the driver, do not wait for each other. */
bool askers_wait(struct askers *askers);

#endif
