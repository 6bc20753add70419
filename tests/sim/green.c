/*
 * Green contexts: their creation, and work in their streams.
 *
 * A green context is a view of the device's primary context, and holds a reference to it. It has
 * its own streams and its own order of work. Memory, code and events belong to the primary context;
 * its records and waits include work of green contexts (cuda.h, cuCtxRecordEvent). The view ends
 * with the primary context. Only cuGreenCtxDestroy gives the reference back.
 */
#include "driver.h"

#include <string.h>

#define MULTIPROCESSORS 132

struct green {
    struct object object;
    struct context *context;
    unsigned multiprocessors;
};

/* The resources of a description: a number of multiprocessors. */
struct share {
    struct object object;
    unsigned multiprocessors;
};

static struct slab green_slab = SLAB(struct green);
static struct slab share_slab = SLAB(struct share);

static CUresult resource(CUdevResource *out, CUdevResourceType type, unsigned count) {
    if (!out || type != CU_DEV_RESOURCE_TYPE_SM)
        return CUDA_ERROR_INVALID_RESOURCE_TYPE;
    memset(out, 0, sizeof(*out));
    out->type = type;
    out->sm.smCount = count;
    return CUDA_SUCCESS;
}

static struct green *green_of(CUgreenCtx handle) {
    struct green *green = (struct green *)handle;

    return is_live(green, &green_slab) ? green : NULL;
}

static CUresult device_resource(CUdevice device, CUdevResource *out, CUdevResourceType type) {
    return device_of(device) ? resource(out, type, MULTIPROCESSORS) : CUDA_ERROR_INVALID_DEVICE;
}

static CUresult context_resource(CUcontext handle, CUdevResource *out, CUdevResourceType type) {
    const struct context *context = (struct context *)handle;

    if (!is_live(context, &context_slab))
        return CUDA_ERROR_INVALID_CONTEXT;
    return resource(out, type, context->green ? context->green->multiprocessors : MULTIPROCESSORS);
}

static CUresult green_resource(CUgreenCtx handle, CUdevResource *out, CUdevResourceType type) {
    const struct green *green = green_of(handle);

    return green ? resource(out, type, green->multiprocessors) : CUDA_ERROR_INVALID_CONTEXT;
}

static CUresult split(CUdevResource *groups, unsigned *count, const CUdevResource *input,
                      CUdevResource *rest, unsigned least) {
    if (!count || !input || input->type != CU_DEV_RESOURCE_TYPE_SM)
        return CUDA_ERROR_INVALID_VALUE;
    unsigned share = (unsigned)round_up(least ? least : 1, 8);
    unsigned possible = input->sm.smCount / share;
    if (groups && *count < possible)
        possible = *count;
    for (unsigned i = 0; groups && i < possible; i++)
        resource(&groups[i], CU_DEV_RESOURCE_TYPE_SM, share);
    if (rest)
        resource(rest, CU_DEV_RESOURCE_TYPE_SM, input->sm.smCount - possible * share);
    *count = possible;
    return CUDA_SUCCESS;
}

static CUresult describe(CUdevResourceDesc *desc, const CUdevResource *resources, unsigned count) {
    if (!desc || !resources || count == 0)
        return CUDA_ERROR_INVALID_VALUE;
    struct share *share = slab_get(&share_slab);
    for (unsigned i = 0; i < count; i++)
        share->multiprocessors += resources[i].sm.smCount;
    *desc = (CUdevResourceDesc)share;
    return CUDA_SUCCESS;
}

static CUresult create(CUgreenCtx *handle, CUdevResourceDesc desc, CUdevice ordinal) {
    const struct share *share = (struct share *)desc;

    if (!handle || !is_live(share, &share_slab))
        return CUDA_ERROR_INVALID_VALUE;
    if (!device_of(ordinal))
        return CUDA_ERROR_INVALID_DEVICE;
    struct device *device = device_of(ordinal);
    CUresult result = primary_retain(device);
    if (result != CUDA_SUCCESS)
        return result;
    struct green *green = slab_get(&green_slab);
    context_create(&green->context, device, device->primary, 3021);
    green->context->green = green;
    green->context->pins++; /* while a handle leads to it */
    event_copy_barriers(green->context, device->primary);
    green->multiprocessors = share->multiprocessors;
    *handle = (CUgreenCtx)green;
    return CUDA_SUCCESS;
}

