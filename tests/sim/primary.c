/*
 * A device's primary context.
 *
 * Its handle never changes; between the last release and the next retain it is dead. Retains are
 * counted, green contexts included, so it lives until the last green one is destroyed. A reset ends
 * it despite all references, and does not change the count.
 *
 * These calls exclude each other: a call that finds the context being destroyed waits for the end.
 */
#include "driver.h"

CUresult primary_retain(struct device *device) {
    CUresult result = CUDA_SUCCESS;

    queue_await_end(device->primary);
    if (!device->primary) {
        result = context_create(&device->primary, device, NULL, 3020);
        if (device->primary) {
            device->primary->primary = true;
            device->primary->flags = device->primary_flags;
        }
    } else if (!device->primary->alive) {
        result = context_start(device->primary, device->primary_flags);
    }
    if (result == CUDA_SUCCESS)
        device->primary_refs++;
    return result;
}

CUresult primary_release(struct device *device) {
    queue_await_end(device->primary);
    if (device->primary_refs == 0)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (--device->primary_refs == 0 && device->primary->alive)
        context_destroy(device->primary);
    return CUDA_SUCCESS;
}

static CUresult retain(CUcontext *handle, CUdevice ordinal) {
    struct device *device = device_of(ordinal);

    if (!handle)
        return CUDA_ERROR_INVALID_VALUE;
    if (!device)
        return CUDA_ERROR_INVALID_DEVICE;
    CUresult result = primary_retain(device);
    if (result == CUDA_SUCCESS)
        *handle = (CUcontext)device->primary;
    return result;
}

static CUresult release(CUdevice ordinal) {
    struct device *device = device_of(ordinal);

    return device ? primary_release(device) : CUDA_ERROR_INVALID_DEVICE;
}

static CUresult reset(CUdevice ordinal) {
    struct device *device = device_of(ordinal);

    if (!device)
        return CUDA_ERROR_INVALID_DEVICE;
    queue_await_end(device->primary);
    if (device->primary && device->primary->alive)
        context_destroy(device->primary);
    return CUDA_SUCCESS;
}

static CUresult get_state(CUdevice ordinal, unsigned *flags, int *active) {
    struct device *device = device_of(ordinal);

    if (!device)
        return CUDA_ERROR_INVALID_DEVICE;
    queue_await_end(device->primary);
    if (flags)
        *flags = device->primary_flags;
    if (active)
        *active = device->primary && device->primary->alive;
    return CUDA_SUCCESS;
}

static CUresult set_flags(CUdevice ordinal, unsigned flags) {
    struct device *device = device_of(ordinal);

    if (!device)
        return CUDA_ERROR_INVALID_DEVICE;
    device->primary_flags = flags;
    if (device->primary)
        device->primary->flags = flags;
    return CUDA_SUCCESS;
}

ENTRY(cuDevicePrimaryCtxRetain, (CUcontext * context, CUdevice device), INITIALISED,
      retain(context, device))
ENTRY(cuDevicePrimaryCtxRelease, (CUdevice device), INITIALISED, release(device))
ENTRY(cuDevicePrimaryCtxRelease_v2, (CUdevice device), INITIALISED, release(device))
ENTRY(cuDevicePrimaryCtxReset, (CUdevice device), INITIALISED, reset(device))
ENTRY(cuDevicePrimaryCtxReset_v2, (CUdevice device), INITIALISED, reset(device))
ENTRY(cuDevicePrimaryCtxGetState, (CUdevice device, unsigned *flags, int *active), INITIALISED,
      get_state(device, flags, active))
ENTRY(cuDevicePrimaryCtxSetFlags, (CUdevice device, unsigned flags), INITIALISED,
      set_flags(device, flags))
ENTRY(cuDevicePrimaryCtxSetFlags_v2, (CUdevice device, unsigned flags), INITIALISED,
      set_flags(device, flags))
