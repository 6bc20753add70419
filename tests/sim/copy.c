/*
 * Copies and fills: translates the many forms of the driver to one, struct copy and struct set.
 *
 * The address decides which side is device memory (all memory is in one address space), and when
 * the call returns. A copy from pageable memory takes the bytes at once; a copy to pageable memory
 * waits for its end; a copy between device and pinned memory is only queued. A synchronous copy
 * waits, except between two addresses of devices. A fill never waits.
 */
#include "driver.h"

#include <stdlib.h>
#include <string.h>

enum wait { ASYNC, SYNC };

static struct side side_of(uintptr_t address, size_t pitch) {
    const struct range *range = range_find(address);

    return (struct side){.address = address, .pitch = pitch, .checked = range != NULL};
}

static bool on_device(const struct side *side) {
    const struct range *range = side->checked ? range_find(side->address) : NULL;

    return range && range_is_device(range);
}

static size_t span(const struct side *side, const struct copy *copy) {
    return copy->width + (copy->height - 1) * side->pitch + (copy->depth - 1) * side->slice;
}

/* Reads the source before the call returns, because the program may then change it. */
static bool stage(struct copy *copy) {
    size_t bytes = span(&copy->from, copy);

    copy->staging = malloc(bytes);
    if (!copy->staging)
        return false;
    memcpy(copy->staging, (void *)copy->from.address, bytes);
    copy->from.address = (uintptr_t)copy->staging;
    return true;
}

/* Returns whether a side is mapped memory to which the device has no access. */
static bool out_of_reach(const struct side *side, const struct copy *copy,
                         struct context *context) {
    const struct range *range = side->checked ? range_find(side->address) : NULL;

    return range && range->kind == RANGE_MAPPED &&
           !range_accessible(context, side->address, span(side, copy));
}

static bool within(const struct side *side, const struct copy *copy) {
    size_t bytes = span(side, copy);
    const struct range *range = side->checked ? range_find(side->address) : NULL;

    /* A copy may cross adjacent mappings: out_of_reach() checks each of them. */
    return !range || range->kind == RANGE_MAPPED ||
           bytes <= range->base + range->size - side->address;
}

/* Waits for the null stream of each context that owns memory of cuMemAlloc in a synchronous
 * copy, whichever context is current. Mapped memory belongs to no context. */
static bool wait_for_owner(const struct side *side, const struct context *current) {
    const struct range *range = side->checked ? range_find(side->address) : NULL;
    bool others = range && range->kind == RANGE_DEVICE && range->context &&
                  range->context != current->behind && range->context != current;

    if (others)
        queue_wait(&(struct waiting){.stream = range->context->legacy, .up_to = queue_sequence()});
    return others;
}

static CUresult run(struct copy copy, CUstream handle, bool per_thread, enum wait wait) {
    struct stream *stream;
    CUresult result = stream_resolve(handle, per_thread, &stream);

    if (result != CUDA_SUCCESS)
        return result;
    if (copy.width == 0 || copy.height == 0 || copy.depth == 0)
        return CUDA_SUCCESS;
    if (!within(&copy.to, &copy) || !within(&copy.from, &copy))
        return CUDA_ERROR_INVALID_VALUE;
    if (!copy.peer && (out_of_reach(&copy.to, &copy, stream->context) ||
                       out_of_reach(&copy.from, &copy, stream->context)))
        return CUDA_ERROR_INVALID_VALUE;
    if (wait == SYNC && !per_thread && !copy.peer &&
        wait_for_owner(&copy.to, stream->context) + wait_for_owner(&copy.from, stream->context)) {
        result = stream_resolve(handle, per_thread,
                                &stream); /* another thread may have ended the context */
        if (result != CUDA_SUCCESS)
            return result;
    }
    bool between_devices = on_device(&copy.to) && on_device(&copy.from);
    if (wait == SYNC && !between_devices)
        return submit_and_wait(stream, (struct work){.kind = WORK_COPY, .copy = copy});
    if (!stream->capture) {
        if (!copy.to.checked)
            return submit_and_wait(stream, (struct work){.kind = WORK_COPY, .copy = copy});
        if (!copy.from.checked && !stage(&copy))
            return CUDA_ERROR_OUT_OF_MEMORY;
    }
    return submit(stream, (struct work){.kind = WORK_COPY, .copy = copy});
}

