/*
 * Hooks of arrays and mipmapped arrays, whose memory only textures, surfaces and copies use. It is
 * unpooled memory: counted and limited, with the size that array_size() computes.
 */
#include "driver/limit/array_size.h"
#include "driver/limit/unpooled_hook.h"
#include "driver/table/entries.h"

CUresult hook_cuArrayCreate_v2(CUarray *array, const CUDA_ARRAY_DESCRIPTOR *d) {
    if (!array || !d) {
        return REAL(cuArrayCreate_v2)(array, d);
    }
    struct device *device = here_and_well();
    CUDA_ARRAY3D_DESCRIPTOR flat = {0};
    if (device) {
        flat = (CUDA_ARRAY3D_DESCRIPTOR){.Width = d->Width,
                                         .Height = d->Height,
                                         .Format = d->Format,
                                         .NumChannels = d->NumChannels};
    }
    TAKE(UNPOOLED_ARRAY, device, array_size(&flat, 1), CUDA_ERROR_OUT_OF_MEMORY,
         REAL(cuArrayCreate_v2)(array, d), *array);
}

CUresult hook_cuArray3DCreate_v2(CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR *d) {
    if (!array || !d) {
        return REAL(cuArray3DCreate_v2)(array, d);
    }
    struct device *device = here_and_well();
    TAKE(UNPOOLED_ARRAY, device, device ? array_size(d, 1) : 0, CUDA_ERROR_OUT_OF_MEMORY,
         REAL(cuArray3DCreate_v2)(array, d), *array);
}

CUresult hook_cuArrayDestroy(CUarray array) {
    GIVE(UNPOOLED_ARRAYS, array, REAL(cuArrayDestroy)(array));
}

CUresult hook_cuMipmappedArrayCreate(CUmipmappedArray *array, const CUDA_ARRAY3D_DESCRIPTOR *d,
                                     unsigned int levels) {
    if (!array || !d) {
        return REAL(cuMipmappedArrayCreate)(array, d, levels);
    }
    struct device *device = here_and_well();
    TAKE(UNPOOLED_ARRAY, device, device ? array_size(d, levels ? levels : 1) : 0,
         CUDA_ERROR_OUT_OF_MEMORY, REAL(cuMipmappedArrayCreate)(array, d, levels), *array);
}

CUresult hook_cuMipmappedArrayDestroy(CUmipmappedArray array) {
    GIVE(UNPOOLED_ARRAYS, array, REAL(cuMipmappedArrayDestroy)(array));
}
