/*
 * Keeps a slot for each context and view that the library has seen, until it notices the end. Asks
 * the driver which have ended.
 *
 *      registry_first() -> struct context -> next -> ...      slots in the order of their making
 *
 * A new context gets the first free slot, so the order says nothing about the age of contexts. A
 * slot is never unmapped. It means the same context as long as `serial` is the same. The lock of
 * rank REGISTRY protects all slots. Callers of these functions hold it. Invariant: context_alive
 * counts the slots in use that are no views (count_unknown() adds 2). Only context.c calls these
 * functions, and fault.c one of them.
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

/** Enters a context or view. Returns NULL without host memory: no pool then uses a barrier any more
 * (count_unknown() in registry.c). */
struct context *registry_enter(struct context fresh);

/**
 * Returns the context or view of a handle. Enters a new context, and replaces one that has ended.
 * NULL: the driver has no such context, or there is no host memory. Sets *is_new for a new context,
 * whose device the caller must set, and otherwise leaves it. A new context counts as primary,
 * because it may be primary and no hook saw its creation. Returns a registered view without asking
 * the driver.
 */
struct context *registry_find_or_enter(CUcontext handle, bool *is_new);

/** Returns whether the driver says that the context has ended. */
bool registry_has_ended(const struct context *context);

/** Removes a context that has ended, after its views; or one view. Calls the `ended` callbacks (for
 * a view only those with `of_views`), and frees the slots. */
void registry_remove(struct context *context);

/**
 * Removes all contexts that have ended, also those whose end no hook saw. Skips a context that
 * another thread's call may be ending: the thread removes it when that call has returned.
 */
void registry_remove_ended(void);

/**
 * Returns whether a call in progress may end the context. Of a view, counts only calls that destroy
 * its green context. False for a primary context of unknown device, which has no pool.
 */
bool registry_may_end(const struct context *context);

/** Adds `change` to the number of calls in progress that end a context by its handle. Suspends or
 * resumes the context and its views. Removes the context if it has ended. */
void registry_count_ending(struct context *context, int change);

/**
 * Adds `change` to the number of calls in progress that may end the primary context of `device`; of
 * every device if `device` is -1. Suspends or resumes the registered primary contexts of the
 * device. Removes those that have ended, unless another such call is in progress. Does not suspend
 * a context that is entered during the call. The registry counts such a call by device and not by
 * context: it ends the context that is the primary one when the driver performs the call. Another
 * thread may have retained that context after context_end_begin(), because the earlier one had
 * ended.
 */
void registry_count_primary_ending(CUdevice device, int change);

#endif
