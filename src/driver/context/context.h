/*
 * Finds the pool of the current context. Registers contexts, and removes those that have ended.
 *
 *      CUcontext -> struct context -> pool, backend
 *
 * A context gets its pool with the first call of context_pool() there, and keeps it until it ends.
 * A green context has no pool: its handle is a view, and its memory is that of its device's primary
 * context.
 *
 * The registry's lock (registry.h) protects each struct context. No call that ends a context runs
 * under the lock. Invariant: between context_end_begin() and context_end_done() the library begins
 * no driver call that names an event of that context. Exception: a deferred free, whose program
 * uses the context and so keeps it alive (reuse/deferred.c). Hooks, backend/, control/, ipc/,
 * limit/, reuse/ and this folder call this file.
 */
#ifndef GPUCACHE_DRIVER_CONTEXT_CONTEXT_H
#define GPUCACHE_DRIVER_CONTEXT_CONTEXT_H

#include "base/likely.h"
#include "driver/state/device.h"
#include "driver/table/entries.h"

#include <stdatomic.h>
#include <stdbool.h>

/*
 * A context or a view in the registry.
 *
 * The driver reuses handles; the primary context of a device always has the same handle. The driver
 * never reuses an identifier of cuCtxGetId. Handle and identifier together therefore name a
 * context. These functions run in any order and in different threads:
 *
 *      context_end_done         after a call that may have ended a context (hooks/contexts.c)
 *      context_register         after a call that made or retained a context of the same handle
 *      context_find_pool        when a context of the same handle is current
 *      context_address_given    when the driver returns an address that still counts as a pool's
 *
 * Each function removes a context that has ended. It asks the driver for the identifier, unless the
 * call itself proves the end.
 */
struct context {
    CUcontext handle;          /* NULL: a free slot */
    uint64_t serial;           /* serial number; no other context of the process ever has it */
    unsigned long long id;     /* from cuCtxGetId; 0: unknown */
    unsigned ending;           /* calls that may end it by handle; a view: by its green context */
    bool primary;              /* a primary context, or one whose kind is unknown */
    CUdevice ordinal;          /* its device; -1: unknown */
    uint64_t peer_devices;     /* devices that were ever to get access to its memory, as bits */
    struct pool *pool;         /* NULL before the first context_pool() */
    struct device_pool *entry; /* the pool's entry in the list of its device; NULL like `pool` */
    CUgreenCtx green;          /* of a view: its green context; NULL: not a view */
    CUcontext behind;          /* of a view: the primary context whose memory it uses */
    struct context *next;      /* in the registry; keeps its value when the slot is used again */
};

/* The functions of one module that the registry calls, under its lock, in the order of the table
 * (control/context_callbacks.c). */
struct context_callbacks {
    /* Stops (true) or allows again (false) driver calls that name an object of the context, because
     * the context may be ending. The function acquires the locks under which such calls are made.
     * Afterwards only a call that is made without a lock, as a wait is, may be in progress. */
    void (*suspended)(const struct context *context, bool suspended);
    /* Drops what the module keeps for a context or view that has ended. Makes no driver call that
     * names an object of the context. */
    void (*ended)(const struct context *context);
    bool of_views; /* the registry calls them for views too, which have no pool */
};

/** Sets the table of callbacks, once, when the process starts. registry.c calls them. */
void context_set_callbacks(const struct context_callbacks *table, unsigned count);

/*
 * The pool that the calling thread found last.
 *
 * Only the thread's own calls change its current context. The hook of each public entry that can
 * change it clears `sure`. No hook sees the private entries for NVIDIA's libraries
 * (cuGetExportTable). A thread therefore skips the question to the driver only while the process
 * has no second context and no view.
 */
struct context_last {
    uint64_t sure; /* context_changes while `pool` is used without asking the driver; 0: none */
    struct pool *pool;
    CUcontext handle; /* the context whose pool it is */
    uint64_t changes; /* context_changes when the pool was found */
};
extern _Thread_local struct context_last context_last
    __attribute__((tls_model("initial-exec"), visibility("hidden")));

/* Counter of changes of the set of contexts and views (registry.c). Exit handlers and the child of
 * a fork raise it too. Never 0. */
extern _Atomic uint64_t context_changes __attribute__((visibility("hidden")));

/** Serves the slow path of context_pool(): asks the driver which context is current. May acquire
 * the registry's lock. If the context is new or was inactive, waits for the work before the
 * barriers of the other pools: the context may reach memory that was handed out behind them. */
struct pool *context_find_pool(void);

/** Returns the pool of the current context, and creates it if there is none. NULL: the call must go
 * to the driver. May acquire the registry's lock and wait, as context_find_pool(). */
