/*
 * Contexts: each has a pool, which begins with the first allocation and ends with the context.
 *
 *      CUcontext -> struct context -> pool, backend        green contexts stand for their device's
 * primary context
 *
 * A context's handle may come back as that of another context (the primary one always does), so
 * everything remembered by handle is forgotten when the context ends, and a thread's own memory of
 * the last hit is checked against a generation number.
 *
 * What is current on a thread changes only by calls of that thread, and each public entry that can
 * change it makes the thread forget that it knew. The driver also has private entries for libraries
 * of its own (cuGetExportTable), which nobody sees. So a thread goes by what it knows only while
 * there is no other context to change to, nor a view of one. Else it asks the driver.
 */
#ifndef GPUCACHE_DRIVER_CONTEXT_H
#define GPUCACHE_DRIVER_CONTEXT_H

#include "backend/segments.h"
#include "driver/device.h"
#include "driver/entries.h"
#include "process/process.h"

#include <stdatomic.h>
#include <stdbool.h>

struct context {
    CUcontext handle;      /* NULL: a free slot */
    struct device *device; /* NULL until it is asked for memory */
    struct pool *pool;     /* likewise */
    struct segments *backend;
    bool primary;
    CUdevice ordinal;           /* of a primary one */
    CUgreenCtx green;           /* the green context it is a view of, */
    struct context *stands_for; /* whose memory is this one's */
};

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

/** Gives the idle memory of all pools of a device back to the driver. 0, or why some could not be.
 */
int context_release_idle(struct device *device);

/** The code that killed the context of a pool, 0 while it lives or for no pool. */
CUresult context_broken(struct pool *pool);

/** No thread knows any more what is current on it: each asks the driver again. */
void context_doubt(void);

/** In the child of a fork: no pool is found any more. */
void context_forked(void);

/** How many contexts of this process are alive, green ones not counted. */
unsigned context_count(void);

/** The pool of a context, or of the one that it is a view of; NULL: it has none yet. */
struct pool *context_pool_of(CUcontext handle);

/** The pool of a device's primary context; NULL: there is none yet. */
struct pool *context_primary_pool(CUdevice device);

/** Calls `visit` for every context that has a pool, one after another, under the registry's lock.
 */
void context_each(void (*visit)(struct context *context, void *with), void *with);

/** The pool's context's device; the pool must be alive. */
struct device *context_device_of(struct pool *pool);

/** A call has answered with an error: if it is a fault that ended the current context, its pool
 * answers with it from now on. */
void context_fault(CUresult code);

/** Looks at the driver's answer to a call of the program, and returns it. */
static inline CUresult context_notice(CUresult r) {
    if (__builtin_expect(r != CUDA_SUCCESS && r != CUDA_ERROR_NOT_READY, 0) &&
        atomic_load(&process_state) == PROCESS_STARTED) {
        context_fault(r);
    }
    return r;
}

#endif