/* ---- rows of bytes --------------------------------------------------------------------------- */

enum expect { HOST, DEVICE, ANY };

/* Returns whether an address fits the kind of copy. A host pointer may also be device or managed
 * memory. */
static bool as_expected(uintptr_t address, enum expect expect) {
    const struct range *range = range_find(address);

    return address && (expect != DEVICE || range);
}

static CUresult linear(uintptr_t to, enum expect to_what, uintptr_t from, enum expect from_what,
                       size_t size, CUstream stream, bool per_thread, enum wait wait) {
    if (size == 0)
        return CUDA_SUCCESS;
    if (!as_expected(to, to_what) || !as_expected(from, from_what))
        return CUDA_ERROR_INVALID_VALUE;
    struct copy copy = {.to = side_of(to, size),
                        .from = side_of(from, size),
                        .width = size,
                        .height = 1,
                        .depth = 1};
    return run(copy, stream, per_thread, wait);
}

static CUresult peer(CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context,
                     size_t size, CUstream stream, bool per_thread, enum wait wait) {
    if (size == 0)
        return CUDA_SUCCESS;
    if (!is_live(to_context, &context_slab) || !is_live(from_context, &context_slab))
        return CUDA_ERROR_INVALID_CONTEXT;
    if (!as_expected(to, DEVICE) || !as_expected(from, DEVICE))
        return CUDA_ERROR_INVALID_VALUE;
    struct copy copy = {.to = side_of(to, size),
                        .from = side_of(from, size),
                        .width = size,
                        .height = 1,
                        .depth = 1,
                        .peer = true};
    return run(copy, stream, per_thread, wait);
}

ENTRY_PTDS(cuMemcpy, (CUdeviceptr to, CUdeviceptr from, size_t size), SUBMIT,
           linear(to, ANY, from, ANY, size, NULL, per_thread, SYNC))
ENTRY_PTDS(cuMemcpyHtoD_v2, (CUdeviceptr to, const void *from, size_t size), SUBMIT,
           linear(to, DEVICE, (uintptr_t)from, HOST, size, NULL, per_thread, SYNC))
ENTRY_PTDS(cuMemcpyDtoH_v2, (void *to, CUdeviceptr from, size_t size), SUBMIT,
           linear((uintptr_t)to, HOST, from, DEVICE, size, NULL, per_thread, SYNC))
ENTRY_PTDS(cuMemcpyDtoD_v2, (CUdeviceptr to, CUdeviceptr from, size_t size), SUBMIT,
           linear(to, DEVICE, from, DEVICE, size, NULL, per_thread, SYNC))
ENTRY_PTSZ(cuMemcpyAsync, (CUdeviceptr to, CUdeviceptr from, size_t size, CUstream stream), SUBMIT,
           linear(to, ANY, from, ANY, size, stream, per_thread, ASYNC))
ENTRY_PTSZ(cuMemcpyHtoDAsync_v2, (CUdeviceptr to, const void *from, size_t size, CUstream stream),
           SUBMIT, linear(to, DEVICE, (uintptr_t)from, HOST, size, stream, per_thread, ASYNC))
ENTRY_PTSZ(cuMemcpyDtoHAsync_v2, (void *to, CUdeviceptr from, size_t size, CUstream stream), SUBMIT,
           linear((uintptr_t)to, HOST, from, DEVICE, size, stream, per_thread, ASYNC))
