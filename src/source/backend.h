/*
 * The interface between the allocator and the driver: memory, and the synchronisation of work.
 *
 * The pool knows no CUDA. It names an event by a slot, 0 to BACKEND_SLOTS - 1, and the backend
 * keeps the event of each slot. Three modules implement this interface: src/backend (calls of the
 * driver), `gpucache replay`, and the fake of the unit tests. The same pool runs on all of them.
 *
 * Every int is 0, a negative errno, or a positive code of the driver, which the pool passes on.
 * Only reclaim_deferred() and pass_barriers() may call back into the pool. A call with
 *
 *      "Blocks"        in its comment is made with no lock held; exceptions: the VMM section, and
 *                      wait() for a completed event (sync_wait_submitted())
 *      "No lock"       does not block, and is made with no lock held
 *      neither         does not block, and is made under the pool's lock
 */
#ifndef GPUCACHE_SOURCE_BACKEND_H
#define GPUCACHE_SOURCE_BACKEND_H

#include "base/clock.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define BACKEND_SLOTS 32
/* Refused records in a row after which a driver counts as without events. */
#define BACKEND_REFUSALS 16

struct backend;

struct backend_ops {
    const char *name; /* as reports show it */

    /**
     * Allocates a segment from the driver. `bytes` and *address are multiples of 2 MiB. Blocks.
     * -ENOMEM: the driver has no more. -EDQUOT: the limit does not allow it.
     */
    int (*reserve)(struct backend *backend, uint64_t bytes, uint64_t *address);

    /**
     * Gives a whole segment of reserve() back; all work that touched it has completed. The driver
     * has the memory once returned() says so. -EBUSY: not possible now. If `release_waits` is set,
     * the call blocks instead: it waits for all work of the device, including work that other
     * threads submit during the wait.
     */
    int (*release)(struct backend *backend, uint64_t address, uint64_t bytes);

    /** Returns 0 if the driver has all released memory, -EAGAIN if not yet, -EBUSY if unknown. */
    int (*returned)(struct backend *backend);

    /**
     * Returns the bytes that the driver has left and the limit allows, as far as known. Sets
     * *others to the idle bytes of other pools of the device. Blocks. NULL: the capacity less the
     * reserve, and 0.
     */
    uint64_t (*available)(struct backend *backend, uint64_t *others);

    /**
     * Makes other pools of the device release `bytes` idle bytes, and waits until the driver has
     * them. With `wait`, also waits for the work of those pools, within limits. Returns whether
     * there were any, or the driver already had enough. Blocks. NULL if available() is.
     */
    bool (*release_others)(struct backend *backend, uint64_t bytes, bool wait);

    /**
     * Mark the begin and end of a growth by the calling thread, which may charge or take memory and
     * have to return it. `gave_back`: the thread returned some. NULL if wait_for_in_flight() is.
     */
    void (*begin_growth)(struct backend *backend);
    void (*end_growth)(struct backend *backend, bool gave_back);

    /**
     * Waits, within limits, until allocations of the device that are in flight in other threads
     * have their result. Then returns how often other threads have given memory back: a higher
     * number than before is a reason to retry a refused request. Blocks. NULL: there are no other
     * threads.
     */
    uint64_t (*wait_for_in_flight)(struct backend *backend);

    /*
     * VMM, from here to unmap(); NULL in a backend of segments. reserve(), release(),
     * returned() and forget_reserve() are never called with VMM, and `release_waits` is false.
     *
     * VMM calls do not wait for the device. All but mark_stale() block. The caller holds remap.lock
     * (state.h), and no lock that an allocation or a free waits for. Exceptions, with the pool's
     * lock too: mark_stale(), and after the end of the context unmap(), release_handles() and
     * free_addresses().
     */

    /**
     * Reserves a VA range. `bytes` and *address are multiples of 2 MiB; nothing is mapped there.
     * -ENOMEM: no range of that length is free, and the pool asks for a shorter one.
     */
    int (*reserve_addresses)(struct backend *backend, uint64_t bytes, uint64_t *address);

    /** Frees a whole VA range of reserve_addresses(). Nothing is mapped there. */
    void (*free_addresses)(struct backend *backend, uint64_t address, uint64_t bytes);

    /**
     * Asks whether `pages` pages of 2 MiB can be had, before handles are created one by one: a
     * failure half way would take memory from others for some time. 0: yes, or unknown. -ENOMEM
     * and -EDQUOT as reserve(). NULL: no other thread or process could notice.
     */
    int (*probe_handles)(struct backend *backend, unsigned pages);

    /**
     * Creates `count` handles of `length` pages of 2 MiB each, all or none. A handle is mapped,
     * unmapped and released as a whole. -ENOMEM and -EDQUOT as reserve().
     */
    int (*create_handles)(struct backend *backend, unsigned count, unsigned length,
                          uint64_t *handles);

    /** Releases handles that are not mapped, except by stale mappings, which are unmapped later. */
    void (*release_handles)(struct backend *backend, unsigned count, unsigned length,
                            const uint64_t *handles);

    /**
     * Maps handles at consecutive addresses, where nothing is mapped, all or none. The memory is as
     * accessible as that of reserve(). A handle has one mapping at a time, stale ones not counted.
     */
    int (*map)(struct backend *backend, uint64_t address, unsigned count, unsigned length,
               const uint64_t *handles);

