/*
 * Keeps a slot for each context and view of the process, and asks the driver which have ended.
 *
 *      registry_first() -> struct context -> next -> ...      slots in the order of their making
 *
 * The order says nothing about the age of contexts. A slot is never unmapped, but reused: it means
 * the same context as long as `serial` is the same. The lock of rank REGISTRY protects all slots.
 * Callers of these functions hold it. Invariant: context_alive counts the slots in use that are no
 * views (count_unknown() adds 2). Only context.c calls these functions, and fault.c one of them.
 */
#ifndef GPUCACHE_DRIVER_CONTEXT_REGISTRY_H
#define GPUCACHE_DRIVER_CONTEXT_REGISTRY_H

#include "base/lock.h"
#include "driver/context/context.h"

#include <stdatomic.h>
#include <stdbool.h>

extern struct lock registry_lock;
extern _Atomic unsigned registry_views; /* views of green contexts; read without the lock */

/** Returns the first slot, in use or not. NULL: there is none. */
struct context *registry_first(void);

/** Returns the context or view of a handle. NULL: the registry has none. */
struct context *registry_find(CUcontext handle);

/** Enters a context or view. Returns NULL without host memory. */
struct context *registry_enter(struct context fresh);

/**
 * Returns the context or view of a handle. Enters a new context, and replaces one that has ended.
 * NULL: the driver has no such context, or there is no host memory. Sets *is_new for a new context,
 * whose device the caller must set. A new context counts as primary, because it may be primary and
 * no hook saw its creation.
 */
struct context *registry_find_or_enter(CUcontext handle, bool *is_new);

/** Returns whether the driver says that the context has ended. */
bool registry_has_ended(const struct context *context);

/** Calls the `ended` callbacks for a context that has ended and for its views, and frees their
 * slots. */
void registry_remove(struct context *context);

/**
 * Removes all contexts that have ended, also those whose end no hook saw. Skips a context that
 * another thread's call may be ending: the thread removes it when that call has returned.
 */
void registry_remove_ended(void);

/** Returns whether a call in progress may end the context. */
bool registry_may_end(const struct context *context);

/** Adds `change` to the number of calls in progress that end a context by its handle. Suspends or
 * resumes the context and its views. Removes the context if it has ended. */
void registry_count_ending(struct context *context, int change);

/**
 * Adds `change` to the number of calls in progress that may end the primary context of `device`, or
 * of any device if `device` is -1. Suspends or resumes all contexts that may be this one, and
 * removes those that have ended, except if another such call is still in progress. The
 * registry counts such a call by device and not by context: it ends the context that is the primary
 * one when the driver performs the call. Another thread may have retained that context after
 * context_end_begin(), because the earlier one had ended.
 */
void registry_count_primary_ending(CUdevice device, int change);

#endif
