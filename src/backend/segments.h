/*
 * The segments backend: one cuMemAlloc for each segment. It works with every driver. A
 * segment is an allocation of the driver, so legacy IPC handles, pointer attributes, registration
 * for RDMA and tools see ordinary memory.
 */
#ifndef GPUCACHE_BACKEND_SEGMENTS_H
#define GPUCACHE_BACKEND_SEGMENTS_H

#include "backend/common.h"
#include "driver/context/device_pool.h"

struct segments_backend {
    struct device_backend common; /* first */
    CUstream free_stream; /* stream that segments are freed in; NULL before the first free */
};

extern const struct backend_kind segments_kind;

#endif
