/*
 * Contexts: each has a pool, which begins with the first allocation and ends with the context.
 *
 *      CUcontext -> struct context -> pool, backend
 *      green contexts are views: their memory is their device's primary context's
 *
 * Handles come back, that of a primary context always; the number that the driver gives to each life
 * of one does not (cuCtxGetId). So a context is known by both, and whatever the registry remembers of
 * a handle is looked at again when
 *
 *      a call that may end contexts has returned                              lifecycle.c
 *      a thread finds or makes a context of that handle                       context_register
 *      the driver gives out an address that still counts as a pool's          context_address_given
 *
 * The last two can come before the first, in other threads: then they forget what has ended. A call
 * that may end a context is announced, and from then on no event of that context is recorded, asked or
 * waited for by the library, from any thread (struct context_ending).
 *
 * What is current on a thread changes only by calls of that thread, and each public entry that can
 * change it makes the thread forget that it knew. The driver also has private entries for libraries
 * of its own (cuGetExportTable), which nobody sees. So a thread goes by what it knows only while
 * there is no other context to change to, nor a view of one. Else it asks the driver.
 */
#ifndef GPUCACHE_DRIVER_CONTEXT_CONTEXT_H
#define GPUCACHE_DRIVER_CONTEXT_CONTEXT_H

#include "driver/state/device.h"
#include "driver/table/entries.h"

#include <stdatomic.h>
#include <stdbool.h>

struct context {
    CUcontext handle;      /* NULL: a free slot */
    uint64_t life;         /* no other context of the process ever has it */
    unsigned long long id; /* the driver's number of this life; 0: unknown */
    unsigned ending;       /* calls under way that may end it */
    bool primary;          /* or nobody knows; with the device, once it is known: */
    CUdevice ordinal;
    uint64_t reached_by;       /* devices that have peer access to its memory, a bit for each */
    struct pool *pool;         /* NULL until it is asked for memory */
    struct device_pool *entry; /* likewise */
    CUgreenCtx green;          /* the green context it is a view of; else NULL */
    CUcontext behind;          /* of a view: the primary context, whose memory it uses */
    struct context *next;      /* in the registry: stays when the slot is used again */
};

/* Who is told of contexts, under the registry's lock, in the order of their table (listeners.c). Views have
 * no pool, and are told of only where that is asked for. */
struct context_callbacks {
    /* The context may be ending: from now on no call names what belongs to it. Or it lives on, and they may
     * again. None is under way when this returns: they are made under locks that are passed by here. */
    void (*suspended)(const struct context *context, bool suspended);
    void (*ended)(const struct context *context);
    bool of_views;
};

/** Sets the table, when the process starts; it never changes. */
void context_set_callbacks(const struct context_callbacks *listeners, unsigned count);

/* What this thread found last. */
struct context_last {
    uint64_t sure; /* 0, or the generation in which the pool is the current context's for certain */
    struct pool *pool;
    CUcontext handle;    /* whose pool it is */
    uint64_t generation; /* in this generation */
};
extern _Thread_local struct context_last context_last
    __attribute__((tls_model("initial-exec"), visibility("hidden")));

/* Moves whenever a context or view comes or ends, when exit handlers run, and in the child of a
 * fork; never 0. */
extern _Atomic uint64_t context_generation __attribute__((visibility("hidden")));

struct pool *context_find_pool(void);

/** The pool of the current context, made if need be; NULL if the call has to pass through. */
static inline struct pool *context_pool(void) {
    bool sure =
        context_last.sure == atomic_load_explicit(&context_generation, memory_order_acquire);
    return __builtin_expect(sure, 1) ? context_last.pool : context_find_pool();
}

/**
 * The same, if a wait for the whole current context waits for everything that may touch its memory:
 * there is no other context and no green one. Else NULL.
 */
struct pool *context_whole_pool(void);

/** No thread knows any more what is current on it: each asks the driver again. Called after what there
 * is to doubt: a thread that reads the new generation sees that as well. */
void context_invalidate(void);

/** Returns when the work has finished behind which memory was handed out, in all contexts: another one can
 * reach that memory from now on. */
void context_drain_barriers(void);

/** In the child of a fork: no pool is found any more. */
void context_forked(void);

extern _Atomic unsigned context_alive __attribute__((visibility("hidden")));

/** How many contexts of this process are alive, green ones not counted. */
static inline unsigned context_count(void) {
    return atomic_load(&context_alive);
}

/** The calling thread asks the driver what is current before its next allocation. */
static inline void context_unsure(void) {
    context_last.sure = 0;
}

/* How the calling thread came by a context. */
enum context_origin { CONTEXT_CREATED, CONTEXT_RETAINED };

/**
 * The driver has just made or retained `handle`, on `ordinal` if it was retained. Whatever was known
 * of an earlier life of the handle is forgotten. Memory that was handed out behind a barrier may be
 * reached by one more context now: returns when the work before the barrier is over.
 */
void context_register(CUcontext handle, enum context_origin origin, CUdevice ordinal);

/** `handle` is, from now on, a view for a green context of `behind`, the primary context of `device`. */
void context_register_view(CUcontext handle, CUgreenCtx green, CUcontext behind, CUdevice device);

/* What a call may end: one context, by its handle, as the primary one of a device, or as that behind
 * a green one; and that green one's view. */
struct context_ending {
    CUcontext handle;
    CUdevice primary_of; /* -1: none */
    CUgreenCtx green;
    bool for_certain; /* if the driver does not refuse: then it waits for all its work */
    struct context *context, *view; /* what was found, */
    uint64_t life, view_life;       /* and which of its lives */
};

/**
 * Before such a call, and after it. `over`: it is known to have ended the context, or the green one.
 * Between the two the library makes no driver call that names the context's events.
 */
void context_end_begin(struct context_ending *ending);
void context_end_done(struct context_ending *ending, bool over);

/** The program has given the device `by` peer access to the memory of a context, that of its pool included.
 * Else the code with which the driver has refused. */
CUresult context_grant_access(CUcontext handle, CUdevice by);

/** The devices that have been given it, a bit for each. */
uint64_t context_reached_by(CUcontext handle);

/** A copy or fill was refused: the current context's device gets access to the pools' memory on all others. True
 * if it has, by now, and there are any: the call is worth another try, whoever has given it. */
bool context_access_all(void);

/** The driver has given out these addresses: if a pool still counts them as its own, its context has
 * ended, and is forgotten. Without any lock held. */
void context_address_given(CUdeviceptr address, uint64_t bytes);

/** The pool of a context, or of the one that it is a view of; NULL: it has none yet. */
struct pool *context_pool_of(CUcontext handle);

/** The pool of a device's primary context; NULL: there is none yet. */
struct pool *context_primary_pool(CUdevice device);

/** Calls `visit` for every context that has a pool, one after another, under the registry's lock.
 */
void context_each(void (*visit)(struct context *context, void *with), void *with);

#endif
