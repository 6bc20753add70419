/*
 * Hooks of arrays and mipmapped arrays. Their memory is unpooled: the driver serves each call, and
 * the hook counts and limits the size that array_size() computes. Called with no lock held.
 */
#include "driver/hooks/hook.h"
#include "driver/limit/array_size.h"

/*
 * Returns the answer to an array that the limit refuses. The driver is not asked about the array's
 * arguments: an array of its size might succeed. It is asked for other memory, which invalidates a
 * capture and shows a fault as the request for the array would.
 */
static CUresult refused_array(struct device *device) {
    CUdeviceptr none;
    return refused(device, REAL(cuMemAlloc_v2)(&none, IMPOSSIBLE_BYTES));
}

CUresult hook_cuArrayCreate_v2(CUarray *array, const CUDA_ARRAY_DESCRIPTOR *d) {
    if (!array || !d)
        return REAL(cuArrayCreate_v2)(array, d);
    struct device *device = device_current_if_healthy();
    CUDA_ARRAY3D_DESCRIPTOR flat = {0};
    if (device) {
        flat = (CUDA_ARRAY3D_DESCRIPTOR){.Width = d->Width,
                                         .Height = d->Height,
                                         .Format = d->Format,
                                         .NumChannels = d->NumChannels};
    }
    struct unpooled_call call;
    if (!unpooled_begin(&call, UNPOOLED_ARRAY, device, array_size(&flat, 1)))
        return refused_array(device);
    CUresult answer = RETRY_FOR(call.bytes, device, REAL(cuArrayCreate_v2)(array, d));
    return unpooled_end(&call, answer, answer == CUDA_SUCCESS ? (uint64_t)*array : 0, 0);
}

CUresult hook_cuArray3DCreate_v2(CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR *d) {
    if (!array || !d)
        return REAL(cuArray3DCreate_v2)(array, d);
    struct device *device = device_current_if_healthy();
    struct unpooled_call call;
    if (!unpooled_begin(&call, UNPOOLED_ARRAY, device, device ? array_size(d, 1) : 0))
        return refused_array(device);
    CUresult answer = RETRY_FOR(call.bytes, device, REAL(cuArray3DCreate_v2)(array, d));
    return unpooled_end(&call, answer, answer == CUDA_SUCCESS ? (uint64_t)*array : 0, 0);
}

CUresult hook_cuArrayDestroy(CUarray array) {
    struct ledger_row *freeing = unpooled_free_begin(UNPOOLED_ARRAYS, (uint64_t)array, 0);
    return unpooled_free_end(freeing, REAL(cuArrayDestroy)(array));
}

CUresult hook_cuMipmappedArrayCreate(CUmipmappedArray *array, const CUDA_ARRAY3D_DESCRIPTOR *d,
                                     unsigned int levels) {
    if (!array || !d)
        return REAL(cuMipmappedArrayCreate)(array, d, levels);
    struct device *device = device_current_if_healthy();
    struct unpooled_call call;
    if (!unpooled_begin(&call, UNPOOLED_ARRAY, device,
                        device ? array_size(d, levels ? levels : 1) : 0))
        return refused_array(device);
    CUresult answer = RETRY_FOR(call.bytes, device, REAL(cuMipmappedArrayCreate)(array, d, levels));
    return unpooled_end(&call, answer, answer == CUDA_SUCCESS ? (uint64_t)*array : 0, 0);
}

CUresult hook_cuMipmappedArrayDestroy(CUmipmappedArray array) {
    struct ledger_row *freeing = unpooled_free_begin(UNPOOLED_ARRAYS, (uint64_t)array, 0);
    return unpooled_free_end(freeing, REAL(cuMipmappedArrayDestroy)(array));
}
