#include "driver/hooks/bounds.h"

#include "driver/reuse/deferred.h"

bool bounds_freed(CUdeviceptr at, size_t bytes, struct pool **pool) {
    deferred_reclaim_now();
    return pool_exceeds(at, bytes, pool) > 0;
}

/*
 * Returns whether `depth` slices of `height` rows of `width` bytes leave the block at `at`. Rows
 * are `pitch` bytes apart, slices `slice` bytes. Returns false, so that the driver judges the call,
 * if the extent is empty, contradicts itself or overflows: such a size exceeds all memory.
 */
static bool exceeds(CUdeviceptr at, size_t width, size_t height, size_t pitch, size_t depth,
                    size_t slice, struct pool **pool) {
    size_t rows, slices, bytes;
    if (width == 0 || height == 0 || depth == 0 || (height > 1 && pitch < width) ||
        __builtin_mul_overflow(height - 1, pitch, &rows) ||
        __builtin_mul_overflow(depth - 1, slice, &slices) ||
        __builtin_add_overflow(rows, slices, &bytes) ||
        __builtin_add_overflow(bytes, width, &bytes))
        return false;
    return bounds_exceeded(at, bytes, pool);
}

bool bounds_fill(CUdeviceptr to, size_t *count, size_t size) {
    size_t bytes;
    struct pool *pool;
    bool beyond = !__builtin_mul_overflow(*count, size, &bytes) && bounds_one(to, &bytes, &pool);
    *count = beyond ? 0 : *count;
    return beyond;
}

bool bounds_fill_rows(CUdeviceptr to, size_t pitch, size_t *width, size_t size, size_t height) {
    size_t bytes;
    struct pool *pool;
    bool beyond = !__builtin_mul_overflow(*width, size, &bytes) &&
                  exceeds(to, bytes, height, pitch, 1, 0, &pool);
    *width = beyond ? 0 : *width;
    return beyond;
}

static bool on_device(CUmemorytype type) {
    return type == CU_MEMORYTYPE_DEVICE || type == CU_MEMORYTYPE_UNIFIED;
}

bool bounds_rows(const CUDA_MEMCPY2D **copy, struct pool *pools[2]) {
    static const CUDA_MEMCPY2D empty_copy = {.srcMemoryType = CU_MEMORYTYPE_HOST,
                                             .dstMemoryType = CU_MEMORYTYPE_HOST};
    const CUDA_MEMCPY2D *c = *copy;
    bool beyond = c && ((on_device(c->srcMemoryType) &&
                         exceeds(c->srcDevice + c->srcY * c->srcPitch + c->srcXInBytes,
                                 c->WidthInBytes, c->Height, c->srcPitch, 1, 0, &pools[1])) ||
                        (on_device(c->dstMemoryType) &&
                         exceeds(c->dstDevice + c->dstY * c->dstPitch + c->dstXInBytes,
                                 c->WidthInBytes, c->Height, c->dstPitch, 1, 0, &pools[0])));
    *copy = beyond ? &empty_copy : c;
    return beyond;
}

bool bounds_slices(const CUDA_MEMCPY3D **copy, struct pool *pools[2]) {
    static const CUDA_MEMCPY3D empty_copy = {.srcMemoryType = CU_MEMORYTYPE_HOST,
                                             .dstMemoryType = CU_MEMORYTYPE_HOST};
    const CUDA_MEMCPY3D *c = *copy;
    size_t from = c ? c->srcPitch * c->srcHeight : 0; /* bytes of a slice of the source */
    size_t to = c ? c->dstPitch * c->dstHeight : 0;   /* ... and of the destination */
    bool beyond =
        c && ((on_device(c->srcMemoryType) &&
               exceeds(c->srcDevice + c->srcZ * from + c->srcY * c->srcPitch + c->srcXInBytes,
                       c->WidthInBytes, c->Height, c->srcPitch, c->Depth, from, &pools[1])) ||
              (on_device(c->dstMemoryType) &&
               exceeds(c->dstDevice + c->dstZ * to + c->dstY * c->dstPitch + c->dstXInBytes,
                       c->WidthInBytes, c->Height, c->dstPitch, c->Depth, to, &pools[0])));
    *copy = beyond ? &empty_copy : c;
    return beyond;
}
