/*
 * Keeps two flags: the program has recorded a context event (cuCtxRecordEvent), or made a context
 * wait for an event (cuCtxWaitEvent). Tells them to each pool that starts later; hooks/waits.c
 * tells the pool of the context. From then on, queries of allocations in a pool record no event.
 * Waits before out of memory, before memory goes back, and at the end of the process still record
 * one (pool_application_syncs()).
 *
 * Two atomic flags replace a lock; they are never cleared. Invariant: before the driver gets such a
 * call, the pool of the context has been told. A later pool is told when it starts. The hooks of
 * waits (hooks/waits.c) and device_pool.c call this file.
 */
#ifndef GPUCACHE_DRIVER_CONTEXT_APPLICATION_EVENTS_H
#define GPUCACHE_DRIVER_CONTEXT_APPLICATION_EVENTS_H

#include <stdbool.h>

struct pool;

/**
 * Records that the program is about to record a context event (`records`), or to make a context
 * wait for one. Call it before the look-up of the context's pool. A pool that starts at the same
 * time then learns of the event here or in application_events_tell(). Takes no lock.
 */
void application_events_note(bool records);

/** Tells a new pool which of the two calls the program has made so far, in any context. Acquires
 * the pool's lock. */
void application_events_tell(struct pool *pool);

#endif