ENTRY_PTSZ(cuMemcpyDtoDAsync_v2, (CUdeviceptr to, CUdeviceptr from, size_t size, CUstream stream),
           SUBMIT, linear(to, DEVICE, from, DEVICE, size, stream, per_thread, ASYNC))
ENTRY_PTDS(cuMemcpyPeer,
           (CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context,
            size_t size),
           SUBMIT, peer(to, to_context, from, from_context, size, NULL, per_thread, SYNC))
ENTRY_PTSZ(cuMemcpyPeerAsync,
           (CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context,
            size_t size, CUstream stream),
           SUBMIT, peer(to, to_context, from, from_context, size, stream, per_thread, ASYNC))

/* ---- two and three dimensions ---------------------------------------------------------------- */

/* Source or destination of the driver's copy descriptors. */
struct corner {
    CUmemorytype type;
    const void *host;
    CUdeviceptr device;
    CUarray array;
    size_t x, y, z, pitch, height;
};

static bool locate(const struct corner *corner, struct side *side) {
    size_t pitch = corner->pitch, slice = corner->pitch * corner->height;
    uintptr_t base;

    if (corner->type == CU_MEMORYTYPE_ARRAY) {
        base = array_address(corner->array, &pitch, &slice);
        if (!base)
            return false;
    } else {
        base = corner->type == CU_MEMORYTYPE_HOST ? (uintptr_t)corner->host : corner->device;
    }
    *side = side_of(base + corner->z * slice + corner->y * pitch + corner->x, pitch);
    side->slice = slice;
    return as_expected(base, corner->type == CU_MEMORYTYPE_DEVICE ? DEVICE : ANY);
}

static bool describe(struct copy *copy, const struct corner *to, const struct corner *from) {
    if (!locate(to, &copy->to) || !locate(from, &copy->from))
        return false;
    return copy->height <= 1 || (copy->to.pitch >= copy->width && copy->from.pitch >= copy->width);
}

static CUresult plane(const CUDA_MEMCPY2D *c, CUstream stream, bool per_thread, enum wait wait) {
    if (!c)
        return CUDA_ERROR_INVALID_VALUE;
    struct corner to = {c->dstMemoryType, c->dstHost, c->dstDevice, c->dstArray, c->dstXInBytes,
                        c->dstY,          0,          c->dstPitch,  c->Height};
    struct corner from = {c->srcMemoryType, c->srcHost, c->srcDevice, c->srcArray, c->srcXInBytes,
                          c->srcY,          0,          c->srcPitch,  c->Height};
    struct copy copy = {.width = c->WidthInBytes, .height = c->Height, .depth = 1};
    to.pitch = to.pitch ? to.pitch : c->WidthInBytes;
    from.pitch = from.pitch ? from.pitch : c->WidthInBytes;
    if (copy.width == 0 || copy.height == 0)
        return CUDA_SUCCESS;
    return describe(&copy, &to, &from) ? run(copy, stream, per_thread, wait)
                                       : CUDA_ERROR_INVALID_VALUE;
}

bool copy_describe(struct copy *copy, const CUDA_MEMCPY3D *c) {
    struct corner to = {c->dstMemoryType, c->dstHost, c->dstDevice, c->dstArray, c->dstXInBytes,
                        c->dstY,          c->dstZ,    c->dstPitch,  c->dstHeight};
    struct corner from = {c->srcMemoryType, c->srcHost, c->srcDevice, c->srcArray, c->srcXInBytes,
                          c->srcY,          c->srcZ,    c->srcPitch,  c->srcHeight};
    to.pitch = to.pitch ? to.pitch : c->WidthInBytes;
    from.pitch = from.pitch ? from.pitch : c->WidthInBytes;
    *copy = (struct copy){.width = c->WidthInBytes, .height = c->Height, .depth = c->Depth};
    return describe(copy, &to, &from);
}

