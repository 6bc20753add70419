/*
 * What the pool asks of the world below it: memory, and an order between old and new work.
 *
 * The pool knows no CUDA. It numbers its events with slots, and the backend keeps whatever stands
 * behind a slot. The same pool runs on the driver, on the simulated driver and in a replay of a
 * trace.
 *
 * Every call returns 0, a negative errno, or the driver's own positive code, which the pool only
 * hands on. None of them but settle() and pass_barriers() may call back into the pool. Calls marked "blocks" are made with
 * no lock held (but see those for pages), all others but health() and settle() under the pool's.
 */
#ifndef GPUCACHE_SOURCE_BACKEND_H
#define GPUCACHE_SOURCE_BACKEND_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <time.h>

#define BACKEND_SLOTS 32
#define BACKEND_REFUSALS 16 /* records refused on end: then there will be none */

struct backend;

struct backend_ops {
    const char *name; /* as the report shows it */

    /**
     * Takes memory from the driver: `bytes` is a multiple of 2 MiB; so must *address be. Blocks.
     * -ENOMEM: the driver has none. -EDQUOT: the limit does not allow it.
     */
    int (*reserve)(struct backend *backend, uint64_t bytes, uint64_t *address);

    /**
     * Gives memory of one reserve() back, whole; all work that touched it has finished. Does not wait
     * for the device, and is called under the pool's lock: the driver has the memory when returned()
     * says so. -EBUSY: not now. Where `release_waits` is set, it does wait, for all work of the device,
     * also for what other threads submit meanwhile, and is called without the lock.
     */
    int (*release)(struct backend *backend, uint64_t address, uint64_t bytes);

    /** 0 when the driver has all that was released, -EAGAIN while it has not. Does not block. */
    int (*returned)(struct backend *backend);

    /**
     * What the driver has left for the pool, and the limit allows, as far as anybody knows; in *others what
     * other pools of the device hold and nobody has live. Blocks. NULL: the rest of the capacity, and none.
     */
    uint64_t (*available)(struct backend *backend, uint64_t *others);

    /**
     * Has those give back what is idle, `bytes` of it, and returns when the driver has it; with `wait`, waits
     * for their work as well, within limits. True if there was any, or the driver had enough already. Blocks. NULL where room() is.
     */
    bool (*release_others)(struct backend *backend, uint64_t bytes, bool wait);

    /** The calling thread is about to grow the pool, which may take what has to be given back again; and has done so, or
     * has not. Does not block. NULL where return_count() is. */
    void (*begin_growth)(struct backend *backend);
    void (*end_growth)(struct backend *backend, bool return_count);

    /** How often memory has come back so far to those who ask for memory of the device. Waits before, within limits, until
     * other threads that are asking have their answers. Blocks. NULL: nobody else asks. */
    uint64_t (*return_count)(struct backend *backend);

    /*
     * From here to unmap(): where memory comes in pages of 2 MiB that lie where the pool maps them; NULL elsewhere. reserve(),
     * release() and lose() are not called then, and `release_waits` is false. None waits for the device; all but leave() block.
     * The caller holds the mapper's lock. It holds the pool's too in leave(), and in unmap(), release_handles() and free_addresses() when
     * the context has ended; else no lock that an allocation or a free waits for.
     */

    /** Addresses for `bytes`, a multiple of 2 MiB, at a multiple of 2 MiB; nothing lies there yet. -ENOMEM: there
     * are none; the pool asks for less then. */
    int (*reserve_addresses)(struct backend *backend, uint64_t bytes, uint64_t *address);

    /** All of what one reserve_addresses() gave; nothing is mapped there. */
    void (*free_addresses)(struct backend *backend, uint64_t address, uint64_t bytes);

    /** Whether `count` pages can be had, before they are taken one by one: in vain that would leave others without
     * any for a while. -ENOMEM, -EDQUOT: they cannot; 0: they can, or it cannot be said. NULL: nobody else would
     * notice. */
    int (*probe_handles)(struct backend *backend, unsigned count);

    /** Takes `count` pages from the driver, all or none, each as long as `length` of 2 MiB: so it is mapped and unmapped,
     * and so it goes back. -ENOMEM, -EDQUOT: as reserve(). */
    int (*create_handles)(struct backend *backend, unsigned count, unsigned length,
                          uint64_t *pages);

    /** Gives pages back that are mapped nowhere. */
    void (*release_handles)(struct backend *backend, unsigned count, unsigned length,
                            const uint64_t *pages);

