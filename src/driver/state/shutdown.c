#include "driver/state/shutdown.h"

#include "driver/table/entries.h"

atomic_bool shutdown_begun;

bool shutdown_ask(void) {
    CUdevice device;
    return REAL(cuCtxGetDevice)(&device) == CUDA_ERROR_DEINITIALIZED;
}
