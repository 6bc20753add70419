/*
 * Arrays and mipmapped arrays: opaque rows of bytes in device memory.
 *
 * They count against the device and can be copied to and from; no kernel reads them, since there
 * are no textures here.
 */
#include "driver.h"

#include <string.h>

#define PITCH 512
#define MAX_LEVELS 16

struct array {
    struct object object;
    CUDA_ARRAY3D_DESCRIPTOR desc;
    struct range *range;
    uintptr_t base; /* a mipmap's level lies inside the mipmap's range */
    size_t pitch, slice;
    struct mipmap *mipmap;
};

struct mipmap {
    struct object object;
    struct range *range;
    struct array *levels[MAX_LEVELS];
    unsigned level_count;
};

static struct slab array_slab = SLAB(struct array);
static struct slab mipmap_slab = SLAB(struct mipmap);

static size_t format_bytes(CUarray_format format) {
    switch (format) {
    case CU_AD_FORMAT_UNSIGNED_INT8:
    case CU_AD_FORMAT_SIGNED_INT8:
        return 1;
    case CU_AD_FORMAT_UNSIGNED_INT16:
    case CU_AD_FORMAT_SIGNED_INT16:
    case CU_AD_FORMAT_HALF:
        return 2;
    case CU_AD_FORMAT_UNSIGNED_INT32:
    case CU_AD_FORMAT_SIGNED_INT32:
    case CU_AD_FORMAT_FLOAT:
        return 4;
    default:
        return 0;
    }
}

static size_t or_one(size_t value) {
    return value ? value : 1;
}

/* Computes pitch and slice. Returns the bytes of the array, or 0 for an invalid descriptor. */
static size_t lay_out(struct array *array, const CUDA_ARRAY3D_DESCRIPTOR *desc) {
    size_t element = format_bytes(desc->Format) * desc->NumChannels;
    bool channels = desc->NumChannels == 1 || desc->NumChannels == 2 || desc->NumChannels == 4;

    if (!element || !channels || desc->Width == 0)
        return 0;
    array->desc = *desc;
    array->pitch = round_up(desc->Width * element, PITCH);
    array->slice = array->pitch * or_one(desc->Height);
    return array->slice * or_one(desc->Depth);
}

