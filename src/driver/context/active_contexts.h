/*
 * Tracks which contexts are active: those to which the program can submit work.
 *
 * A barrier orders the work of its own context only. Peer access and copies between devices let
 * work of any context reach any memory of the process. A pool therefore uses barriers only while
 * its context is the only active one. An inactive context can submit nothing: it is current on no
 * thread, and the program has no stream of it.
 *
 * No hook sees a thread end, so the last context of a thread stays active. The lock
 * ACTIVE_CONTEXTS protects the state. Invariant: the call that activates a context returns only
 * after the barriers of all pools were drained (context_drain_barriers). The callers are
 * registry.c, context.c, backend/common.c, and the hooks of context, stream and peer entries.
 */
#ifndef GPUCACHE_DRIVER_CONTEXT_ACTIVE_CONTEXTS_H
#define GPUCACHE_DRIVER_CONTEXT_ACTIVE_CONTEXTS_H

#include <cuda.h>

#include <stdbool.h>

struct context;

/*
 * A context is active from when it becomes current on a thread until the thread's next context
 * does. A context stays active permanently
 *
 *      if it has a stream, or may have one whose creation no hook saw
 *      if it has peer access: its kernels may reach memory that is handed out while they run
 *      if it is not a primary context whose retain a hook saw: it may share its device with another
 *      if its handle was an earlier context's, which may still be current on a thread
 *      after ACTIVATIONS_MOST activations: a wait at every switch costs more than barriers save
 */

/** Adds a context, permanently active until active_contexts_may_deactivate(). Counts as an
 * activation. */
void active_contexts_add(CUcontext context);

/** Removes a context that has ended. Its row stays, because the driver may reuse the handle. */
void active_contexts_remove(const struct context *context);

/** Allows a context to become inactive: the hooks saw its creation, so they see every use of it. */
void active_contexts_may_deactivate(CUcontext context);

/*
 * The next four functions return true if the caller must call context_drain_barriers(). The context
 * was then added or activated, and no drain since has finished. The context may reach memory that
 * was handed out behind barriers. If two threads activate one context, both drain. A thread whose
 * context was already active does not drain.
 */

/** Records that `now` is current on the calling thread. NULL changes nothing. */
bool active_contexts_switched(CUcontext now);

/** Makes the current context permanently active: the program creates a stream or gives peer
 * access. */
bool active_contexts_keep_current(void);

/** Makes all contexts permanently active: streams of green contexts may come without a hook. */
bool active_contexts_keep_all(void);

/** Returns whether a context that the program received still needs a drain. */
bool active_contexts_is_due(CUcontext context);

/** Returns the number of activations so far. Call before a drain of all barriers. */
uint64_t active_contexts_activations(void);

/** Records that the barriers were drained for the first `until` activations. Takes no lock. */
void active_contexts_drained(uint64_t until);

/** Returns whether all contexts but this one are inactive. Takes no lock. */
bool active_contexts_is_only(CUcontext context);

#endif
