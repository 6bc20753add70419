#include "driver/state/in_flight.h"

#include "heap/host.h"
#include "process/nap.h"

#include <pthread.h>
#include <sched.h>
#include <stddef.h>

#define TURNS 100 /* before it sleeps */
#define POLL_NS 50000
#define WAIT_NS 1000000000

static uintptr_t me(void) {
    return (uintptr_t)pthread_self();
}

static struct asker *find_in(struct asker_table *table, uintptr_t who) {
    for (struct asker *one = table->of; one < table->of + ASKERS; one++) {
        if (atomic_load_explicit(&one->who, memory_order_relaxed) == who) {
            return one;
        }
    }
    return NULL;
}

static struct asker *find(struct askers *askers, uintptr_t who) {
    struct asker *one = NULL;
    for (struct asker_table *table = &askers->first; table && !one;
         table = atomic_load(&table->next)) {
        one = find_in(table, who);
    }
    return one;
}

/* Returns the table behind this one, made if there is none. NULL without host memory. */
static struct asker_table *next_table(struct asker_table *table) {
    struct asker_table *next = atomic_load(&table->next), *fresh;
    if (next || !(fresh = host_map(sizeof *fresh, 4096))) {
        return next;
    }
    if (atomic_compare_exchange_strong(&table->next, &next, fresh)) {
        return fresh;
    }
    host_unmap(fresh, sizeof *fresh); /* another thread was first */
    return next;
}

static struct asker *take_in(struct asker_table *table) {
    for (struct asker *one = table->of; one < table->of + ASKERS; one++) {
        uintptr_t nobody = 0;
        if (atomic_load_explicit(&one->who, memory_order_relaxed) == 0 &&
            atomic_compare_exchange_strong(&one->who, &nobody, me())) {
            return one;
        }
    }
    return NULL;
}

void askers_enter(struct askers *askers) {
    struct asker_table *table = &askers->first;
    struct asker *own;
    while (!(own = take_in(table))) {
        if (!(table = next_table(table))) {
            return;
        }
    }
    atomic_store(&own->waits, false);
    atomic_store(&own->slow, false);
    atomic_store(&own->number, atomic_fetch_add(&askers->asked, 1) + 1);
}

void askers_leave(struct askers *askers) {
    struct asker *own = find(askers, me());
    if (own) {
        atomic_store(&own->number, 0);
        atomic_store(&own->who, 0);
    }
}

_Atomic uint64_t askers_returns;

/* Of all devices: who gives something back on another one meanwhile asks once more than it need. */
static _Thread_local uint64_t own_returns __attribute__((tls_model("initial-exec")));

void askers_give_back(struct askers *askers) {
    own_returns++;
    atomic_fetch_add(&askers->return_count, 1);
}

uint64_t askers_given_back(const struct askers *askers) {
    return atomic_load(&askers->return_count) - own_returns;
}

/* Another thread that has been asking since `last` or before and is to be waited for; NULL: there is none. */
static struct asker *still_asking(struct askers *askers, const struct asker *own, uint64_t last) {
    for (struct asker_table *table = &askers->first; table; table = atomic_load(&table->next)) {
        for (struct asker *one = table->of; one < table->of + ASKERS; one++) {
            uint64_t number = atomic_load(&one->number);
            if (number > 0 && number <= last && atomic_load(&one->who) != me() &&
                !atomic_load(&one->slow) && !(own && atomic_load(&one->waits))) {
                return one;
            }
        }
    }
    return NULL;
}

/* By counting, not by the clock, which may stand still. */
bool askers_wait(struct askers *askers) {
    uint64_t last = atomic_load(&askers->asked), waited = 0;
    struct asker *own = find(askers, me()), *other;
    unsigned turns = 0;
    bool any = false;
    if (own) {
        atomic_store(&own->waits, true);
    }
    while ((other = still_asking(askers, own, last)) != NULL) {
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