static CUresult create(CUarray *handle, const CUDA_ARRAY3D_DESCRIPTOR *desc) {
    struct context *context = context_owner(context_current());
    struct array *array = slab_get(&array_slab);
    size_t bytes = lay_out(array, desc);
    CUresult result = handle && bytes ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;

    if (result == CUDA_SUCCESS) {
        array->range = heap_take(&context->heap, bytes, RANGE_ARRAY, context);
        if (!array->range)
            result = CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (result != CUDA_SUCCESS) {
        slab_put(&array_slab, array);
        return result;
    }
    array->base = array->range->base;
    *handle = (CUarray)array;
    return CUDA_SUCCESS;
}

static CUresult create_flat(CUarray *handle, const CUDA_ARRAY_DESCRIPTOR *desc) {
    if (!desc)
        return CUDA_ERROR_INVALID_VALUE;
    CUDA_ARRAY3D_DESCRIPTOR full = {.Width = desc->Width,
                                    .Height = desc->Height,
                                    .Format = desc->Format,
                                    .NumChannels = desc->NumChannels};
    return create(handle, &full);
}

/* Releases the memory of an array. After the end of its context that is an error. */
static CUresult give_back(struct range *range, uintptr_t base) {
    if (range_find(base) != range)
        return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    return memory_release_behind(range);
}

static CUresult destroy(CUarray handle) {
    struct array *array = (struct array *)handle;

    if (!is_live(array, &array_slab) || array->mipmap)
        return CUDA_ERROR_INVALID_HANDLE;
    slab_put(&array_slab, array);
    return give_back(array->range, array->base);
}

static CUresult get_full(CUDA_ARRAY3D_DESCRIPTOR *desc, CUarray handle) {
    const struct array *array = (struct array *)handle;

    if (!is_live(array, &array_slab))
        return CUDA_ERROR_INVALID_HANDLE;
    if (!desc)
        return CUDA_ERROR_INVALID_VALUE;
    *desc = array->desc;
    return CUDA_SUCCESS;
}

static CUresult get_flat(CUDA_ARRAY_DESCRIPTOR *desc, CUarray handle) {
    CUDA_ARRAY3D_DESCRIPTOR full;
    CUresult result = get_full(&full, handle);

    if (result != CUDA_SUCCESS)
        return result;
    if (!desc)
        return CUDA_ERROR_INVALID_VALUE;
    *desc = (CUDA_ARRAY_DESCRIPTOR){full.Width, full.Height, full.Format, full.NumChannels};
    return CUDA_SUCCESS;
}

uintptr_t array_address(CUarray handle, size_t *pitch, size_t *slice) {
    const struct array *array = (struct array *)handle;

    if (!is_live(array, &array_slab))
        return 0;
    *pitch = array->pitch;
    *slice = array->slice;
    return array->base;
}

ENTRY(cuArrayCreate_v2, (CUarray * array, const CUDA_ARRAY_DESCRIPTOR *desc), ALLOCATE,
      create_flat(array, desc))
ENTRY(cuArray3DCreate_v2, (CUarray * array, const CUDA_ARRAY3D_DESCRIPTOR *desc), ALLOCATE,
      desc ? create(array, desc) : CUDA_ERROR_INVALID_VALUE)
ENTRY(cuArrayDestroy, (CUarray array), ALLOCATE, destroy(array))
ENTRY(cuArrayGetDescriptor_v2, (CUDA_ARRAY_DESCRIPTOR * desc, CUarray array), CONTEXT,
      get_flat(desc, array))
ENTRY(cuArray3DGetDescriptor_v2, (CUDA_ARRAY3D_DESCRIPTOR * desc, CUarray array), CONTEXT,
      get_full(desc, array))

/* ---- mipmaps --------------------------------------------------------------------------------- */

static size_t halved(size_t size, unsigned level) {
    return size ? or_one(size >> level) : 0;
}

static void destroy_levels(struct mipmap *mipmap) {
    for (unsigned i = 0; i < mipmap->level_count; i++)
        slab_put(&array_slab, mipmap->levels[i]);
    slab_put(&mipmap_slab, mipmap);
}

static CUresult create_mipmap(CUmipmappedArray *handle, const CUDA_ARRAY3D_DESCRIPTOR *desc,
                              unsigned levels) {
    struct context *context = context_owner(context_current());
    size_t total = 0, bytes[MAX_LEVELS];

    if (!handle || !desc || levels == 0 || levels > MAX_LEVELS)
        return CUDA_ERROR_INVALID_VALUE;
    struct mipmap *mipmap = slab_get(&mipmap_slab);
    for (unsigned i = 0; i < levels; i++) {
        CUDA_ARRAY3D_DESCRIPTOR level = *desc;
        level.Width = halved(desc->Width, i);
        level.Height = halved(desc->Height, i);
        level.Depth = halved(desc->Depth, i);
        struct array *array = slab_get(&array_slab);
        bytes[i] = lay_out(array, &level);
        array->mipmap = mipmap;
        mipmap->levels[mipmap->level_count++] = array;
        total += bytes[i];
    }
    mipmap->range = bytes[0] ? heap_take(&context->heap, total, RANGE_ARRAY, context) : NULL;
    if (!mipmap->range) {
        destroy_levels(mipmap);
        return bytes[0] ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_ERROR_INVALID_VALUE;
    }
    uintptr_t base = mipmap->range->base;
    for (unsigned i = 0; i < levels; i++) {
        mipmap->levels[i]->base = base;
        base += bytes[i];
    }
    *handle = (CUmipmappedArray)mipmap;
    return CUDA_SUCCESS;
}

static CUresult get_level(CUarray *handle, CUmipmappedArray mipmap_handle, unsigned level) {
    struct mipmap *mipmap = (struct mipmap *)mipmap_handle;

    if (!is_live(mipmap, &mipmap_slab))
        return CUDA_ERROR_INVALID_HANDLE;
    if (!handle || level >= mipmap->level_count)
        return CUDA_ERROR_INVALID_VALUE;
    *handle = (CUarray)mipmap->levels[level];
    return CUDA_SUCCESS;
}

static CUresult destroy_mipmap(CUmipmappedArray handle) {
    struct mipmap *mipmap = (struct mipmap *)handle;

    if (!is_live(mipmap, &mipmap_slab))
        return CUDA_ERROR_INVALID_HANDLE;
    struct range *range = mipmap->range;
    uintptr_t base = mipmap->levels[0]->base;
    destroy_levels(mipmap);
    return give_back(range, base);
}

ENTRY(cuMipmappedArrayCreate,
      (CUmipmappedArray * mipmap, const CUDA_ARRAY3D_DESCRIPTOR *desc, unsigned levels), ALLOCATE,
      create_mipmap(mipmap, desc, levels))
ENTRY(cuMipmappedArrayGetLevel, (CUarray * array, CUmipmappedArray mipmap, unsigned level), CONTEXT,
      get_level(array, mipmap, level))
ENTRY(cuMipmappedArrayDestroy, (CUmipmappedArray mipmap), ALLOCATE, destroy_mipmap(mipmap))

/* Forgets all arrays. Their memory ended with the contexts. */
void array_forget_all(void) {
    for (unsigned i = 0; i < array_slab.count; i++)
        if (array_slab.all[i]->live)
            slab_put(&array_slab, array_slab.all[i]);
    for (unsigned i = 0; i < mipmap_slab.count; i++)
        if (mipmap_slab.all[i]->live)
            slab_put(&mipmap_slab, mipmap_slab.all[i]);
}
