/*
 * Arrays and mipmapped arrays: the bytes their descriptor asks for, without the driver's own padding.
 */
#include "driver/entries.h"
#include "driver/take.h"

static uint64_t element_bytes(CUarray_format format, unsigned int channels) {
    switch ((unsigned)format) {
    case CU_AD_FORMAT_UNSIGNED_INT8:
    case CU_AD_FORMAT_SIGNED_INT8:
        return channels;
    case CU_AD_FORMAT_UNSIGNED_INT16:
    case CU_AD_FORMAT_SIGNED_INT16:
    case CU_AD_FORMAT_HALF:
        return (uint64_t)channels * 2;
    default:
        return (uint64_t)channels * 4;
    }
}

static uint64_t array_bytes(const CUDA_ARRAY3D_DESCRIPTOR *d) {
    uint64_t height = d->Height ? d->Height : 1, depth = d->Depth ? d->Depth : 1;
    return d->Width * height * depth * element_bytes(d->Format, d->NumChannels);
}

CUresult hook_cuArrayCreate_v2(CUarray *array, const CUDA_ARRAY_DESCRIPTOR *d) {
    uint64_t bytes =
        d ? d->Width * (d->Height ? d->Height : 1) * element_bytes(d->Format, d->NumChannels) : 0;
    TAKE(OUTSIDE_ARRAY, here(), bytes, REAL(cuArrayCreate_v2)(array, d), *array);
}

CUresult hook_cuArray3DCreate_v2(CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR *d) {
    TAKE(OUTSIDE_ARRAY, here(), d ? array_bytes(d) : 0, REAL(cuArray3DCreate_v2)(array, d), *array);
}

CUresult hook_cuArrayDestroy(CUarray array) {
    GIVE(OUTSIDE_ARRAYS, array, REAL(cuArrayDestroy)(array));
}

CUresult hook_cuMipmappedArrayCreate(CUmipmappedArray *array, const CUDA_ARRAY3D_DESCRIPTOR *d,
                                     unsigned int levels) {
    uint64_t bytes = 0;
    if (d) {
        CUDA_ARRAY3D_DESCRIPTOR level = *d;
        for (unsigned i = 0; i < levels; i++) {
            bytes += array_bytes(&level);
            level.Width = level.Width > 1 ? level.Width / 2 : level.Width;
            level.Height = level.Height > 1 ? level.Height / 2 : level.Height;
            level.Depth = level.Depth > 1 ? level.Depth / 2 : level.Depth;
        }
    }
    TAKE(OUTSIDE_ARRAY, here(), bytes, REAL(cuMipmappedArrayCreate)(array, d, levels), *array);
}

CUresult hook_cuMipmappedArrayDestroy(CUmipmappedArray array) {
    GIVE(OUTSIDE_ARRAYS, array, REAL(cuMipmappedArrayDestroy)(array));
}
