/*
 * The exit handler: stops helper threads and fast paths before the driver shuts down, and waits for
 * the work before the program's frees. shutdown.h says why this handler runs before the driver's.
 * From then on, allocations and frees ask the driver first, so they notice when the driver has
 * ended. Takes no lock of its own.
 */
#include "driver/control/exit_handler.h"

#include "driver/context/context.h"
#include "driver/context/decay.h"
#include "driver/control/page_helper.h"
#include "driver/ipc/ipc_server.h"
#include "driver/state/fast_path.h"
#include "driver/state/shutdown.h"

#include <stdlib.h>

static void begin_shutdown(void) {
    atomic_store(&shutdown_begun, true);
    /*
     * A thread that knows its current context does not ask the driver. Without this call, its
     * allocations would succeed after the driver has ended.
     */
    context_invalidate();
    fast_path_block();
    decay_last_wait();
    ipc_server_finish();
    decay_stop();
    page_helper_stop();
}

void exit_handler_start(void) {
    atexit(begin_shutdown); /* if this fails, frees do not notice the end of the driver */
}