static inline struct pool *context_pool(void) {
    bool sure = context_last.sure == atomic_load_explicit(&context_changes, memory_order_acquire);
    return likely(sure) ? context_last.pool : context_find_pool();
}

/**
 * Returns context_pool() if the registry has no other context and no view, else NULL. If it
 * returns a pool, a wait for the current context covers all work that may use the pool's memory.
 */
struct pool *context_whole_pool(void);

/** Makes each thread ask the driver again which context is current. Call after the change that is
 * the reason: a thread that reads the new number must see the change too. */
void context_invalidate(void);

/**
 * Waits until the work before the barriers of all pools has finished. Does nothing while the
 * process has one context, with or without views. Call with no lock held, after one more context
 * can reach memory that was handed out behind these barriers.
 */
void context_drain_barriers(void);

/* Number of registered contexts, without views; plus 2 once a context has no slot (registry.c). */
extern _Atomic unsigned context_alive __attribute__((visibility("hidden")));

static inline unsigned context_count(void) {
    return atomic_load(&context_alive);
}

/** Makes the calling thread ask the driver which context is current before its next allocation. */
static inline void context_unsure(void) {
    context_last.sure = 0;
}

/* The kind of call with which the program got a context. */
enum context_origin { CONTEXT_CREATED, CONTEXT_RETAINED };

/**
 * Records that the driver has just created `handle`, or retained it on the device `ordinal`.
 * Removes an ended context of the same handle. The new context may reach memory that was handed out
 * behind barriers: drains the barriers if needed. Call with no lock held.
 */
void context_register(CUcontext handle, enum context_origin origin, CUdevice ordinal);

/** Records that `handle` is the view of a green context of `behind`, the primary context of
 * `device`. Changes nothing for a view that is registered. May wait as context_register(). */
void context_register_view(CUcontext handle, CUgreenCtx green, CUcontext behind, CUdevice device);

/*
 * A call that may end a context. The caller names the context in one of three ways: by its handle,
 * as the primary context of a device, or by a green context of it. The green context may end too.
 */
struct context_ending {
    CUcontext handle;    /* NULL: none */
    CUdevice primary_of; /* device; -1: none, or with `green` an unknown one */
    CUgreenCtx green;    /* NULL: none */
    bool for_certain; /* the call ends the context unless the driver refuses, and waits for work */
    struct context *context, *view; /* set by context_end_begin(); NULL: not in the registry */
    uint64_t serial, view_serial;   /* serial numbers of both: a slot may be reused */
};

/**
 * Announces a call that may end a context. Until context_end_done() the library begins no driver
 * call, from any thread, that names an event of the context. With `for_certain`, waits until no
 * thread waits for an event of the context's pool. Otherwise such a wait may go on: a release that
 * is not the last one must not wait for work. That is safe: the waiting thread allocates in the
 * context or frees a block of it, and its program must hold a reference for that time. Acquires the
 * registry's lock, and waits without it.
 */
void context_end_begin(struct context_ending *ending);

/** Records that the announced call has returned. `over`: the call certainly ended the context, or
 * the green context if `green` is set. For a primary context with an identifier the driver's answer
 * decides, not `over`. Removes all contexts that have ended, except those that another call may be
 * ending. Acquires the registry's lock. May release it to wait some 10 ms for another call. */
void context_end_done(struct context_ending *ending, bool over);

/** Gives the device `by` access to all memory of the context's pool, after the program gave it peer
 * access to the context. Returns 0, or the driver's code if it refuses. Call with no lock held. */
CUresult context_grant_access(CUcontext handle, CUdevice by);

/** Returns the primary context behind a view, and any other context itself. Makes no driver call.
 * Acquires the registry's lock if there are views. */
CUcontext context_resolved(CUcontext handle);

/** Returns the context that owns memory which is allocated now: context_resolved() of the current
 * one. NULL: no context is current. */
CUcontext context_current_resolved(void);

/** Returns `peer_devices` of a context: also devices whose access was refused or has ended. */
uint64_t context_peer_devices(CUcontext handle);

/** Gives the current context's device access to the memory of all pools of other devices, after the
 * driver refused a copy or fill. Returns whether any such pool now gives access: the caller then
 * repeats the call. Call with no lock held. */
bool context_access_all(void);

/** Removes contexts that have ended, after the driver handed out `bytes` at `address`. A pool that
 * still has this range belongs to such a context. Call with no lock held. */
void context_address_given(CUdeviceptr address, uint64_t bytes);

/** Returns the pool of a context, or of a view's primary context. NULL: there is no pool. */
struct pool *context_pool_of(CUcontext handle);

/** Returns the pool of a device's primary context. NULL: there is no pool. */
struct pool *context_primary_pool(CUdevice device);

/** Calls `function` for each context that has a pool, under the registry's lock. */
void context_each(void (*function)(struct context *context, void *with), void *with);

#endif
