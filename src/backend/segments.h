/*
 * The segments backend: memory from cuMemAlloc, one call per segment.
 *
 * Works on every driver; a segment is the driver's own allocation, so legacy IPC handles, pointer
 * attributes and tools see ordinary memory.
 */
#ifndef GPUCACHE_BACKEND_SEGMENTS_H
#define GPUCACHE_BACKEND_SEGMENTS_H

#include "backend/device_backend.h"

struct segments {
    struct device_backend common; /* first */
    CUstream returns;             /* in whose order segments are freed; NULL until one is */
};

/** As device_backend_start(). */
int segments_start(struct segments *segments, CUcontext context, struct device *device);

#endif
