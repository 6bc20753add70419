/*
 * Memory that the driver takes for itself: for a context, for code, for kernels' local memory.
 *
 * The default is 0: all memory of a device is the program's. If a test sets a size, the calls that
 * need the memory fail as natively on a full device. The memory is released with its context.
 */
#include "driver.h"

CUresult own_take(struct context *context, size_t bytes) {
    struct device *device = context->device;

    bytes = round_up(bytes, GRANULE);
    if (!device_charge(device, bytes)) {
        pool_trim(device); /* an allocation of the program does the same */
        if (!device_charge(device, bytes))
            return CUDA_ERROR_OUT_OF_MEMORY;
    }
    context->own_bytes += bytes;
    return CUDA_SUCCESS;
}

void own_give(struct context *context, size_t bytes) {
    bytes = round_up(bytes, GRANULE);
    device_discharge(context->device, bytes);
    context->own_bytes -= bytes;
}

CUresult own_take_local(struct context *context) {
    CUresult result = CUDA_SUCCESS;

    if (sim.options.local_bytes && !context->local_taken) {
        result = own_take(context, sim.options.local_bytes);
        context->local_taken = result == CUDA_SUCCESS;
    }
    return result;
}
