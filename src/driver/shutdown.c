#include "driver/shutdown.h"

#include "driver/capture.h"
#include "driver/context.h"
#include "driver/decay.h"
#include "driver/entries.h"
#include "driver/ipc_server.h"
#include "driver/page_helper.h"

#include <stdlib.h>

atomic_bool shutdown_begun;

static void begin(void) {
    atomic_store(&shutdown_begun, true);
    context_doubt(); /* an allocation that does not ask what is current would outlive the driver */
    atomic_fetch_add(&capture_unusual, 1);
    ipc_server_finish();
    decay_stop();
    page_helper_stop();
}

void shutdown_watch(void) {
    atexit(begin); /* if it cannot be registered, frees answer as before */
}

bool shutdown_ask(void) {
    CUdevice device;
    return REAL(cuCtxGetDevice)(&device) == CUDA_ERROR_DEINITIALIZED;
}