static CUresult destroy(CUgreenCtx handle) {
    struct green *green = green_of(handle);

    if (!green)
        return CUDA_ERROR_INVALID_CONTEXT;
    struct context *context = green->context;
    struct device *device = context->device;
    slab_put(&green_slab, green);
    queue_await_end(context->behind);
    if (context->alive)
        context_destroy(context);
    context->pins--;
    context_settle(context);
    return primary_release(device);
}

static CUresult as_context(CUcontext *context, CUgreenCtx handle) {
    struct green *green = green_of(handle);

    if (!context || !green)
        return CUDA_ERROR_INVALID_VALUE;
    *context = (CUcontext)green->context;
    return CUDA_SUCCESS;
}

static CUresult stream_create(CUstream *handle, CUgreenCtx green_handle, unsigned flags,
                              int priority) {
    struct green *green = green_of(green_handle);

    if (!handle || !green || flags != CU_STREAM_NON_BLOCKING)
        return CUDA_ERROR_INVALID_VALUE;
    struct stream *stream = stream_new(green->context, flags, priority);
    stream->green = green;
    *handle = (CUstream)stream;
    return CUDA_SUCCESS;
}

static CUcontext context_handle(CUgreenCtx handle) {
    const struct green *green = green_of(handle);

    return green ? (CUcontext)green->context : NULL;
}

ENTRY(cuDeviceGetDevResource, (CUdevice device, CUdevResource *out, CUdevResourceType type),
      INITIALISED, device_resource(device, out, type))
ENTRY(cuCtxGetDevResource, (CUcontext context, CUdevResource *out, CUdevResourceType type),
      INITIALISED, context_resource(context, out, type))
ENTRY(cuGreenCtxGetDevResource, (CUgreenCtx green, CUdevResource *out, CUdevResourceType type),
      INITIALISED, green_resource(green, out, type))
ENTRY(cuDevSmResourceSplitByCount,
      (CUdevResource * groups, unsigned *count, const CUdevResource *input, CUdevResource *rest,
       unsigned flags, unsigned least),
      INITIALISED, ((void)flags, split(groups, count, input, rest, least)))
ENTRY(cuDevResourceGenerateDesc,
      (CUdevResourceDesc * desc, CUdevResource *resources, unsigned count), INITIALISED,
      describe(desc, resources, count))
ENTRY(cuGreenCtxCreate,
      (CUgreenCtx * green, CUdevResourceDesc desc, CUdevice device, unsigned flags), INITIALISED,
      ((void)flags, create(green, desc, device)))
ENTRY(cuGreenCtxDestroy, (CUgreenCtx green), INITIALISED, destroy(green))
ENTRY(cuCtxFromGreenCtx, (CUcontext * context, CUgreenCtx green), INITIALISED,
      as_context(context, green))
ENTRY(cuGreenCtxStreamCreate, (CUstream * stream, CUgreenCtx green, unsigned flags, int priority),
      INITIALISED, stream_create(stream, green, flags, priority))
ENTRY(cuGreenCtxRecordEvent, (CUgreenCtx green, CUevent event), INITIALISED,
      context_record(context_handle(green), event))
ENTRY(cuGreenCtxWaitEvent, (CUgreenCtx green, CUevent event), INITIALISED,
      context_wait_event(context_handle(green), event))

void green_forget_all(void) {
    for (unsigned i = 0; i < green_slab.count; i++)
        if (green_slab.all[i]->live)
            slab_put(&green_slab, green_slab.all[i]);
    for (unsigned i = 0; i < share_slab.count; i++)
        if (share_slab.all[i]->live)
            slab_put(&share_slab, share_slab.all[i]);
}
