/*
 * Hooks that create, destroy and trim the driver's own pools, and that select the pool of a device.
 * limit/driver_pools.h has the table of these pools. Called with no lock held.
 */
#include "driver/hooks/hook.h"
#include "driver/limit/driver_pools.h"
#include "stats/stats.h"

CUresult hook_cuMemPoolCreate(CUmemoryPool *handle, const CUmemPoolProps *props) {
    CUresult answer = RETRY(REAL(cuMemPoolCreate)(handle, props));
    if (answer == CUDA_SUCCESS && process_ready()) {
        bool on_device = props->location.type == CU_MEM_LOCATION_TYPE_DEVICE;
        driver_pool_created(*handle, on_device ? device_get(props->location.id) : NULL, on_device);
    }
    return answer;
}

CUresult hook_cuMemPoolDestroy(CUmemoryPool handle) {
    return process_is_started() ? driver_pool_destroy(handle) : REAL(cuMemPoolDestroy)(handle);
}

CUresult hook_cuMemPoolTrimTo(CUmemoryPool handle, size_t keep) {
    CUresult answer = REAL(cuMemPoolTrimTo)(handle, keep);
    if (answer == CUDA_SUCCESS && handle && process_is_started())
        driver_pool_query_handle(handle);
    return answer;
}

/* Notes that the device may have another current pool. -1: not a device. Returns `answer`. */
static CUresult account_selected(CUresult answer, int ordinal) {
    if (answer == CUDA_SUCCESS && ordinal >= 0 && ordinal < STATS_MAX_DEVICES &&
        process_is_started())
        driver_pool_forget_current(ordinal);
    return answer;
}

CUresult hook_cuDeviceSetMemPool(CUdevice device, CUmemoryPool handle) {
    CUresult answer = REAL(cuDeviceSetMemPool)(device, handle);
    return account_selected(answer, device);
}

CUresult hook_cuMemSetMemPool(CUmemLocation *location, CUmemAllocationType type,
                              CUmemoryPool handle) {
    CUresult answer = REAL(cuMemSetMemPool)(location, type, handle);
    bool on_device = location && location->type == CU_MEM_LOCATION_TYPE_DEVICE;
    return account_selected(answer, on_device ? location->id : -1);
}
