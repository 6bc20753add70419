/* The exit handler: what stops before the driver shuts itself down. shutdown.h says why it runs first. */
#include "driver/control/exit_handler.h"

#include "driver/context/context.h"
#include "driver/context/decay.h"
#include "driver/control/page_helper.h"
#include "driver/ipc/ipc_server.h"
#include "driver/state/capture.h"
#include "driver/state/shutdown.h"

#include <stdlib.h>

static void begin(void) {
    atomic_store(&shutdown_begun, true);
    context_invalidate(); /* an allocation that does not ask what is current would outlive the driver */
    atomic_fetch_add(&capture_unusual, 1);
    ipc_server_finish();
    decay_stop();
    page_helper_stop();
}

void exit_handler_start(void) {
    atexit(begin); /* if it cannot be registered, frees answer as before */
}
