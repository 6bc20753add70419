/*
 * Captures: while a stream is being captured, nothing may be recorded, ordered or waited for (it
 * would destroy the capture), and a call the driver would refuse has to be refused.
 */
#ifndef GPUCACHE_DRIVER_STATE_CAPTURE_H
#define GPUCACHE_DRIVER_STATE_CAPTURE_H

#include "driver/table/entries.h"

#include <stdatomic.h>
#include <stdbool.h>

extern _Atomic unsigned capture_active; /* captures under way in this process */

/* Not 0 while the short way through an allocation or free will not do: a capture, exit handlers, a
 * fork; and where call stacks are remembered. */
extern _Atomic int capture_unusual __attribute__((visibility("hidden")));

static inline bool capture_is_unusual(void) {
    return __builtin_expect(atomic_load_explicit(&capture_unusual, memory_order_relaxed) > 0, 0);
}

/** Around a wait for a whole context, which no capture may begin in. False: one is under way. */
bool capture_hold_off(void);
void capture_let_go(void);

/** Waits, by yielding the CPU, until nobody is between the two. A capture is announced already. */
void capture_wait_for_holders(void);

/** In the child of a fork. */
void capture_forked(void);

#define CAPTURE_MODE_AS_IT_WAS ((CUstreamCaptureMode)-1) /* the driver has not changed it */

/** Our own calls: allowed in every capture. Always in pairs. */
static inline CUstreamCaptureMode capture_relax(void) {
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    CUresult r = REAL(cuThreadExchangeStreamCaptureMode)(&mode);
    return r == CUDA_SUCCESS ? mode : CAPTURE_MODE_AS_IT_WAS;
}

/* Once more where that is refused: the program's thread would stay in a mode that it has not asked for. */
static inline void capture_restore(CUstreamCaptureMode mode) {
    for (int i = 0; i < 2 && mode != CAPTURE_MODE_AS_IT_WAS; i++) {
        CUstreamCaptureMode before = mode;
        if (REAL(cuThreadExchangeStreamCaptureMode)(&before) == CUDA_SUCCESS) {
            return;
        }
    }
}

#endif
