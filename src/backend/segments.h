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
    CUevent probe; /* never recorded: asked to learn what the driver thinks of a call during a
                      capture */
};

/** Sets up for the current context, whose handle is `context`. 0, or the driver's code. */
int segments_start(struct segments *segments, CUcontext context, struct device *device);

#endif
