/*
 * The virtual memory API: memory lives while its handle or a mapping of it does.
 *
 * What the program does with it is counted and held to the limit. Memory of the pool may lie in pages of this
 * API too (backend/vmm.h). To the program that is memory of cuMemAlloc, about which this API has nothing to say: it
 * is asked about an address that nobody has instead. NCCL would else export the one page behind an address as
 * if it were the whole block, and an unmapping would tear the pool's memory. So it is with pages of another process.
 */
#include "backend/vmm.h"
#include "driver/context/context.h"
#include "driver/context/fault.h"
#include "driver/ipc/ipc_pages.h"
#include "driver/limit/retry.h"
#include "driver/limit/unpooled.h"
#include "driver/limit/unpooled_hook.h"
#include "driver/state/device.h"
#include "driver/table/entries.h"
#include "process/process.h"

static CUdeviceptr not_ours(CUdeviceptr dptr, size_t bytes) {
    return vmm_touches(dptr, bytes) || ipc_pages_touch(dptr, bytes) ? UNKNOWN_ADDRESS : dptr;
}

CUresult hook_cuMemCreate(CUmemGenericAllocationHandle *handle, size_t bytes,
                          const CUmemAllocationProp *prop, unsigned long long flags) {
    if (!handle || !prop) {
        return REAL(cuMemCreate)(handle, bytes, prop, flags);
    }
    CUcontext any; /* no context is needed, but a driver that has started */
    bool reads = process_ready() && REAL(cuCtxGetCurrent)(&any) == CUDA_SUCCESS;
    bool on_device = reads && prop->location.type == CU_MEM_LOCATION_TYPE_DEVICE;
    struct device *device = on_device ? device_get(prop->location.id) : NULL;
    TAKE(UNPOOLED_VIRTUAL, device, bytes, REAL(cuMemCreate)(handle, bytes | TOO_MUCH, prop, flags),
         REAL(cuMemCreate)(handle, bytes, prop, flags), *handle);
}

CUresult hook_cuMemRelease(CUmemGenericAllocationHandle handle) {
    GIVE(UNPOOLED_HANDLES, handle, REAL(cuMemRelease)(handle));
}

CUresult hook_cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *address) {
    CUdeviceptr at = not_ours((CUdeviceptr)address, 1);
    CUresult r = REAL(cuMemRetainAllocationHandle)(handle, (void *)at);
    if (r == CUDA_SUCCESS) {
        unpooled_hold(*handle);
    }
    return r;
}

/* Another process's memory, whose size shows when it is mapped; or this process's own once more. */
CUresult hook_cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *os_handle,
                                             CUmemAllocationHandleType type) {
    CUresult r = RETRY(REAL(cuMemImportFromShareableHandle)(handle, os_handle, type));
    CUmemAllocationProp prop;
    if (r != CUDA_SUCCESS || !process_ready() || unpooled_hold(*handle)) {
        return r;
    }
    if (REAL(cuMemGetAllocationPropertiesFromHandle)(&prop, *handle) == CUDA_SUCCESS &&
        prop.location.type == CU_MEM_LOCATION_TYPE_DEVICE) {
        unpooled_enter(UNPOOLED_HANDLE_IMPORTED, device_get(prop.location.id), 0, *handle, 0);
    }
    return r;
}

/* Held for the mapping before the driver is asked: another thread may be releasing the handle. */
CUresult hook_cuMemMap(CUdeviceptr dptr, size_t bytes, size_t offset,
                       CUmemGenericAllocationHandle handle, unsigned long long flags) {
    struct ledger_row *memory = unpooled_hold(handle);
    dptr = not_ours(dptr, bytes);
    CUresult r = RETRY(REAL(cuMemMap)(dptr, bytes, offset, handle, flags));
    if (r == CUDA_SUCCESS) {
        context_address_given(dptr, bytes);
    }
    unpooled_mapped(r, memory, offset, dptr, bytes);
    return r;
}

CUresult hook_cuMemUnmap(CUdeviceptr dptr, size_t bytes) {
    dptr = not_ours(dptr, bytes);
    struct ledger_row *mappings = unpooled_leave_begin(UNPOOLED_RANGES, dptr, bytes);
    CUresult r = REAL(cuMemUnmap)(dptr, bytes);
    unpooled_leave_end(mappings, r == CUDA_SUCCESS);
    return r;
}

CUresult hook_cuMemAddressFree(CUdeviceptr dptr, size_t bytes) {
    return REAL(cuMemAddressFree)(not_ours(dptr, bytes), bytes);
}

CUresult hook_cuMemSetAccess(CUdeviceptr dptr, size_t bytes, const CUmemAccessDesc *access,
                             size_t count) {
    dptr = not_ours(dptr, bytes);
    return fault_notice(RETRY(REAL(cuMemSetAccess)(dptr, bytes, access, count)));
}

CUresult hook_cuMemGetAccess(unsigned long long *flags, const CUmemLocation *location,
                             CUdeviceptr dptr) {
    return REAL(cuMemGetAccess)(flags, location, not_ours(dptr, 1));
}

CUresult hook_cuMulticastBindAddr(CUmemGenericAllocationHandle multicast, size_t at,
                                  CUdeviceptr dptr, size_t bytes, unsigned long long flags) {
    dptr = not_ours(dptr, bytes);
    return fault_notice(RETRY(REAL(cuMulticastBindAddr)(multicast, at, dptr, bytes, flags)));
}
