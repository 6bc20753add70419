/*
 * Hooks of the virtual memory management API (VMM). Called with no lock held.
 *
 * Memory that the program creates is counted and limited (limit/unpooled.h). It stays allocated
 * while its handle or a mapping of it exists.
 *
 * Pooled memory may consist of VMM pages too (backend/vmm.h). To the program it is cuMemAlloc
 * memory, and natively the VMM API fails for that. The hooks therefore pass an unknown address to
 * the driver in place of an address in a pool. Otherwise NCCL would export the one handle behind an
 * address as if it were the whole block, and cuMemUnmap would unmap the pool's memory. The same
 * holds for VMM pages of another process (ipc/ipc_pages.h).
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

/* Returns `dptr`, or an unknown address if the range touches pooled or imported memory. */
static CUdeviceptr unless_pooled(CUdeviceptr dptr, size_t bytes) {
    return vmm_touches(dptr, bytes) || ipc_pages_touch(dptr, bytes) ? UNKNOWN_ADDRESS : dptr;
}

CUresult hook_cuMemCreate(CUmemGenericAllocationHandle *handle, size_t bytes,
                          const CUmemAllocationProp *prop, unsigned long long flags) {
    if (!handle || !prop) {
        return REAL(cuMemCreate)(handle, bytes, prop, flags);
    }
    CUcontext any; /* no context need be current, but cuInit() must have run */
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
    CUdeviceptr at = unless_pooled((CUdeviceptr)address, 1);
    CUresult r = REAL(cuMemRetainAllocationHandle)(handle, (void *)at);
    if (r == CUDA_SUCCESS) {
        unpooled_hold(*handle);
    }
    return r;
}

/*
 * Imports a handle. Memory of another process is entered with 0 bytes: its size is known when it is
 * mapped. A handle that is already in the ledger, as memory of this process, gets one more holder.
 */
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

/* Maps memory. The mapping holds the handle's ledger row before the driver call, because another
 * thread may release the handle during the call. */
CUresult hook_cuMemMap(CUdeviceptr dptr, size_t bytes, size_t offset,
                       CUmemGenericAllocationHandle handle, unsigned long long flags) {
    struct ledger_row *memory = unpooled_hold(handle);
    dptr = unless_pooled(dptr, bytes);
    CUresult r = RETRY(REAL(cuMemMap)(dptr, bytes, offset, handle, flags));
    if (r == CUDA_SUCCESS) {
        context_address_given(dptr, bytes);
    }
    unpooled_mapped(r, memory, offset, dptr, bytes);
    return r;
}

CUresult hook_cuMemUnmap(CUdeviceptr dptr, size_t bytes) {
    dptr = unless_pooled(dptr, bytes);
    struct ledger_row *mappings = unpooled_leave_begin(UNPOOLED_RANGES, dptr, bytes);
    CUresult r = REAL(cuMemUnmap)(dptr, bytes);
    unpooled_leave_end(mappings, r == CUDA_SUCCESS);
    return r;
}

CUresult hook_cuMemAddressFree(CUdeviceptr dptr, size_t bytes) {
    return REAL(cuMemAddressFree)(unless_pooled(dptr, bytes), bytes);
}

CUresult hook_cuMemSetAccess(CUdeviceptr dptr, size_t bytes, const CUmemAccessDesc *access,
                             size_t count) {
    dptr = unless_pooled(dptr, bytes);
    return fault_notice(RETRY(REAL(cuMemSetAccess)(dptr, bytes, access, count)));
}

CUresult hook_cuMemGetAccess(unsigned long long *flags, const CUmemLocation *location,
                             CUdeviceptr dptr) {
    return REAL(cuMemGetAccess)(flags, location, unless_pooled(dptr, 1));
}

CUresult hook_cuMulticastBindAddr(CUmemGenericAllocationHandle multicast, size_t at,
                                  CUdeviceptr dptr, size_t bytes, unsigned long long flags) {
    dptr = unless_pooled(dptr, bytes);
    return fault_notice(RETRY(REAL(cuMulticastBindAddr)(multicast, at, dptr, bytes, flags)));
}
