/*
 * The state of a source: the part of a pool that gets memory from the driver and decides when freed
 * memory is safe. Each pool has one; source, policy, sync, segment, vmm, tcache and pool share it.
 * This layer counts the blocks in thread caches as in use.
 *
 * source.lock is the pool's lock. All fields change under it only, except remap.unmapping_bytes and
 * epochs.open. Atomic fields, counters, and the fields in front of the lock are read without it.
 * remap.lock is taken before source.lock.
 */
#ifndef GPUCACHE_SOURCE_STATE_H
#define GPUCACHE_SOURCE_STATE_H

#include "base/lock.h"
#include "heap/arena.h"
#include "heap/arith.h"
#include "heap/slab.h"
#include "source/backend.h"
#include "source/config.h"
#include "source/epoch.h"
#include "source/memory_policy.h"
#include "stats/counters.h"
#include "tuning/tuning.h"

/* Pending blocks, sorted by stamp. */
struct pending {
    struct block *head, *tail;
};

enum reach {
    REACH_CONTEXT,  /* memory that only work of the pool's context reaches */
    REACH_EXTERNAL, /* externally visible memory */
    REACHES
};

/* The clock of decay. It advances DECAY_TICKS times in the decay time, and faster on an
 * overcommitted device (driver/context/decay.c). */
struct decay {
    /* Number of calls of pool_tick() that found memory which may go back later (decay_is_any()).
     * take_old() in pool/decay.c sets it back for a while. */
    uint64_t tick;
    bool watched; /* pool_tick() is called periodically: watch_idle() asked for it */
    /* At t % DECAY_TICKS: highest stamp of memory freed before tick t. */
    uint64_t before[DECAY_TICKS];
};

/* Handles in transit: detached from their segments, until they are mapped in the gap or reattached.
 * The longest comes first. A growth that maps them again saves cuMemRelease and cuMemCreate. */
struct transit {
    uint64_t bytes;
    unsigned count;
    struct detached {
        uint64_t handle, bytes, stamp; /* of the segment */
        struct arena *arena;           /* arena of the segment */
        uint64_t base;                 /* the segment's address: a mapping is still there */
    } handles[TRANSIT_MOST];
};

/*
 * Remapping of handles (src/vmm). One thread at a time remaps. All fields but unmapping_bytes
 * change under both locks only. A thread that holds remap.lock therefore finds them unchanged after
 * it released the pool's lock for a driver call and took it again.
 */
struct remap {
    struct lock lock;     /* taken before the pool's lock */
    bool any_refused;     /* `refused` of some segments is set */
    unsigned size_shift;  /* new handles normally have VMM_HANDLE >> size_shift bytes */
    uint64_t made_bytes;  /* bytes mapped since size_shift changed */
    uint64_t remap_ns;    /* ns spent on remapping beyond the budget since since_ns */
    uint64_t since_ns;    /* time at which the count in remap_ns began */
    uint64_t peak;        /* peak of live bytes to which slack_steps belongs */
    unsigned slack_steps; /* `slack` is at most this number times peak / REMAP_SLACK_STEP */
    uint64_t slack;       /* bytes added to the goal, so that less has to be remapped */
    uint64_t held_bytes;  /* free bytes that handles_hold() keeps for the growing thread */
    /* Bytes that are no longer in the reserve, and that the driver does not have yet. */
    _Atomic uint64_t unmapping_bytes;
    /* Empty unless a thread with `lock` grows the pool. Too large for the stack of that thread. */
    struct transit transit;
};

/* Growths in progress, of all threads. */
struct growing {
    uint64_t bytes;   /* bytes asked of the driver that are not in the reserve yet */
    uint64_t threads; /* number of growths that have begun and not ended */
    uint64_t done;    /* number of growths that have ended, in total */
};

/* Waits for work. */
struct waits {
    unsigned inside; /* threads in a backend call that uses events or memory of the context */
    /* Time in ns that failed waits with a limit took; 0 once epoch failed_stamp has finished. */
    uint64_t failed_ns, failed_stamp;
};

struct source {
    /* Cache line that every allocation and free reads, and that is rarely written. */
    _Alignas(64) struct pool_config config;
    struct backend *backend;
    const struct memory_policy *policy;
    _Atomic uint64_t budget;      /* bytes, as last computed by budget_recompute() */
    _Atomic uint64_t pressure;    /* 0, or pressure_since() under pressure */
    _Atomic uint64_t event_least; /* freed bytes per thread below which a free records no event */
    /* Freed bytes per thread above which a free records an event, even after few frees. */
    _Atomic uint64_t event_bytes;

    _Alignas(64) struct lock lock; /* the pool's lock: protects all fields below */

    /* Synchronising: sync/sync.c. */
    bool application_syncs; /* the program has recorded, or made a context wait for, an event */
    struct epochs epochs;
    struct waits waits;
    uint64_t freed_large; /* counted by sync_event_is_due() since a free last recorded an event */

    /* Memory. */
    struct arena large; /* ranges for blocks above 1 MiB */
    struct arena small; /* ranges of 2 MiB for slabs */
    struct runs runs;   /* free runs of the slabs */
    struct pending pending[REACHES];
    uint64_t pending_bytes; /* bytes in the queues */
    struct decay decay;
    struct remap remap;
    struct growing growing;
    /* Bytes of released segments that the driver may not have yet (device_backend.returning counts
     * the same bytes for the device). */
    uint64_t returning_bytes;
    bool unmanageable; /* the driver gave an unaligned address, or one beyond the page map */
    /* Number of contexts that ended. A stamp or deferred free of another generation is ignored. */
    _Atomic uint64_t generation;

    /* Growth: budget.c. */
    uint64_t goal;          /* budget without the quotas of caches, in bytes */
    uint64_t quotas;        /* bytes that all active caches together may hold */
    unsigned active_caches; /* number of active caches */
    /* Reserve at which growing was last refused: an upper bound of the budget. 0: none. */
    uint64_t refused_at;
    unsigned refused_seen; /* backend->refused when `pressure` was last computed */
    bool budget_stale;     /* quotas, peak or refusals changed: budget_recompute() is due */

    struct counters counters; /* all counters but those that the thread caches keep */
};

/*
 * Returns the value of `pressure`: 2 * (epoch that was open when pressure began), or 2 * (epoch of
 * the last event recorded in a free since) + 1. Threads restart their counts of freed bytes when
 * the value changes.
 */
static inline uint64_t pressure_since(uint64_t epoch, bool by_event) {
    return 2 * epoch + by_event;
}

/* Returns whether a free has recorded an event since pressure began. */
static inline bool pressure_has_event(uint64_t pressure) {
    return pressure % 2 == 1;
}

/*
 * Returns the generation. The caller holds the pool's lock, or has entered a cache of the pool:
 * pool_forget() waits until all caches are left.
 */
static inline uint64_t source_generation(const struct source *source) {
    return atomic_load_explicit(&source->generation, memory_order_relaxed);
}

#endif
