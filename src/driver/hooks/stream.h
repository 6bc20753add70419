/* The number of the program's streams. */
#ifndef GPUCACHE_DRIVER_HOOKS_STREAM_H
#define GPUCACHE_DRIVER_HOOKS_STREAM_H

struct context;

/** Forgets the streams of an ended context, if no other context is left. Called with the registry's
 * lock. */
void stream_forget(const struct context *context);

#endif
