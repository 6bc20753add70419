/*
 * The segments backend: memory from cuMemAlloc, one call per segment, and order from context
 * events.
 *
 * Works on every driver; a segment is the driver's own allocation, so legacy IPC handles, pointer
 * attributes and tools see ordinary memory. Every call of ours runs in relaxed capture mode, so
 * that it cannot end a capture of the program.
 */
#ifndef GPUCACHE_BACKEND_SEGMENTS_H
#define GPUCACHE_BACKEND_SEGMENTS_H

#include "pool/backend.h"

#include <cuda.h>

struct device;

struct segments {
    struct backend backend; /* first: the pool's view */
    CUcontext context;
    struct device *device;
    CUevent events[BACKEND_SLOTS];
    CUevent probe;    /* never recorded: asked to learn what the driver thinks of a call during a
                      capture */
    CUstream returns; /* in whose order segments are freed; NULL until one is */
    _Atomic uint64_t returning; /* bytes freed there that the driver may not have yet */
};

/** Sets up for the current context, whose handle is `context`. 0, or the driver's code: then nothing
 * of the driver's is left behind. Under the pool's lock, if there is one. */
int segments_start(struct segments *segments, CUcontext context, struct device *device);

/** The context lives, but gets no pool: what was made for it goes. */
void segments_stop(struct segments *segments);

/** The context has ended, and what was made for it with it. Under the pool's lock. */
void segments_end(struct segments *segments);

#endif
