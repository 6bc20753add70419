/*
 * Arrays and mipmapped arrays: memory that only textures and copies know. Counted as array_size() has it.
 */
#include "driver/array_size.h"
#include "driver/entries.h"
#include "driver/take.h"

CUresult hook_cuArrayCreate_v2(CUarray *array, const CUDA_ARRAY_DESCRIPTOR *d) {
    CUDA_ARRAY3D_DESCRIPTOR flat = {0};
    if (d) {
        flat = (CUDA_ARRAY3D_DESCRIPTOR){.Width = d->Width,
                                         .Height = d->Height,
                                         .Format = d->Format,
                                         .NumChannels = d->NumChannels};
    }
    TAKE(OUTSIDE_ARRAY, here(), array_size(&flat, 1), REAL(cuArrayCreate_v2)(array, d), *array);
}

CUresult hook_cuArray3DCreate_v2(CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR *d) {
    TAKE(OUTSIDE_ARRAY, here(), d ? array_size(d, 1) : 0, REAL(cuArray3DCreate_v2)(array, d),
         *array);
}

CUresult hook_cuArrayDestroy(CUarray array) {
    GIVE(OUTSIDE_ARRAYS, array, REAL(cuArrayDestroy)(array));
}

CUresult hook_cuMipmappedArrayCreate(CUmipmappedArray *array, const CUDA_ARRAY3D_DESCRIPTOR *d,
                                     unsigned int levels) {
    TAKE(OUTSIDE_ARRAY, here(), d ? array_size(d, levels ? levels : 1) : 0,
         REAL(cuMipmappedArrayCreate)(array, d, levels), *array);
}

CUresult hook_cuMipmappedArrayDestroy(CUmipmappedArray array) {
    GIVE(OUTSIDE_ARRAYS, array, REAL(cuMipmappedArrayDestroy)(array));
}
