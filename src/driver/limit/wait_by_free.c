#include "driver/limit/wait_by_free.h"

#include "driver/context/current.h"
#include "driver/state/capture.h"
#include "driver/state/device.h"
#include "driver/table/entries.h"
#include "heap/page.h"

/*
 * Allocates one byte of device memory and frees it. Returns the driver's code, or
 * CUDA_ERROR_OUT_OF_MEMORY if the limit refuses.
 */
static CUresult take_and_free(struct device *device) {
    CUdeviceptr unused;
    if (!device || !device_charge_once(device, PAGE_BYTES))
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult taken = REAL(cuMemAlloc_v2)(&unused, 1);
    CUresult r = taken == CUDA_SUCCESS ? REAL(cuMemFree_v2)(unused) : taken;
    /* If the free failed, the memory is still allocated and stays charged. */
    if (r == CUDA_SUCCESS || taken != CUDA_SUCCESS)
        device_uncharge(device, PAGE_BYTES);
    return r;
}

static CUresult take_and_free_pinned(void) {
    void *unused;
    CUresult r = REAL(cuMemAllocHost_v2)(&unused, 1);
    return r == CUDA_SUCCESS ? REAL(cuMemFreeHost)(unused) : r;
}

CUresult wait_by_free(CUcontext context) {
    CUstreamCaptureMode mode = capture_relax();
    CUresult r = current_push(context);
    if (r == CUDA_SUCCESS) {
        r = take_and_free(device_current());
        r = r == CUDA_ERROR_OUT_OF_MEMORY ? take_and_free_pinned() : r;
        current_pop();
    }
    capture_restore(mode);
    return r;
}
