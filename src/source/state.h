/*
 * The source of a pool's memory, whole: what the files of this room have in common. The pool above has one; what its caches
 * hold is in use here.
 */
#ifndef GPUCACHE_SOURCE_STATE_H
#define GPUCACHE_SOURCE_STATE_H

#include "memory/arena.h"
#include "memory/arith.h"
#include "memory/slab.h"
#include "memory/tuning.h"
#include "process/lock.h"
#include "source/backend.h"
#include "source/config.h"
#include "source/epoch.h"
#include "stats/counters.h"

/* Freed memory waiting for its epoch, oldest stamp first. */
struct pending {
    struct block *head, *tail;
};

/* Memory that only the context's own work reaches, and memory that something else reaches too. */
enum reach { REACH_CONTEXT, REACH_EXTERNAL, REACHES };

/* The clock by which memory has been idle for the decay time. */
struct decay {
    uint64_t tick;
    bool watched; /* somebody ticks, or has been told to */
    /* What was freed before one of the last ticks has that stamp at most. */
    uint64_t before[DECAY_TICKS];
};

/* Mapping memory, one thread at a time: remap.c, handles.c. All but unmapping_bytes is changed under both locks, so the thread that has
 * this one finds it as it was, also after a call that the source's was let go of for. */
struct remap {
    struct lock lock;     /* taken before the source's */
    bool any_refused;     /* some segments are marked as refused */
    unsigned size_shift;  /* new segments are VMM_HANDLE >> halvings long */
    uint64_t made_bytes;  /* mapped since `halvings` has changed */
    uint64_t remap_ns;    /* time that mapping beyond the budget has taken since */
    uint64_t since_ns;    /* this moment */
    uint64_t peak;        /* the peak of what is live that `parts` is for */
    unsigned slack_steps; /* `slack` may be so many parts of it (REMAP_SLACK_STEP) */
    uint64_t slack;       /* bytes that the goal is raised by, so that less has to be mapped anew */
    uint64_t held_bytes;  /* free, and kept for the growing thread by handles_hold() */
    _Atomic uint64_t unmapping_bytes; /* no longer in the reserve, and not yet the driver's */
};

/* Growths under way. */
struct growing {
    uint64_t bytes;   /* asked of the driver, and not in the reserve yet */
    uint64_t threads; /* that have begun one and not ended it */
    uint64_t done;    /* how many have ended, ever */
};

/* Waits for work. */
struct waits {
    unsigned inside; /* threads in a call of the backend that names what the context has made */
    /* What waits with a limit have spent in vain, all together: forgotten when that epoch has finished. */
    uint64_t failed_ns, failed_stamp;
};

struct source {
    /* Read by every allocation and free, and hardly ever written: a cache line of its own. */
    _Alignas(64) struct pool_config config;
    struct backend *backend;
    _Atomic uint64_t budget;                   /* kept where the peak changes */
    _Atomic uint64_t pressure;                 /* not 0: under pressure (pressure_since()); */
    _Atomic uint64_t event_least, event_bytes; /* then a free records an event after so much */
    bool application_syncs; /* the program uses the context's records and waits itself */

    _Alignas(64) struct lock lock; /* the pool's: all below is changed under it */

    /* Order: sync.c. */
    struct epochs epochs;
    struct waits waits;
    uint64_t freed_large; /* bytes of large blocks freed since the last event on time */

    /* Memory: what is free, what waits, what comes and goes. */
    struct arena large; /* ranges for blocks above 1 MiB */
    struct arena small; /* ranges of 2 MiB for pages */
    struct runs runs;   /* what is free in those */
    struct pending pending[REACHES];
    uint64_t pending_bytes; /* in the queues */
    struct decay decay;
    struct remap remap;
    struct growing growing;
    uint64_t freeing_bytes; /* bytes that were released, and that the driver may not have yet */
    bool unmanageable;      /* the driver's addresses are not what the map can hold */
    /* Contexts it has outlived: what an earlier one was asked for is not this one's. */
    _Atomic uint64_t generation;

    /* How far it may grow: budget.c. */
    uint64_t goal;         /* the budget without what caches may hold: */
    uint64_t quotas;       /* in all, */
    unsigned active_count; /* so many of them */
    /* The reserve when growing was refused: the budget is at most that. 0: it was not, or that is forgotten. */
    uint64_t refused_at;
    unsigned refused_seen; /* the backend's, when `tight` was last set */
    bool budget_stale;     /* quotas, peak or refusals have changed: budget_recompute() is due */
    uint64_t started_ns;   /* when the source was made; */
    uint64_t excess_ns; /* time since that giving back ahead of growing has taken, or has forgone */

    struct counters counters; /* of everything but the thread caches' own counters: what is live */
};

/*
 * What stands in `tight` under pressure: the epoch that was open when that began, or, odd, that of the last event on
 * time since. So it changes with whatever makes frees be counted anew.
 */
static inline uint64_t pressure_since(uint64_t epoch, bool by_event) {
    return 2 * epoch + by_event;
}

/* Nobody has left an event on time since pressure began. */
static inline bool pressure_is_new(uint64_t pressure) {
    return pressure % 2 == 0;
}

/* Under the lock, or inside a cache: then, until that is left, the pool has not forgotten yet. */
static inline uint64_t source_generation(const struct source *source) {
    return atomic_load_explicit(&source->generation, memory_order_relaxed);
}

#endif
