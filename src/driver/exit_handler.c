/* The exit handler: what stops before the driver shuts itself down. shutdown.h says why it runs first. */
#include "driver/exit_handler.h"

#include "driver/capture.h"
#include "driver/context.h"
#include "driver/decay.h"
#include "driver/ipc_server.h"
#include "driver/page_helper.h"
#include "driver/shutdown.h"

#include <stdlib.h>

static void begin(void) {
    atomic_store(&shutdown_begun, true);
    context_doubt(); /* an allocation that does not ask what is current would outlive the driver */
    atomic_fetch_add(&capture_unusual, 1);
    ipc_server_finish();
    decay_stop();
    page_helper_stop();
}

void exit_handler_start(void) {
    atexit(begin); /* if it cannot be registered, frees answer as before */
}
