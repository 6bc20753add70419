/*
 * The driver's end.
 *
 * The driver shuts itself down in an exit handler; from then on every call of it answers
 * CUDA_ERROR_DEINITIALIZED. A free that the pool answers does not ask the driver, so it has to be
 * told. Exit handlers run in the reverse order of their registration, and ours is registered by the
 * first call that starts this library, which comes after the driver's own in cuInit. So ours runs
 * first, and no handler can tell when the driver has ended; but ours can say that from now on it is
 * worth asking. Until then the short way through a free has nothing to test that it does not test
 * anyway (capture_unusual).
 */
#ifndef GPUCACHE_DRIVER_STATE_SHUTDOWN_H
#define GPUCACHE_DRIVER_STATE_SHUTDOWN_H

#include <stdatomic.h>
#include <stdbool.h>

extern atomic_bool shutdown_begun; /* exit handlers are running */

/** Whether the driver has ended. Only asked once exit handlers run. */
bool shutdown_ask(void);

static inline bool shutdown_over(void) {
    return __builtin_expect(atomic_load_explicit(&shutdown_begun, memory_order_relaxed), 0) &&
           shutdown_ask();
}

#endif
