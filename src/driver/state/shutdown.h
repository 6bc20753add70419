/*
 * Tells whether the driver has shut itself down.
 *
 * The driver shuts down in an exit handler. Every driver call then returns
 * CUDA_ERROR_DEINITIALIZED, and so must a free that the pool serves without a driver call.
 *
 * Exit handlers run in the reverse order of their registration. cuInit registers the driver's
 * handler. The library starts, and registers its handler, after cuInit; only gpucache_mark() and
 * gpucache_write_report() can start it earlier. The library's handler thus runs first and cannot
 * see the driver's end. It sets `shutdown_begun`, and frees ask the driver from then on. It also
 * raises fast_path_blocks, so the fast path of a free needs no further test. The flag is atomic; no
 * lock protects it. control/exit_handler.c sets it.
 */
#ifndef GPUCACHE_DRIVER_STATE_SHUTDOWN_H
#define GPUCACHE_DRIVER_STATE_SHUTDOWN_H

#include "base/likely.h"

#include <stdatomic.h>
#include <stdbool.h>

extern atomic_bool shutdown_begun; /* exit handlers are running */

/** Asks the driver whether it has shut down. For shutdown_over() only. */
bool shutdown_ask(void);

/** Returns whether the driver has shut down. Asks the driver only while exit handlers run. */
static inline bool shutdown_over(void) {
    return unlikely(atomic_load_explicit(&shutdown_begun, memory_order_relaxed)) && shutdown_ask();
}

#endif
