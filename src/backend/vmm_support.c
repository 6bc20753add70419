/*
 * Tests whether a device can have the vmm backend, and chooses the properties of its handles.
 *
 * The tests run once, when the first pool of a device is made. try_page() may acquire the lock
 * DRIVER_POOLS: vmm_create_handle() trims the driver's own pools if memory is out.
 */
#include "backend/vmm_support.h"

#include "driver/limit/charge.h"
#include "driver/state/capture.h"
#include "driver/state/device.h"
#include "driver/table/entries.h"
#include "heap/page.h"
#include "stats/stats.h"

/* The driver version of CUDA 12.2. With drivers of CUDA 12.0, exportable handles are slow. */
#define EXPORTS_WELL_SINCE 12020

static bool has_attribute(const struct device *device, CUdevice_attribute attribute) {
    int value = 0;
    return REAL(cuDeviceGetAttribute)(&value, attribute, device->ordinal) == CUDA_SUCCESS && value;
}

CUmemAllocationProp vmm_prop_of(const struct device *device) {
    CUmemAllocationProp prop = {
        .type = CU_MEM_ALLOCATION_TYPE_PINNED,
        .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device->ordinal},
    };
    int version = 0;
    REAL(cuDriverGetVersion)(&version);
    if (version >= EXPORTS_WELL_SINCE &&
        has_attribute(device, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED))
        prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    prop.allocFlags.gpuDirectRDMACapable =
        has_attribute(device, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED);
    if (has_attribute(device, CU_DEVICE_ATTRIBUTE_MEM_DECOMPRESS_ALGORITHM_MASK))
        prop.allocFlags.usage = CU_MEM_CREATE_USAGE_HW_DECOMPRESS;
    return prop;
}

static bool has_api(void) {
    return HAS(cuMemAddressReserve) && HAS(cuMemAddressFree) && HAS(cuMemCreate) &&
           HAS(cuMemRelease) && HAS(cuMemMap) && HAS(cuMemUnmap) && HAS(cuMemSetAccess) &&
           HAS(cuMemGetAllocationGranularity);
}

/* Creates and maps one VMM page at `at`, and removes it. Returns the reason of a failure, or NULL.
 * Out of memory returns NULL too: a full device can have the backend. */
static const char *try_page(struct vmm_backend *vmm, CUdeviceptr at) {
    uint64_t handle;
    CUresult r = vmm_create_handle(vmm, PAGE_BYTES, &handle);
    if (r != CUDA_SUCCESS)
        return r == CUDA_ERROR_OUT_OF_MEMORY ? NULL : "the driver refuses to create pages";
    bool mapped = REAL(cuMemMap)(at, PAGE_BYTES, 0, handle, 0) == CUDA_SUCCESS;
    bool accessible = mapped && vmm_give_access(vmm, at, PAGE_BYTES) == CUDA_SUCCESS;
    bool kept = mapped && REAL(cuMemUnmap)(at, PAGE_BYTES) != CUDA_SUCCESS;
    if (vmm_release_handles(1, &handle) == 0 || kept)
        device_charge_always(vmm->common.device, PAGE_BYTES);
    return accessible ? NULL : "the driver refuses to map pages";
}

/*
 * Returns whether every other device can get access. Without the library, copies between any two
 * devices need no peer access. With mapped memory they do; get_access() (driver/hooks/copies.c)
 * gives it.
 */
static bool all_can_reach(const struct device *device) {
    int count = 0;
    REAL(cuDeviceGetCount)(&count);
    int can_all = count <= STATS_MAX_DEVICES; /* device_bit(): `peer_devices` holds no more */
    for (CUdevice i = 0; i < count && can_all; i++)
        if (i != device->ordinal &&
            REAL(cuDeviceCanAccessPeer)(&can_all, i, device->ordinal) != CUDA_SUCCESS)
            can_all = 0;
    return can_all;
}

const char *vmm_unavailable(struct device *device) {
    struct vmm_backend trial = {.common.device = device};
    size_t unit = 0;
    if (!has_api())
        return "the driver has no virtual memory API";
    if (!has_attribute(device, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED))
        return "the device has no virtual memory management";
    if (!all_can_reach(device))
        return "another device could not reach its pages";
    trial.prop = vmm_prop_of(device);
    if (REAL(cuMemGetAllocationGranularity)(&unit, &trial.prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM) !=
            CUDA_SUCCESS ||
        unit == 0 || PAGE_BYTES % unit != 0)
        return "the driver has no pages of 2 MiB";
    CUdeviceptr at = 0;
    size_t bytes = (device->total + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES;
    CUstreamCaptureMode mode = capture_relax();
    const char *reason = "the driver refuses to reserve addresses";
    if (REAL(cuMemAddressReserve)(&at, bytes, PAGE_BYTES, 0, 0) == CUDA_SUCCESS) {
        reason = try_page(&trial, at);
        REAL(cuMemAddressFree)(at, bytes);
    }
    capture_restore(mode);
    return reason;
}

const char *vmm_not_exportable(const struct device *device) {
    return vmm_prop_of(device).requestedHandleTypes ? NULL
                                                    : "the driver makes no IPC handles of pages";
}
