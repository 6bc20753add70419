/*
 * The slots of all contexts and views of the process, and what the driver says about them.
 *
 *      registry_first() -> struct context -> next -> ...      the oldest first
 *
 * A slot is never unmapped: its address means the same context as long as `life` is the same. The
 * lock of rank REGISTRY protects all slots. Callers of these functions hold it. Invariant:
 * context_alive counts the slots in use that are no views. Only context.c calls this file.
 */
#ifndef GPUCACHE_DRIVER_CONTEXT_REGISTRY_H
#define GPUCACHE_DRIVER_CONTEXT_REGISTRY_H

#include "driver/context/context.h"
#include "process/lock.h"

#include <stdatomic.h>
#include <stdbool.h>

extern struct lock registry_lock;
extern _Atomic unsigned registry_views; /* views of green contexts; read without the lock */

/** Returns the oldest slot, in use or not. NULL: there is none. */
struct context *registry_first(void);

/** Returns the context or view of a handle. NULL: the registry has none. */
struct context *registry_find(CUcontext handle);

/** Enters a context or view. Returns NULL without host memory. */
struct context *registry_enter(struct context fresh);

/**
 * Returns the context or view of a handle, and enters a context that is new. Replaces one that has
 * ended. NULL: the driver has no such context, or there is no host memory. A context whose creation
 * no hook saw may be a primary one, so it counts as primary. Sets *is_new for a new context, whose
 * device the caller sets.
 */
struct context *registry_find_or_enter(CUcontext handle, bool *is_new);

/** Returns whether the driver says that the context has ended. */
bool registry_has_ended(const struct context *context);

/** Calls the `ended` callbacks for a context that has ended and for its views, and frees their
 * slots. */
void registry_remove(struct context *context);

/**
 * Removes all contexts that have ended, also those whose end no hook saw. Skips a context that
 * another thread's call may be ending: the driver would block the question until that call returns.
 */
void registry_remove_ended(void);

/** Adds `change` to the calls that may end a context. Suspends or resumes it and its views. */
void registry_count_ending(struct context *context, int change);

#endif
