/*
 * The source of a pool's memory, whole: what the files of this room have in common. The pool above has one; what its caches
 * hold is in use here.
 */
#ifndef GPUCACHE_SOURCE_STATE_H
#define GPUCACHE_SOURCE_STATE_H

#include "memory/arena.h"
#include "memory/arith.h"
#include "memory/page.h"
#include "memory/tuning.h"
#include "process/lock.h"
#include "source/backend.h"
#include "source/config.h"
#include "source/epoch.h"
#include "stats/books.h"

/* Freed memory waiting for its epoch, oldest stamp first. */
struct pending {
    struct block *head, *tail;
};

/* Memory that only the context's own work reaches, and memory that something else reaches too. */
enum reach { REACH_CONTEXT, REACH_OUTSIDE, REACHES };

/* What has been idle for the decay time. Under the lock, but for what only the ticking thread has. */
struct decay {
    uint64_t tick;
    bool watched;                 /* somebody ticks, or has been told to */
    uint64_t before[DECAY_TICKS]; /* what was freed before one of the last ticks has that stamp at
                                     most */
};

/* Whoever has the driver map memory, one thread at a time: mapper.c, mapping.c. Changed under both locks, so whoever has its lock
 * finds all of it as it was, also after a call that the source's was let go of for. */
struct mapper {
    struct lock lock;    /* taken before the source's */
    bool any_refused;    /* segments are marked as refused */
    unsigned halvings;   /* of the length of new segments (look_at_pins()); */
    uint64_t made_bytes; /* so much has been made since the last one */
    uint64_t ns;         /* what mapping memory anew has taken */
    uint64_t since_ns;   /* since then, */
    uint64_t peak;       /* when the peak was this; */
    uint64_t slack;      /* and what the goal has been raised by for it, */
    unsigned parts;      /* of so many parts of the peak */
    /* Free memory that a growing thread keeps: what it grows beside, and what has come. */
    uint64_t held_bytes;
    _Atomic uint64_t leaving_bytes; /* no longer in the reserve, and not yet the driver's */
};

/* Threads that the driver is giving memory to. */
struct growing {
    uint64_t bytes;   /* that those inside backend->reserve ask for, */
    uint64_t threads; /* so many of them, */
    uint64_t done;    /* and how many came back */
};

/* Waits for work. */
struct waits {
    unsigned inside; /* threads in a call of the backend that names what the context has made */
    /* Those with a limit have been in vain for so long in all; this epoch has not finished since. */
    uint64_t vain_ns, vain_line;
};

struct source {
    /* Read by every allocation and free, and hardly ever written: a cache line of its own. */
    _Alignas(64) struct pool_config config;
    struct backend *backend;
    _Atomic uint64_t budget;                   /* kept where the peak changes */
    _Atomic uint64_t tight;                    /* not 0: under pressure (tight_from()); */
    _Atomic uint64_t close_least, close_bytes; /* then a free records an event after so much */
    bool program_orders; /* the program uses the context's records and waits itself */

    _Alignas(64) struct lock lock; /* the pool's: all below is changed under it */

    /* Order: order.c. */
    struct epochs epochs;
    struct waits waits;
    uint64_t freed_large; /* large blocks that came back since the last event on time */

    /* Memory: what is free, what waits, what comes and goes. */
    struct arena large; /* ranges for blocks above 1 MiB */
    struct arena small; /* ranges of 2 MiB for pages */
    struct runs runs;   /* what is free in those */
    struct pending pending[REACHES];
    uint64_t pending_bytes; /* in the queues */
    struct decay decay;
    struct mapper mapper;
    struct growing growing;
    uint64_t returning; /* bytes that were released, and that the driver may not have yet */
    bool unmanageable;  /* the driver's addresses are not what the map can hold */
    /* Contexts it has outlived: what an earlier one was asked for is not this one's. */
    _Atomic uint64_t lives;

    /* How far it may grow: budget.c. */
    uint64_t goal;        /* the budget without what caches may hold: */
    uint64_t quotas;      /* in all, */
    unsigned awake_count; /* so many of them */
    uint64_t
        refused_at; /* the reserve when growing was last refused: no budget exceeds it; 0: never was */
    unsigned refused_seen; /* the backend's, when `tight` was last set */
    bool budget_follows;   /* what it follows from has changed since */
    uint64_t started_ns;   /* when the source was made; */
    uint64_t excess_ns; /* time since that giving back ahead of growing has taken, or has forgone */

    struct books books; /* of everything but the thread caches' own counters: what is live */
};

/*
 * What stands in `tight` under pressure: the epoch that was open when that began, or, odd, that of the last event on
 * time since. So it changes with whatever makes frees be counted anew.
 */
static inline uint64_t tight_from(uint64_t epoch, bool by_event) {
    return 2 * epoch + by_event;
}

/* Nobody has left an event on time since pressure began. */
static inline bool tight_is_new(uint64_t tight) {
    return tight % 2 == 0;
}

/* Under the lock, or inside a cache: then, until that is left, the pool has not forgotten yet. */
static inline uint64_t source_lives(const struct source *source) {
    return atomic_load_explicit(&source->lives, memory_order_relaxed);
}

#endif
