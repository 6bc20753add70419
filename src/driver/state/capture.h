/*
 * Counts the stream captures of the process, and keeps waits for a whole context apart from them.
 *
 * While a stream is being captured, the library must not record a context event, add a barrier or
 * synchronise a context: each would invalidate the capture. A wait is still possible by a free of
 * the driver (limit/wait_by_free.h). The library must also refuse the calls that the driver would
 * refuse.
 * Invariant: no capture begins while a thread is between capture_hold_off() and capture_let_go().
 * The counters are atomic; no lock protects them. hooks/captures.c counts captures. Backends,
 * hooks, limit/, reuse/ and control/ read the count.
 */
#ifndef GPUCACHE_DRIVER_STATE_CAPTURE_H
#define GPUCACHE_DRIVER_STATE_CAPTURE_H

#include "driver/table/entries.h"

#include <stdatomic.h>
#include <stdbool.h>

extern _Atomic unsigned capture_active; /* captures in progress in this process */

/** Announces a wait for a whole context: no capture begins until capture_let_go(). Returns false,
 * and announces nothing, if a capture is in progress. */
bool capture_hold_off(void);

/** Ends the wait that capture_hold_off() announced. */
void capture_let_go(void);

/** Yields the CPU until no announced wait is in progress. The caller has already raised
 * `capture_active`, so capture_hold_off() announces no new wait. */
void capture_wait_for_holders(void);

#define CAPTURE_MODE_AS_IT_WAS ((CUstreamCaptureMode)-1) /* the driver refused to change it */

/** Sets the thread's capture mode so that the library's driver calls are allowed during a capture.
 * Returns the mode for capture_restore(), which must follow. */
static inline CUstreamCaptureMode capture_relax(void) {
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    CUresult r = REAL(cuThreadExchangeStreamCaptureMode)(&mode);
    return r == CUDA_SUCCESS ? mode : CAPTURE_MODE_AS_IT_WAS;
}

/** Sets the thread's capture mode back to `mode`. Repeats a refused call once: otherwise the
 * program's thread would keep the library's mode. */
static inline void capture_restore(CUstreamCaptureMode mode) {
    for (int i = 0; i < 2 && mode != CAPTURE_MODE_AS_IT_WAS; i++) {
        CUstreamCaptureMode before = mode;
        if (REAL(cuThreadExchangeStreamCaptureMode)(&before) == CUDA_SUCCESS)
            return;
    }
}

#endif