static CUresult cube(const CUDA_MEMCPY3D *c, CUstream stream, bool per_thread, enum wait wait) {
    struct copy copy;

    if (c && (c->WidthInBytes == 0 || c->Height == 0 || c->Depth == 0))
        return CUDA_SUCCESS;
    return c && copy_describe(&copy, c) ? run(copy, stream, per_thread, wait)
                                        : CUDA_ERROR_INVALID_VALUE;
}

ENTRY_PTDS(cuMemcpy2D_v2, (const CUDA_MEMCPY2D *copy), SUBMIT, plane(copy, NULL, per_thread, SYNC))
ENTRY_PTDS(cuMemcpy2DUnaligned_v2, (const CUDA_MEMCPY2D *copy), SUBMIT,
           plane(copy, NULL, per_thread, SYNC))
ENTRY_PTSZ(cuMemcpy2DAsync_v2, (const CUDA_MEMCPY2D *copy, CUstream stream), SUBMIT,
           plane(copy, stream, per_thread, ASYNC))
ENTRY_PTDS(cuMemcpy3D_v2, (const CUDA_MEMCPY3D *copy), SUBMIT, cube(copy, NULL, per_thread, SYNC))
ENTRY_PTSZ(cuMemcpy3DAsync_v2, (const CUDA_MEMCPY3D *copy, CUstream stream), SUBMIT,
           cube(copy, stream, per_thread, ASYNC))

/* ---- fills ----------------------------------------------------------------------------------- */

static CUresult set(CUdeviceptr address, size_t pitch, uint32_t value, unsigned element,
                    size_t width, size_t height, CUstream handle, bool per_thread) {
    struct stream *stream;
    CUresult result = stream_resolve(handle, per_thread, &stream);

    if (result == CUDA_SUCCESS)
        result = capture_implicit(stream); /* even if there is nothing to fill */
    if (result != CUDA_SUCCESS || width == 0 || height == 0)
        return result;
    size_t bytes;
    if (__builtin_mul_overflow(width, (size_t)element, &bytes))
        return CUDA_ERROR_INVALID_VALUE;
    const struct range *range = range_find(address);
    if (!range || address % element || (height > 1 && pitch < bytes))
        return CUDA_ERROR_INVALID_VALUE;
    size_t reach = bytes + (height - 1) * pitch;
    if (range->kind == RANGE_MAPPED ? !range_accessible(stream->context, address, reach)
                                    : reach > range->base + range->size - address)
        return CUDA_ERROR_INVALID_VALUE;
    struct set fill = {.address = address,
                       .pitch = pitch,
                       .width = bytes,
                       .height = height,
                       .value = value,
                       .element = element};
    return submit(stream, (struct work){.kind = WORK_SET, .set = fill});
}

#define FILLS(bits, type, element)                                                                 \
    ENTRY_PTDS(cuMemsetD##bits##_v2, (CUdeviceptr address, type value, size_t count), SUBMIT,      \
               set(address, 0, value, element, count, 1, NULL, per_thread))                        \
    ENTRY_PTSZ(cuMemsetD##bits##Async,                                                             \
               (CUdeviceptr address, type value, size_t count, CUstream stream), SUBMIT,           \
               set(address, 0, value, element, count, 1, stream, per_thread))                      \
    ENTRY_PTDS(cuMemsetD2D##bits##_v2,                                                             \
               (CUdeviceptr address, size_t pitch, type value, size_t width, size_t height),       \
               SUBMIT, set(address, pitch, value, element, width, height, NULL, per_thread))       \
    ENTRY_PTSZ(cuMemsetD2D##bits##Async,                                                           \
               (CUdeviceptr address, size_t pitch, type value, size_t width, size_t height,        \
                CUstream stream),                                                                  \
               SUBMIT, set(address, pitch, value, element, width, height, stream, per_thread))

FILLS(8, unsigned char, 1)
FILLS(16, unsigned short, 2)
FILLS(32, unsigned, 4)
