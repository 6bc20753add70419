#include "driver/state/in_flight.h"

#include "base/clock.h"
#include "heap/host.h"

#include <pthread.h>
#include <stddef.h>

#define WAIT_NS SECOND_NS

static uintptr_t this_thread(void) {
    return (uintptr_t)pthread_self();
}

/* Returns the entry of a thread in one table. NULL: there is none. */
static struct in_flight_thread *find_in(struct in_flight_table *table, uintptr_t who) {
    for (struct in_flight_thread *entry = table->of; entry < table->of + IN_FLIGHT_THREADS; entry++)
        if (atomic_load_explicit(&entry->who, memory_order_relaxed) == who)
            return entry;
    return NULL;
}

/* Returns the entry of a thread in all tables. NULL: the thread is not entered. */
static struct in_flight_thread *find(struct in_flight *in_flight, uintptr_t who) {
    struct in_flight_thread *entry = NULL;
    for (struct in_flight_table *table = &in_flight->first; table && !entry;
         table = atomic_load(&table->next))
        entry = find_in(table, who);
    return entry;
}

/* Returns the table after `table`, and creates it if there is none. NULL without host memory. */
static struct in_flight_table *next_table(struct in_flight_table *table) {
    struct in_flight_table *next = atomic_load(&table->next), *fresh;
    if (next || !(fresh = host_map(sizeof *fresh, 4096)))
        return next;
    if (atomic_compare_exchange_strong(&table->next, &next, fresh))
        return fresh;
    host_unmap(fresh, sizeof *fresh); /* another thread was first */
    return next;
}

/* Enters the calling thread into a free entry of a table. NULL: the table is full. */
static struct in_flight_thread *claim_slot(struct in_flight_table *table) {
    for (struct in_flight_thread *entry = table->of; entry < table->of + IN_FLIGHT_THREADS;
         entry++) {
        uintptr_t no_thread = 0;
        if (atomic_load_explicit(&entry->who, memory_order_relaxed) == 0 &&
            atomic_compare_exchange_strong(&entry->who, &no_thread, this_thread()))
            return entry;
    }
    return NULL;
}

void in_flight_enter(struct in_flight *in_flight) {
    struct in_flight_table *table = &in_flight->first;
    struct in_flight_thread *own;
    while (!(own = claim_slot(table)))
        if (!(table = next_table(table)))
            return;
    atomic_store(&own->waits, false);
    atomic_store(&own->slow, false);
    atomic_store(&own->number, atomic_fetch_add(&in_flight->asked, 1) + 1);
}

void in_flight_leave(struct in_flight *in_flight) {
    struct in_flight_thread *own = find(in_flight, this_thread());
    if (own) {
        atomic_store(&own->number, 0);
        atomic_store(&own->who, 0);
    }
}

_Atomic uint64_t in_flight_returns;

/* Times that this thread gave a charge or memory back, on all devices together. A return on another
 * device makes the thread try once more than necessary, or hides one return of another thread. */
static _Thread_local uint64_t own_returns __attribute__((tls_model("initial-exec")));

void in_flight_give_back(struct in_flight *in_flight) {
    own_returns++;
    atomic_fetch_add(&in_flight->return_count, 1);
}

uint64_t in_flight_given_back(const struct in_flight *in_flight) {
    return atomic_load(&in_flight->return_count) - own_returns;
}

/* Returns the entry of another thread for whose request the caller must wait. The request's number
 * is at most `last`. `own`: the caller's entry, or NULL. NULL: the caller need not wait. */
static struct in_flight_thread *other_request(struct in_flight *in_flight,
                                              const struct in_flight_thread *own, uint64_t last) {
    for (struct in_flight_table *table = &in_flight->first; table;
         table = atomic_load(&table->next)) {
        for (struct in_flight_thread *entry = table->of; entry < table->of + IN_FLIGHT_THREADS;
             entry++) {
            uint64_t number = atomic_load(&entry->number);
            if (number > 0 && number <= last && atomic_load(&entry->who) != this_thread() &&
                !atomic_load(&entry->slow) && !(own && atomic_load(&entry->waits)))
                return entry;
        }
    }
    return NULL;
}

bool in_flight_wait(struct in_flight *in_flight) {
    uint64_t last = atomic_load(&in_flight->asked), begun = clock_kernel_ns();
    struct in_flight_thread *own = find(in_flight, this_thread()), *other;
    unsigned turns = 0;
    if (own)
        atomic_store(&own->waits, true);
    for (; (other = other_request(in_flight, own, last)) != NULL; turns++)
        if (clock_kernel_ns() - begun >= WAIT_NS)
            atomic_store(&other->slow, true);
        else
            let_others_run(turns);
    if (own)
        atomic_store(&own->waits, false);
    return turns > 0;
}
