/*
 * Hooks of the virtual memory management API (VMM). Called with no lock held.
 *
 * Memory that the program creates is counted and limited (limit/unpooled.h). The memory stays
 * allocated while its handle or one of its mappings exists.
 *
 * Pooled memory may consist of VMM pages too (backend/vmm.h). To the program it is cuMemAlloc
 * memory, for which the VMM API fails natively (cuMemGetAccess excepted). The hooks therefore pass
 * an unknown address to the driver in place of an address in a pool. Otherwise NCCL would export
 * the one handle behind an address as if it were the whole block, and cuMemUnmap would unmap the
 * pool's memory. The same holds for VMM pages of another process (ipc/ipc_pages.h).
 */
#include "backend/vmm.h"
#include "driver/context/context.h"
#include "driver/context/fault.h"
#include "driver/hooks/hook.h"
#include "driver/ipc/ipc_pages.h"
#include "driver/state/shutdown.h"
#include "pool/pool.h"

#include <errno.h>

/* Returns `dptr`, or an unknown address if the range touches pooled or imported memory. */
static CUdeviceptr unless_pooled(CUdeviceptr dptr, size_t bytes) {
    return vmm_touches(dptr, bytes) || ipc_pages_touch(dptr, bytes) ? UNKNOWN_ADDRESS : dptr;
}

CUresult hook_cuMemCreate(CUmemGenericAllocationHandle *handle, size_t bytes,
                          const CUmemAllocationProp *prop, unsigned long long flags) {
    if (!handle || !prop)
        return REAL(cuMemCreate)(handle, bytes, prop, flags);
    CUcontext any; /* no context need be current, but cuInit() must have run */
    bool reads = process_ready() && REAL(cuCtxGetCurrent)(&any) == CUDA_SUCCESS;
    bool on_device = reads && prop->location.type == CU_MEM_LOCATION_TYPE_DEVICE;
    struct device *device = on_device ? device_get(prop->location.id) : NULL;
    struct unpooled_call call;
    if (!unpooled_begin(&call, UNPOOLED_VIRTUAL, device, bytes))
        return refused(device, REAL(cuMemCreate)(handle, bytes | IMPOSSIBLE_BYTES, prop, flags));
    CUresult answer = RETRY_FOR(bytes, device, REAL(cuMemCreate)(handle, bytes, prop, flags));
    return unpooled_end(&call, answer, answer == CUDA_SUCCESS ? *handle : 0, 0);
}

CUresult hook_cuMemRelease(CUmemGenericAllocationHandle handle) {
    struct ledger_row *freeing = unpooled_free_begin(UNPOOLED_HANDLES, handle, 0);
    return unpooled_free_end(freeing, REAL(cuMemRelease)(handle));
}

CUresult hook_cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *address) {
    CUdeviceptr at = unless_pooled((CUdeviceptr)address, 1);
    CUresult answer = REAL(cuMemRetainAllocationHandle)(handle, (void *)at);
    if (answer == CUDA_SUCCESS)
        unpooled_hold(*handle);
    return answer;
}

/*
 * Imports a handle. Memory of another process is entered with 0 bytes: only cuMemMap() shows the
 * size. A handle that is already in the ledger, as memory of this process, gets one more holder.
 */
CUresult hook_cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *os_handle,
                                             CUmemAllocationHandleType type) {
    CUresult answer = RETRY(REAL(cuMemImportFromShareableHandle)(handle, os_handle, type));
    CUmemAllocationProp prop;
    if (answer != CUDA_SUCCESS || !process_ready() || unpooled_hold(*handle))
        return answer;
    if (REAL(cuMemGetAllocationPropertiesFromHandle)(&prop, *handle) == CUDA_SUCCESS &&
        prop.location.type == CU_MEM_LOCATION_TYPE_DEVICE)
        unpooled_enter(UNPOOLED_HANDLE_IMPORTED, device_get(prop.location.id), NULL, 0, *handle, 0);
    return answer;
}

/* Maps memory. The mapping holds the handle's ledger row before the driver call, because another
 * thread may release the handle during the call. */
CUresult hook_cuMemMap(CUdeviceptr dptr, size_t bytes, size_t offset,
                       CUmemGenericAllocationHandle handle, unsigned long long flags) {
    struct ledger_row *memory = unpooled_hold(handle);
    dptr = unless_pooled(dptr, bytes);
    CUresult answer = RETRY(REAL(cuMemMap)(dptr, bytes, offset, handle, flags));
    if (answer == CUDA_SUCCESS)
        context_address_given(dptr, bytes);
    unpooled_mapped(answer, memory, offset, dptr, bytes);
    return fault_notice(answer);
}

CUresult hook_cuMemUnmap(CUdeviceptr dptr, size_t bytes) {
    dptr = unless_pooled(dptr, bytes);
    struct ledger_row *mappings = unpooled_free_begin(UNPOOLED_RANGES, dptr, bytes);
    return unpooled_free_end(mappings, REAL(cuMemUnmap)(dptr, bytes));
}

CUresult hook_cuMemAddressFree(CUdeviceptr dptr, size_t bytes) {
    return REAL(cuMemAddressFree)(unless_pooled(dptr, bytes), bytes);
}

CUresult hook_cuMemSetAccess(CUdeviceptr dptr, size_t bytes, const CUmemAccessDesc *access,
                             size_t count) {
    dptr = unless_pooled(dptr, bytes);
    CUresult answer = RETRY(REAL(cuMemSetAccess)(dptr, bytes, access, count));
    return fault_notice(answer);
}

/* The driver answers for live memory of cuMemAlloc too, as for its own mappings. It would also
 * answer for free memory of a segment, which natively nobody has. A block with a deferred free
 * (-EAGAIN of pool_exceeds()) is live for the driver. */
CUresult hook_cuMemGetAccess(unsigned long long *flags, const CUmemLocation *location,
                             CUdeviceptr dptr) {
    struct pool_block block;
    struct pool *pool;
    int r = shutdown_over() ? -ENOENT : pool_find(dptr, &block);
    if (r == -EINVAL && pool_exceeds(dptr, 1, &pool) != -EAGAIN)
        dptr = UNKNOWN_ADDRESS;
    else if (r != 0)
        dptr = unless_pooled(dptr, 1);
    return REAL(cuMemGetAccess)(flags, location, dptr);
}

CUresult hook_cuMulticastBindAddr(CUmemGenericAllocationHandle multicast, size_t at,
                                  CUdeviceptr dptr, size_t bytes, unsigned long long flags) {
    dptr = unless_pooled(dptr, bytes);
    CUresult answer = RETRY(REAL(cuMulticastBindAddr)(multicast, at, dptr, bytes, flags));
    return fault_notice(answer);
}