    /**
     * Tells the trace that the mapping of `pages` pages becomes stale: the handle will be mapped
     * elsewhere, and this mapping stays until earlier work has completed. `back`: the mapping is no
     * longer stale, because the handle stays. NULL: there is no trace.
     */
    void (*mark_stale)(struct backend *backend, uint64_t address, unsigned pages, bool back);

    /**
     * Unmaps `pages` pages at consecutive addresses, which are whole handles. `stale`: mark_stale()
     * was called for them. -EBUSY: not possible now.
     */
    int (*unmap)(struct backend *backend, uint64_t address, unsigned pages, bool stale);

    /**
     * Asks for periodic calls of pool_tick(), because memory is idle, until pool_tick() returns
     * false. NULL if no pool decays.
     */
    void (*watch_idle)(struct backend *backend);

    /** Removes a segment of reserve() from the counters, because its context has ended. */
    void (*forget_reserve)(struct backend *backend, uint64_t bytes);

    /**
     * Records event `slot`, which captures all work submitted to the context so far. -EBUSY: not
     * now (a capture, the end of the context) or not here (a host callback). -ENOSYS: the driver
     * has no context events. -EIO: it has them, and refuses.
     */
    int (*record)(struct backend *backend, unsigned slot);

    /** Returns 0 if event `slot` has completed, -EAGAIN if not, -EBUSY if unknown. */
    int (*query)(struct backend *backend, unsigned slot);

    /**
     * Makes all later work of the context wait, on the device, for event `slot`. -EBUSY: not now,
     * or other contexts can reach the memory too: wait on the CPU instead.
     */
    int (*barrier)(struct backend *backend, unsigned slot);

    /** Waits on the CPU until event `slot` has completed. Blocks. */
    int (*wait)(struct backend *backend, unsigned slot);

    /**
     * Returns 0, or the code with which the driver answers calls of this thread at present. Takes
     * some ns. The context is current. No lock.
     */
    int (*health)(struct backend *backend);

    /**
     * Returns the code with which the driver refuses every call of this thread, because the thread
     * runs a host function; 0 for any other thread. Takes some ns. No lock. NULL: always 0.
     */
    int (*thread_refused)(struct backend *backend);

    /** Returns whether the driver answers every later call of the context with `code`. No lock. */
    bool (*is_sticky)(int code);

    /** Returns a time in ns that never decreases. With or without a lock. NULL: CLOCK_MONOTONIC. */
    uint64_t (*clock)(struct backend *backend);

    /**
     * Record that the program got a large block, or frees one. `bytes` is the requested size. Both
     * leave the pool unchanged. allocated(): no lock. freed(): inside the freeing thread's cache,
     * so no other thread can get the memory yet. NULL: blocks are not recorded.
     */
    void (*allocated)(struct backend *backend, uint64_t address, uint64_t bytes);
    void (*freed)(struct backend *backend, uint64_t address, uint64_t bytes);

    /** Returns the requester of the current call (stacks/requester.h). No lock. NULL: unknown. */
    unsigned (*requester)(void);

    /** Returns whether a stream capture prevents record() at present. NULL: never. */
    bool (*captured)(struct backend *backend);

    /** Waits on the CPU for all work submitted to the context so far. -EBUSY: not now. Blocks. */
    int (*synchronize)(struct backend *backend);

    /**
     * Calls pool_reclaim() for blocks of any pool whose deferred free has taken effect: for `all`,
     * or for a few, at the price of a few queries. Returns whether there was one. No lock. NULL:
     * the backend has no deferred frees.
     */
    bool (*reclaim_deferred)(struct backend *backend, bool all);

    /**
     * Waits, as pool_wait_for_events_in_free() does, for the work that barriers in pools of the
     * device wait for: a query shows only after the barrier that a stream reached a deferred free.
     * Returns whether any free is deferred. Blocks. NULL if reclaim_deferred() is.
     */
    bool (*pass_barriers)(struct backend *backend);
};

struct backend {
    const struct backend_ops *ops;
    /*
     * Bytes of the device, or the limit of the process if that is less. A larger request is refused
     * at once. Set by pool_set_capacity().
     */
    _Atomic uint64_t capacity;
    /* record() works. If false, frees have to call synchronize(). */
    atomic_bool has_events;
    /* Records refused in a row. If not 0, every free tries to record, and waits if refused. */
    unsigned refused;
    bool release_waits; /* release() waits for the device */
    /* A call that ends the context is in progress or has ended it. The backend then records and
     * queries no event, adds no barrier and releases no segment. Changed under the pool's lock. */
    atomic_bool suspended;
    /* The context has ended, and the pool serves no new context yet; `suspended` is set too. No
     * growth begins: nobody would free that memory. Changed under the pool's lock. */
    atomic_bool ended;
    /* Requested bytes of the device by requester: REQUESTERS rows. NULL: not counted. */
    struct requester_row *requesters;
};

/** Returns the backend's time in ns. */
static inline uint64_t backend_clock(struct backend *backend) {
    return backend->ops->clock ? backend->ops->clock(backend) : clock_ns(CLOCK_MONOTONIC);
}

/** Returns whether a stream capture is in progress, so that no event can be recorded. */
static inline bool backend_is_captured(struct backend *backend) {
    return backend->ops->captured && backend->ops->captured(backend);
}

/** Returns whether the backend maps memory (VMM), rather than allocate segments. */
static inline bool backend_maps(const struct backend *backend) {
    return backend->ops->map != 0;
}

#endif