    /** Maps `count` pages at consecutive addresses, where nothing is, and makes them accessible as memory of
     * reserve() would be. All or none. A page is mapped at one address besides those that were left. */
    int (*map)(struct backend *backend, uint64_t address, unsigned count, unsigned length,
               const uint64_t *pages);

    /** What lies at `count` consecutive addresses, 2 MiB each, will be mapped elsewhere, and unmapped there later: they are left.
     * `back`: it is not, and stays. Only for the record; does not block. NULL: nobody wants to know. */
    void (*mark_stale)(struct backend *backend, uint64_t address, unsigned count, bool back);

    /** Nothing lies at `count` consecutive addresses any more, where whole pages were. `left`: they were left before. 0; -EBUSY: not
     * now; or the driver's code. */
    int (*unmap)(struct backend *backend, uint64_t address, unsigned count, bool left);

    /** Something is idle from now on: pool_tick() is to be called until it says otherwise. Under the pool's lock; does
     * not block. NULL where no pool decays. */
    void (*watch_idle)(struct backend *backend);

    /** What one reserve() gave has gone with its context: it leaves the books only. */
    void (*forget_reserve)(struct backend *backend, uint64_t bytes);

    /**
     * Records event `slot`: it captures all work submitted to the context so far. Does not block.
     * -EBUSY: not now (a capture is under way, the context ends) or not here (a host callback); -ENOSYS:
     * this driver has no such events; -EIO: it has, and refuses.
     */
    int (*record)(struct backend *backend, unsigned slot);

    /** 0 when all that `slot` captured has finished, -EAGAIN while it has not. Does not block. */
    int (*query)(struct backend *backend, unsigned slot);

    /**
     * Makes all future work of the context wait on the device for `slot`. Does not block.
     * -EBUSY: not now, or not enough here because other contexts can reach the memory: wait
     * instead.
     */
    int (*barrier)(struct backend *backend, unsigned slot);

    /** Waits on the CPU until what `slot` captured has finished. Blocks. */
    int (*wait)(struct backend *backend, unsigned slot);

    /** 0, or the code with which the driver answers calls of this thread at present. Cheap, and called
     * with the context current. */
    int (*health)(struct backend *backend);

    /** Whether the driver answers every later call of the context with that code too. */
    bool (*is_deadly)(int code);

    /** ns of some clock that only goes forward; NULL: the system's. */
    uint64_t (*clock)(struct backend *backend);

    /**
     * The program has been given a large block, or is giving one back; `bytes` are what it asked for. The
     * first is called with no lock held, the second inside the freeing thread's cache: nobody can be given
     * that memory yet. Neither blocks, nor changes anything of the pool's. NULL: nobody wants to know.
     */
    void (*allocated)(struct backend *backend, uint64_t address, uint64_t bytes);
    void (*freed)(struct backend *backend, uint64_t address, uint64_t bytes);

    /** Whether a capture keeps record() from recording, until that is over. NULL: never. */
    bool (*captured)(struct backend *backend);

    /** Waits on the CPU for all work submitted to the context so far; -EBUSY: not now. Blocks. */
    int (*synchronize)(struct backend *backend);

    /**
     * Calls pool_reclaim() for retired blocks, of any pool, that nothing holds back any more: for all of them, or for
     * a few, at the price of a few queries. True if there was one. Waits for nothing; called with no
     * lock held. NULL: nobody retires anything.
     */
    bool (*reclaim_deferred)(struct backend *backend, bool all);

    /**
     * Waits, as pool_finish() does, for the work behind which pools of the device have put up
     * barriers: a stream may have got to the free of a retired block, and not be able to say so
     * before a barrier is passed. Returns whether any block is retired. Blocks; called with no lock
     * held. NULL where settle() is.
     */
    bool (*pass_barriers)(struct backend *backend);
};

struct backend {
    const struct backend_ops *ops;
    /* Bytes. A request that exceeds it is refused without looking any further. Changed by pool_set_capacity(). */
    _Atomic uint64_t capacity;
    atomic_bool has_events; /* false: record() is -ENOSYS, and only synchronize() orders */
    /* Records that were refused, one after the other. Not 0: every free tries, and waits where that is refused too. */
    unsigned refused;
    bool release_waits;
    /* A call that may end the context is under way, or has: nothing is to be asked of it. Changed under the pool's lock. */
    atomic_bool suspended;
};

/** Its clock: ns. */
static inline uint64_t backend_clock(struct backend *backend) {
    struct timespec t;
    if (backend->ops->clock) {
        return backend->ops->clock(backend);
    }
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/** Whether memory comes in pages. */
static inline bool backend_maps(const struct backend *backend) {
    return backend->ops->map != 0;
}

#endif
