/*
 * Events that the program itself records in whole contexts, or makes whole contexts wait for. A pool
 * then records no event of its own outside a free (pool_application_syncs()).
 */
#ifndef GPUCACHE_DRIVER_CONTEXT_APPLICATION_EVENTS_H
#define GPUCACHE_DRIVER_CONTEXT_APPLICATION_EVENTS_H

#include <stdbool.h>

struct pool;

/**
 * Notes that the program is about to record a context event (`records`) or to make a context wait for
 * one. Called before the context's pool is looked up: a pool that begins meanwhile is told by one side
 * or the other.
 */
void application_events_note(bool records);

/** Tells a new pool what was noted so far, in any context: its context may be one of them. */
void application_events_tell(struct pool *pool);

#endif
