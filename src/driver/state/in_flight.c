#include "driver/state/in_flight.h"

#include "heap/host.h"
#include "process/nap.h"

#include <pthread.h>
#include <sched.h>
#include <stddef.h>

#define TURNS 100 /* times that a waiting thread yields before it sleeps */
#define POLL_NS 50000
#define WAIT_NS 1000000000

static uintptr_t me(void) {
    return (uintptr_t)pthread_self();
}

static struct in_flight_thread *find_in(struct in_flight_table *table, uintptr_t who) {
    for (struct in_flight_thread *one = table->of; one < table->of + ASKERS; one++) {
        if (atomic_load_explicit(&one->who, memory_order_relaxed) == who) {
            return one;
        }
    }
    return NULL;
}

static struct in_flight_thread *find(struct in_flight *in_flight, uintptr_t who) {
    struct in_flight_thread *one = NULL;
    for (struct in_flight_table *table = &in_flight->first; table && !one;
         table = atomic_load(&table->next)) {
        one = find_in(table, who);
    }
    return one;
}

/* Returns the table after `table`, and creates it if there is none. NULL without host memory. */
static struct in_flight_table *next_table(struct in_flight_table *table) {
    struct in_flight_table *next = atomic_load(&table->next), *fresh;
    if (next || !(fresh = host_map(sizeof *fresh, 4096))) {
        return next;
    }
    if (atomic_compare_exchange_strong(&table->next, &next, fresh)) {
        return fresh;
    }
    host_unmap(fresh, sizeof *fresh); /* another thread was first */
    return next;
}

/* Enters the calling thread into a free entry of a table. NULL: the table is full. */
static struct in_flight_thread *claim_slot(struct in_flight_table *table) {
    for (struct in_flight_thread *one = table->of; one < table->of + ASKERS; one++) {
        uintptr_t nobody = 0;
        if (atomic_load_explicit(&one->who, memory_order_relaxed) == 0 &&
            atomic_compare_exchange_strong(&one->who, &nobody, me())) {
            return one;
        }
    }
    return NULL;
}

void in_flight_enter(struct in_flight *in_flight) {
    struct in_flight_table *table = &in_flight->first;
    struct in_flight_thread *own;
    while (!(own = claim_slot(table))) {
        if (!(table = next_table(table))) {
            return;
        }
    }
    atomic_store(&own->waits, false);
    atomic_store(&own->slow, false);
    atomic_store(&own->number, atomic_fetch_add(&in_flight->asked, 1) + 1);
}

void in_flight_leave(struct in_flight *in_flight) {
    struct in_flight_thread *own = find(in_flight, me());
    if (own) {
        atomic_store(&own->number, 0);
        atomic_store(&own->who, 0);
    }
}

_Atomic uint64_t in_flight_returns;

/* Times that this thread gave something back, on all devices together. A thread that gives back on
 * another device at the same time tries once more than necessary. */
static _Thread_local uint64_t own_returns __attribute__((tls_model("initial-exec")));

void in_flight_give_back(struct in_flight *in_flight) {
    own_returns++;
    atomic_fetch_add(&in_flight->return_count, 1);
}

uint64_t in_flight_given_back(const struct in_flight *in_flight) {
    return atomic_load(&in_flight->return_count) - own_returns;
}

/* Returns another thread whose request has a number up to `last`, and for which the caller has to
 * wait. `own`: the caller's entry, or NULL. NULL: there is no such thread. */
static struct in_flight_thread *other_request(struct in_flight *in_flight,
                                              const struct in_flight_thread *own, uint64_t last) {
    for (struct in_flight_table *table = &in_flight->first; table;
         table = atomic_load(&table->next)) {
        for (struct in_flight_thread *one = table->of; one < table->of + ASKERS; one++) {
            uint64_t number = atomic_load(&one->number);
            if (number > 0 && number <= last && atomic_load(&one->who) != me() &&
                !atomic_load(&one->slow) && !(own && atomic_load(&one->waits))) {
                return one;
            }
        }
    }
    return NULL;
}

/* Measures time by its own sleeps, because the clock may stand still. */
bool in_flight_wait(struct in_flight *in_flight) {
    uint64_t last = atomic_load(&in_flight->asked), waited = 0;
    struct in_flight_thread *own = find(in_flight, me()), *other;
    unsigned turns = 0;
    bool any = false;
    if (own) {
        atomic_store(&own->waits, true);
    }
    while ((other = other_request(in_flight, own, last)) != NULL) {
        any = true;
        if (waited >= WAIT_NS) {
            atomic_store(&other->slow, true);
        } else if (turns++ < TURNS) {
            sched_yield();
        } else {
            nap(POLL_NS);
            waited += POLL_NS;
        }
    }
    if (own) {
        atomic_store(&own->waits, false);
    }
    return any;
}
