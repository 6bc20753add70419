/*
 * Which contexts can submit work.
 *
 * A barrier orders the work of its own context, and is enough as long as no other one's work can reach
 * the memory that it hands out. Peer access and copies between devices let work of any context reach any
 * memory of the process. But a context to which nothing can be submitted reaches nothing new: it is
 * current on no thread, and the program has no stream of it. It sleeps. So barriers are possible in a
 * context while all others sleep, and when one wakes up, the work in front of all barriers is waited for
 * before the call that woke it returns (context_drain_barriers).
 *
 * A context is awake while it is current on a thread, until that thread has another one; and for good
 *
 *      if it has a stream, or may have one that nobody saw
 *      if it has peer access: its kernels may reach what is handed out while they run
 *      if it is not a primary context that was seen to be retained: it may share its device with another
 *      if its handle was another one's before, which may still be current somewhere
 *      if it has woken up WAKES_MOST times: to wait at every switch costs more than it saves
 */
#ifndef GPUCACHE_DRIVER_CONTEXT_ACTIVE_CONTEXTS_H
#define GPUCACHE_DRIVER_CONTEXT_ACTIVE_CONTEXTS_H

#include <cuda.h>

#include <stdbool.h>

struct context;

/* A context has come, and counts as awake for good; or has ended. */
void active_contexts_add(CUcontext context);
void active_contexts_remove(const struct context *context);

/** It was seen to come, so all that is done with it is seen: it may sleep. */
void active_contexts_seen(CUcontext context);

/*
 * The rest answers true if a context that has come or woken up may reach what was handed out behind barriers:
 * then context_drain_barriers() is to be called. Of two threads that wake a context up both wait; one that goes on
 * with a context which has been awake does not.
 */

/** What is current on this thread, which may have changed. */
bool active_contexts_switched(CUcontext now);

/** The program has made a stream in the current context, or has given it peer access. */
bool active_contexts_stay(void);

/** Streams may come in ways that are not seen (green contexts): no context sleeps any more. */
bool active_contexts_all_stay(void);

/** A context that the program has been given. */
bool active_contexts_is_due(CUcontext context);

/** How many have come and woken up so far; for those the work in front of all barriers has finished. */
uint64_t active_contexts_activations(void);
void active_contexts_drained(uint64_t until);

/** Whether all contexts but this one sleep. */
bool active_contexts_is_only(CUcontext context);

#endif
