/*
 * The driver's entries that hooks of stream-ordered calls use, in their two variants: a NULL stream
 * is the legacy null stream, or the thread's own stream.
 */
#ifndef GPUCACHE_DRIVER_HOOKS_STREAM_ENTRIES_H
#define GPUCACHE_DRIVER_HOOKS_STREAM_ENTRIES_H

#include "driver/table/entries.h"

#include <stdbool.h>

struct stream_entries {
    CUresult (*free)(CUdeviceptr, CUstream);
    CUresult (*record)(CUevent, CUstream);
    CUresult (*capturing)(CUstream, CUstreamCaptureStatus *);
    bool per_thread; /* a NULL stream is the thread's own stream */
};

#define LEGACY_ENTRIES                                                                             \
    ((struct stream_entries){REAL(cuMemFreeAsync), REAL(cuEventRecord), REAL(cuStreamIsCapturing), \
                             false})
#define PTSZ_ENTRIES                                                                               \
    ((struct stream_entries){REAL(cuMemFreeAsync_ptsz), REAL(cuEventRecord_ptsz),                  \
                             REAL(cuStreamIsCapturing_ptsz), true})

#endif
